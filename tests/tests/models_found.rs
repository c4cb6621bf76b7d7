//! Models on this machine that nobody has named: where they are found, what is said of them, and
//! that they are served by the names they are found under.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use tinygpt_tests::client::finish;
use tinygpt_tests::directory;
use tinygpt_tests::process::{Home, ended, tinygptd};
use tinygpt_tests::seeded::Shape;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A small GGUF file whose vocabulary has six tokens.
fn gguf() -> Vec<u8> {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds/model");
    fs::read(seeds.join("bpe.gguf")).unwrap()
}

/// The head of what sees for another model.
fn projector() -> Vec<u8> {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let key = [text("general.architecture"), 8_u32.to_le_bytes().to_vec(), text("clip")].concat();
    let counts = [0_u64.to_le_bytes(), 1_u64.to_le_bytes()].concat();
    [&b"GGUF"[..], &3_u32.to_le_bytes(), &counts, &key].concat()
}

fn put(home: &Home, name: &str, contents: &[u8]) {
    let path = home.path(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, contents).unwrap();
}

/// A repository in Hugging Face's cache whose snapshot links to the files of a directory.
fn put_repository(home: &Home, name: &str) {
    let repository = home.path(".cache/huggingface/hub").join(name);
    let snapshot = repository.join("snapshots").join(COMMIT);
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir(repository.join("refs")).unwrap();
    fs::write(repository.join("refs/main"), COMMIT).unwrap();
    directory::write(&repository.join("blobs")).unwrap();
    for file in fs::read_dir(repository.join("blobs")).unwrap() {
        let name = file.unwrap().file_name();
        symlink(Path::new("../../blobs").join(&name), snapshot.join(&name)).unwrap();
    }
}

/// A home with a model in each program's folder.
fn home() -> Home {
    let home = Home::new();
    put_repository(&home, "models--owner--tiny-0.1B");
    put(&home, ".cache/huggingface/hub/models--owner--begun/blobs/1a.incomplete", b"");
    put(&home, ".cache/huggingface/hub/models--owner--begun/snapshots/1/README.md", b"");
    put(&home, ".lmstudio/models/me/small/small-F32.gguf", &gguf());
    put(&home, ".lmstudio/models/me/small/mmproj-small.gguf", &projector());
    put(&home, ".cache/lm-studio/models/me/old/old.gguf", &gguf());
    let layer = json!({"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:0a"});
    let manifest = json!({"schemaVersion": 2, "layers": [layer]}).to_string();
    let tags = ".ollama/models/manifests/registry.ollama.ai/library/tiny";
    put(&home, &format!("{tags}/latest"), manifest.as_bytes());
    put(&home, ".ollama/models/blobs/sha256-0a", &gguf());
    fs::create_dir(home.path("models")).unwrap();
    Shape::TINY.write(&home.path("models/seeded.tinygpt")).unwrap();
    home
}

fn found(home: &Home) -> Vec<Value> {
    let answer = home.run(&["models", "--json"]).json();
    assert_eq!(answer["schema"], "tinygpt.models/1");
    answer["found"].as_array().unwrap().clone()
}

fn named<'a>(found: &'a [Value], name: &str) -> &'a Value {
    let model = found.iter().find(|model| model["name"] == name);
    model.unwrap_or_else(|| panic!("no {name} in {found:#?}"))
}

#[test]
fn each_programs_models_are_found_with_what_they_are_and_whether_they_can_be_served() {
    let home = home();
    let _daemon = home.serve(&["--models-dir", home.path("models").to_str().unwrap()]);
    let found = found(&home);
    let rows: Vec<_> = ["name", "place", "format", "architecture", "weight_type", "context"]
        .map(|key| found.iter().map(|model| model[key].clone()).collect::<Vec<_>>())
        .into();
    let expected = json!([
        [
            "seeded.tinygpt",
            "owner/begun",
            "owner/tiny-0.1B",
            "me/small/mmproj-small.gguf",
            "me/small/small-F32.gguf",
            "me/old/old.gguf",
            "tiny:latest"
        ],
        [
            "CONFIGURED",
            "HUGGING_FACE",
            "HUGGING_FACE",
            "LM_STUDIO",
            "LM_STUDIO",
            "LM_STUDIO",
            "OLLAMA"
        ],
        ["tinygpt", "", "safetensors", "gguf", "gguf", "gguf", "gguf"],
        ["gpt", "", "llama", "clip", "llama", "llama", "llama"],
        ["fp16", "", "BF16", "none", "F32", "F32", "F32"],
        [128, 0, 512, 0, 64, 64, 64]
    ]);
    assert_eq!(json!(rows), expected);
    let seeded = named(&found, "seeded.tinygpt");
    assert_eq!(seeded["parameters"], Shape::TINY.parameters());
    assert_eq!(seeded["path"], home.path("models/seeded.tinygpt").to_str().unwrap());
    let bytes = fs::metadata(home.path("models/seeded.tinygpt")).unwrap().len();
    assert_eq!(seeded["file_bytes"], bytes);
    let blob = home.path(".ollama/models/blobs/sha256-0a");
    assert_eq!(named(&found, "tiny:latest")["path"], blob.to_str().unwrap());
    assert_eq!(named(&found, "tiny:latest")["file_bytes"], gguf().len());
    let refused: Vec<_> = found.iter().filter(|model| model["error"] != "").collect();
    assert_eq!(refused.len(), 2, "{refused:#?}");
    assert_eq!(refused[0]["error"], "its download is not complete");
    let words = refused[1]["error"].as_str().unwrap();
    assert!(words.starts_with("general.architecture is not supported: \"clip\""), "{words}");
    let table = home.run(&["models"]).ok().stdout;
    let line = |name: &str| table.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    let cells = line("owner/tiny-0.1B");
    for cell in ["HUGGING_FACE", "llama", "BF16", "512", "yes"] {
        assert!(cells.split_whitespace().any(|word| word == cell), "{cells}");
    }
    assert!(line("me/small/mmproj").ends_with("are"), "the whole reason: {table}");
    assert!(!home.run(&["models", "--served"]).ok().stdout.contains("owner"), "{table}");
}

#[test]
fn a_model_is_served_by_the_name_that_it_is_found_under() {
    let home = home();
    let daemon = home.serve(&["--model", "owner/tiny-0.1B", "--model", "mine=tiny:latest"]);
    let models = home.run(&["models", "--json"]).json();
    let names: Vec<_> = models["models"].as_array().unwrap().iter().map(|m| &m["name"]).collect();
    assert_eq!(names, ["owner/tiny-0.1B", "mine", "builtin"]);
    let found = models["found"].as_array().unwrap();
    assert_eq!(named(found, "owner/tiny-0.1B")["served_as"], "owner/tiny-0.1B");
    assert_eq!(named(found, "tiny:latest")["served_as"], "mine");
    assert_eq!(named(found, "me/old/old.gguf")["served_as"], "");
    let said = home.run(&["sample", "-m", "owner/tiny-0.1B", "-n", "2", "--prompt", "x", "--json"]);
    assert_eq!(said.json()["model"], "owner/tiny-0.1B");
    drop(daemon);
    let (code, words) = ended(home.daemon().args(["--model", "owner/none"]));
    assert!(code == 69 && words.contains("owner/none"), "{code} {words}");
}

#[test]
fn what_is_written_down_of_a_model_that_was_found_is_its_path() {
    let home = home();
    let snapshot = format!(".cache/huggingface/hub/models--owner--tiny-0.1B/snapshots/{COMMIT}");
    let said = format!("owner/tiny-0.1B={}", home.path(&snapshot).display());
    for command in ["config", "print-plist"] {
        let mut daemon = Command::new(tinygptd());
        home.settle(&mut daemon);
        daemon.args([command, "--model", "owner/tiny-0.1B", "--models-dir", "/named"]);
        let words = finish(&mut daemon, b"").ok().stdout;
        assert!(words.contains(&said) && words.contains("/named"), "{words}");
    }
}

#[test]
fn what_cannot_be_served_is_said_in_the_words_of_loading_it() {
    let home = Home::new();
    fs::create_dir(home.path("models")).unwrap();
    directory::write(&home.path("models/yarn")).unwrap();
    let mut scaled = directory::config();
    scaled["rope_scaling"] = json!({"rope_type": "yarn", "factor": 4.0});
    put(&home, "models/yarn/config.json", scaled.to_string().as_bytes());
    directory::write(&home.path("models/half")).unwrap();
    fs::remove_file(home.path("models/half").join(directory::SHARDS[1])).unwrap();
    put(&home, "models/clip.gguf", &projector());
    put(&home, "models/cut.gguf", &gguf()[..20_000]);
    put(&home, "models/words.gguf", b"words");
    directory::write(&home.path("models/mute")).unwrap();
    put(&home, "models/mute/tokenizer.json", br#"{"model": {"type": "Unigram", "vocab": []}}"#);
    let daemon = home.serve(&["--models-dir", home.path("models").to_str().unwrap()]);
    let found = found(&home);
    drop(daemon);
    let names = ["yarn", "half", "clip.gguf", "cut.gguf", "words.gguf", "mute"];
    assert_eq!(found.len(), names.len(), "{found:#?}");
    for name in names {
        let error = named(&found, name)["error"].as_str().unwrap().to_owned();
        let words = error.rsplit("cannot build the tokenizer: ").next().unwrap();
        let path = home.path("models").join(name);
        let (code, log) = ended(home.daemon().arg("--model").arg(path));
        assert!(!words.is_empty() && code == 69, "{name}: {words:?}, {code}");
        assert!(log.replace('\\', "").contains(words), "{name}: {words}\n{log}");
    }
}

#[test]
fn odd_folders_do_no_harm() {
    let home = Home::new();
    let models = home.path("models");
    fs::create_dir_all(models.join("a/b")).unwrap();
    symlink(&models, models.join("a/b/up")).unwrap();
    symlink("nowhere.gguf", models.join("broken.gguf")).unwrap();
    assert!(Command::new("mkfifo").arg(models.join("pipe.gguf")).status().unwrap().success());
    put(&home, "models/tuned.lora", b"");
    (0..3000).for_each(|at| fs::write(models.join(format!("{at}.txt")), "").unwrap());
    put(&home, "models/a/b/c.gguf", &gguf());
    let gone = home.path("gone");
    let dirs = ["--models-dir", models.to_str().unwrap(), "--models-dir", gone.to_str().unwrap()];
    let mut daemon = home.serve(&dirs);
    let found = found(&home);
    let reasons = [
        ("broken.gguf", "No such file"),
        ("pipe.gguf", "not a regular file"),
        ("tuned.lora", "an adapter"),
        ("gone", "No such file"),
    ];
    for (name, words) in reasons {
        let error = &named(&found, name)["error"];
        assert!(error.as_str().unwrap().contains(words), "{name}: {error}");
    }
    assert_eq!(named(&found, "a/b/c.gguf")["error"], "");
    assert_eq!(found.len(), reasons.len() + 1, "{found:#?}");
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn what_hostile_files_say_of_themselves_is_cut_and_spelled_out() {
    let home = Home::new();
    let of_type = |kind: &str| format!("{{\"model_type\":\"{kind}\"}}");
    put(&home, "models/long/config.json", of_type(&"A".repeat(5_000_000)).as_bytes());
    put(&home, "models/huge/config.json", of_type("llama").as_bytes());
    let huge = fs::File::options().write(true).open(home.path("models/huge/config.json"));
    huge.unwrap().set_len(3_000_000_000).unwrap();
    for directory in ["long", "huge"] {
        put(&home, &format!("models/{directory}/tokenizer.json"), b"{}");
        put(&home, &format!("models/{directory}/model.safetensors"), b"");
    }
    put(&home, "models/\u{1b}[31m\nforged\u{202e}.gguf", &gguf());
    let _daemon = home.serve(&["--models-dir", home.path("models").to_str().unwrap()]);
    let found = found(&home);
    assert_eq!(found.len(), 3, "{found:#?}");
    let error = |name| named(&found, name)["error"].as_str().unwrap().to_owned();
    assert!(error("huge").contains("3000000000"), "{}", error("huge"));
    assert!((1000..5000).contains(&error("long").len()), "{}", error("long").len());
    let shown = home.run(&["models"]).ok().stdout;
    assert!(shown.contains("\\u{1b}[31m\\nforged\\u{202e}.gguf"), "{shown}");
    assert!(!shown.contains(['\u{1b}', '\u{202e}']), "{shown}");
}

/// Bytes that a process has read from files and everything else.
#[cfg(target_os = "linux")]
fn bytes_read(pid: u32) -> u64 {
    let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap();
    io.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
}

#[cfg(target_os = "linux")]
#[test]
fn weights_are_not_read_to_tell_what_a_model_is() {
    let home = Home::new();
    fs::create_dir(home.path("models")).unwrap();
    let path = home.path("models/huge.tinygpt");
    Shape::HUGE.write(&path).unwrap();
    let daemon = home.serve(&["--models-dir", home.path("models").to_str().unwrap()]);
    let before = bytes_read(daemon.pid());
    let huge = named(&found(&home), "huge.tinygpt").clone();
    assert_eq!((&huge["error"], &huge["parameters"]), (&json!(""), &json!(9_608_704)));
    let (read, size) = (bytes_read(daemon.pid()) - before, fs::metadata(&path).unwrap().len());
    assert!(size > 19_000_000 && read < 6 << 20, "{read} of {size}");
}
