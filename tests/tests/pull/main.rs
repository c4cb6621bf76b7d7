//! Models from a hub: what is fetched, where it goes, and what may go wrong on the way.
//!
//! No test here leaves this machine.
#![expect(clippy::unwrap_used, reason = "tests")]

mod hub;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tinygpt_client::exit::Exit;
use tinygpt_tests::client::{Answer, finish};
use tinygpt_tests::process::{Home, Started, until};

use hub::{COMMIT, Content, Faults, Hub, Request};

/// A home and a hub for it.
struct Bench {
    home: Home,
    hub: Hub,
}

/// What a directory of safetensors has, with what nobody needs between.
fn directory() -> Vec<Content> {
    let map = r#"{"weight_map": {"a": "model-00001-of-00002.safetensors",
        "b": "model-00002-of-00002.safetensors"}}"#;
    vec![
        Content::small("README.md", "read me"),
        Content::small("config.json", "{}"),
        Content::small("tokenizer.json", "{\"model\": 1}"),
        Content::small("generation_config.json", "{\"eos\": 1}"),
        Content::small("model.safetensors.index.json", map),
        Content::large("model-00001-of-00002.safetensors", 300_000),
        Content::large("model-00002-of-00002.safetensors", 200_000),
        Content::large("pytorch_model.bin", 1_000),
    ]
}

fn gguf() -> Vec<Content> {
    vec![
        Content::small("README.md", "read me"),
        Content::large("m-Q4_K_M.gguf", 400_000),
        Content::large("m-Q8_0.gguf", 1_000),
    ]
}

impl Bench {
    /// None where the client was built without the feature.
    fn new(files: Vec<Content>) -> Option<Self> {
        let bench = Self { home: Home::new(), hub: Hub::start(files) };
        let answer =
            finish(bench.client(&["no such name"]).env("HF_ENDPOINT", "http://[::1]:1"), b"");
        if answer.stderr.contains("built without the feature `pull`") {
            assert_eq!(answer.code, i32::from(Exit::Refused.code()));
            eprintln!("skipped: the client was built without the feature `pull`");
            return None;
        }
        Some(bench)
    }

    fn client(&self, arguments: &[&str]) -> Command {
        let mut command = self.home.client();
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().to_lowercase();
            if name.starts_with("hf_") || name.starts_with("hugging") || name.ends_with("_proxy") {
                command.env_remove(&name).env_remove(name.to_uppercase());
            }
        }
        command.env("HF_ENDPOINT", &self.hub.endpoint).arg("pull").args(arguments);
        command
    }

    fn pull(&self, arguments: &[&str]) -> Answer {
        finish(&mut self.client(arguments), b"")
    }

    fn repository(&self) -> PathBuf {
        self.home.path(".cache/huggingface/hub/models--owner--name")
    }

    fn blob(&self, file: &Content) -> PathBuf {
        self.repository().join("blobs").join(file.digest())
    }

    fn part(&self, file: &Content) -> PathBuf {
        self.blob(file).with_extension("incomplete")
    }

    fn snapshot(&self) -> PathBuf {
        self.repository().join("snapshots").join(COMMIT)
    }

    /// The names of the files that were asked for, and where from.
    fn asked(&self) -> Vec<(String, usize)> {
        let requests = self.hub.requests().into_iter();
        requests.filter(|request| request.is_large).map(|r| (r.name, r.from)).collect()
    }
}

/// The last line on stdout.
fn path(answer: &Answer) -> &Path {
    Path::new(answer.stdout.lines().last().unwrap())
}

#[test]
fn a_directory_is_fetched_with_what_the_daemon_reads_and_no_more() {
    let files = directory();
    let Some(bench) = Bench::new(files.clone()) else { return };
    let answer = bench.pull(&["owner/name"]).ok();
    assert_eq!(path(&answer), bench.snapshot());
    let mut there: Vec<_> =
        fs::read_dir(path(&answer)).unwrap().map(|file| file.unwrap().file_name()).collect();
    there.sort();
    let mut wanted: Vec<_> = files[1..7].iter().map(|file| file.name).collect();
    wanted.sort_unstable();
    assert_eq!(there, wanted);
    for file in &files[1..7] {
        let link = bench.snapshot().join(file.name);
        assert_eq!(fs::read(&link).unwrap(), file.bytes, "{}", file.name);
        assert_eq!(fs::canonicalize(&link).unwrap(), fs::canonicalize(bench.blob(file)).unwrap());
        assert!(!bench.part(file).exists());
    }
    assert_eq!(fs::read_to_string(bench.repository().join("refs/main")).unwrap(), COMMIT);
}

#[test]
fn what_is_there_is_not_fetched_again_whoever_brought_it() {
    let files = gguf();
    let Some(bench) = Bench::new(files.clone()) else { return };
    fs::create_dir_all(bench.repository().join("blobs")).unwrap();
    fs::write(bench.blob(&files[1]), &files[1].bytes).unwrap();
    for _ in 0..2 {
        let answer = bench.pull(&["owner/name:Q4_K_M"]).ok();
        assert_eq!(fs::read(path(&answer)).unwrap(), files[1].bytes);
        assert!(answer.stderr.contains("is there already"), "{}", answer.stderr);
    }
    assert_eq!(bench.hub.requests(), []);
}

#[test]
fn the_daemon_serves_what_was_pulled() {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/gguf/llama3rope-Q4_1.gguf");
    let bytes = fs::read(golden).unwrap();
    let file = Content { name: "m.Q4_1.gguf", bytes, is_large: true };
    let Some(bench) = Bench::new(vec![file]) else { return };
    let answer = bench.pull(&["owner/name"]).ok();
    let _daemon = bench.home.serve(&["--model", path(&answer).to_str().unwrap()]);
    let models = bench.home.run(&["models", "--json"]).json();
    assert_eq!(models["models"][0]["weight_type"], "Q4_1", "{models}");
}

#[test]
fn of_several_gguf_files_one_is_named_and_else_they_are_listed() {
    let Some(bench) = Bench::new(gguf()) else { return };
    let answer = bench.pull(&["owner/name"]);
    answer.failed(Exit::Usage, "2 GGUF files of owner/name come into question; name one");
    answer.failed(Exit::Usage, "\n  m-Q4_K_M.gguf\n  m-Q8_0.gguf");
    let answer = bench.pull(&["owner/name:IQ2_XS"]);
    answer.failed(Exit::NotFound, "no GGUF file of owner/name is \"IQ2_XS\"");
    assert_eq!(bench.hub.requests(), []);
    for wanted in ["m-Q8_0.gguf", "q8_0", "*8*"] {
        let answer = bench.pull(&[&format!("owner/name:{wanted}")]).ok();
        assert_eq!(path(&answer), bench.snapshot().join("m-Q8_0.gguf"));
    }
}

#[test]
fn a_killed_pull_goes_on_where_it_stopped() {
    let files = gguf();
    let Some(bench) = Bench::new(files.clone()) else { return };
    bench.hub.fail(Faults { stall: Some(150_000), ..Faults::default() });
    let mut first = Started::new(bench.client(&["owner/name:Q4_K_M"]).stderr(Stdio::null()));
    let part = bench.part(&files[1]);
    until("half a file", || fs::metadata(&part).is_ok_and(|part| part.len() == 150_000));
    first.kill();
    assert_eq!(bench.asked(), [("m-Q4_K_M.gguf".to_owned(), 0)]);
    assert!(!bench.repository().join("refs").exists(), "nothing half is referred to");
    bench.hub.fail(Faults::default());
    let answer = bench.pull(&["owner/name:Q4_K_M"]).ok();
    assert_eq!(bench.asked(), [("m-Q4_K_M.gguf".to_owned(), 150_000)]);
    assert_eq!(fs::read(path(&answer)).unwrap(), files[1].bytes);
}

/// A kill between the last byte and the new name.
#[test]
fn a_part_that_is_whole_needs_no_more_bytes() {
    let files = gguf();
    let Some(bench) = Bench::new(files.clone()) else { return };
    fs::create_dir_all(bench.repository().join("blobs")).unwrap();
    fs::write(bench.part(&files[1]), &files[1].bytes).unwrap();
    let answer = bench.pull(&["owner/name:Q4_K_M"]).ok();
    assert_eq!(bench.asked(), []);
    assert_eq!(fs::read(path(&answer)).unwrap(), files[1].bytes);
}

#[test]
fn a_connection_that_breaks_is_made_again_for_the_rest() {
    let files = gguf();
    let Some(bench) = Bench::new(files.clone()) else { return };
    bench.hub.fail(Faults { cut: Some(150_000), ..Faults::default() });
    let answer = bench.pull(&["owner/name:Q4_K_M"]).ok();
    let from: Vec<_> = bench.asked().into_iter().map(|(_, from)| from).collect();
    assert_eq!(from, [0, 150_000, 300_000]);
    assert_eq!(fs::read(path(&answer)).unwrap(), files[1].bytes);
}

#[test]
fn a_hub_that_knows_no_parts_is_asked_for_everything() {
    let files = gguf();
    let Some(bench) = Bench::new(files.clone()) else { return };
    bench.hub.fail(Faults { no_parts: true, ..Faults::default() });
    fs::create_dir_all(bench.repository().join("blobs")).unwrap();
    fs::write(bench.part(&files[1]), &files[1].bytes[..1000]).unwrap();
    let answer = bench.pull(&["owner/name:Q4_K_M"]).ok();
    assert_eq!(fs::read(path(&answer)).unwrap(), files[1].bytes);
}

#[test]
fn a_part_with_other_bytes_is_fetched_anew() {
    let files = gguf();
    for length in [1000, files[1].bytes.len(), files[1].bytes.len() + 1] {
        let Some(bench) = Bench::new(files.clone()) else { return };
        fs::create_dir_all(bench.repository().join("blobs")).unwrap();
        fs::write(bench.part(&files[1]), vec![b'x'; length]).unwrap();
        let answer = bench.pull(&["owner/name:Q4_K_M"]).ok();
        assert_eq!(fs::read(path(&answer)).unwrap(), files[1].bytes, "{length}");
    }
}

#[test]
fn two_at_once_fetch_a_file_once() {
    let files = gguf();
    let Some(bench) = Bench::new(files.clone()) else { return };
    bench.hub.fail(Faults { stall: Some(150_000), ..Faults::default() });
    let mut first = Started::new(bench.client(&["owner/name:Q4_K_M"]).stderr(Stdio::null()));
    let part = bench.part(&files[1]);
    until("half a file", || fs::metadata(&part).is_ok_and(|part| part.len() == 150_000));
    let log = bench.home.path("second");
    let stderr = fs::File::create(&log).unwrap();
    let mut second = bench.client(&["owner/name:Q4_K_M"]);
    let mut second = Started::new(second.stdout(Stdio::null()).stderr(stderr));
    until("waiting", || fs::read_to_string(&log).unwrap().contains("waiting for another process"));
    assert!(!second.has_ended());
    bench.hub.fail(Faults::default());
    first.kill();
    until("second is done", || bench.blob(&files[1]).exists());
    assert_eq!(bench.asked().len(), 2);
}

#[test]
fn a_token_goes_to_the_hub_and_to_nobody_else() {
    let Some(bench) = Bench::new(gguf()) else { return };
    bench.hub.fail(Faults { token: Some("hf_secret"), ..Faults::default() });
    let answer = bench.pull(&["owner/name:Q8_0"]);
    answer.failed(Exit::Denied, "owner/name is gated, private or not there (HTTP 401)");
    answer
        .failed(Exit::Denied, &format!("accept its licence at {}/owner/name", bench.hub.endpoint));
    answer.failed(Exit::Denied, "set HF_TOKEN");
    let _ = finish(bench.client(&["owner/name:Q8_0"]).env("HF_TOKEN", "hf_secret"), b"").ok();
    let shown = |r: &Request| r.authorization.as_deref() == Some("Bearer hf_secret");
    let requests = bench.hub.requests();
    assert_eq!(
        requests.iter().map(|r| (r.is_large, shown(r))).collect::<Vec<_>>(),
        [(false, true), (true, false)]
    );
    fs::write(bench.home.path(".cache/huggingface/token"), "hf_secret\n").unwrap();
    let _ = bench.pull(&["owner/name:Q4_K_M"]).ok();
}

#[test]
fn every_way_to_fail_has_its_words_and_its_code() {
    let Some(bench) = Bench::new(gguf()) else { return };
    let model = "owner/name:Q8_0";
    bench.pull(&["owner/name/x"]).failed(Exit::Usage, "not the name of a repository");
    bench.pull(&[model, "--revision", "../x"]).failed(Exit::Usage, "not the name of a revision");
    let absent = bench.pull(&["owner/other"]);
    absent.failed(Exit::NotFound, "has no repository owner/other with a revision main (HTTP 404)");
    let absent = bench.pull(&[model, "--revision", "v9"]);
    absent.failed(Exit::NotFound, "has no repository owner/name with a revision v9 (HTTP 404)");
    let nobody = finish(bench.client(&[model]).env("HF_ENDPOINT", "http://127.0.0.1:1"), b"");
    nobody.failed(Exit::Unavailable, "cannot reach http://127.0.0.1:1: ");
    let failing = [
        (Faults { status: Some(403), ..Faults::default() }, Exit::Denied, "(HTTP 403)"),
        (Faults { status: Some(503), ..Faults::default() }, Exit::Unavailable, "answers HTTP 503"),
        (
            Faults { cut: Some(0), ..Faults::default() },
            Exit::Unavailable,
            "the connection broke after 0 B of 1000 B of m-Q8_0.gguf",
        ),
        (
            Faults { flipped: true, ..Faults::default() },
            Exit::DataLoss,
            "m-Q8_0.gguf has the digest ",
        ),
        (
            Faults { listed_size: Some(999), ..Faults::default() },
            Exit::DataLoss,
            "m-Q8_0.gguf has 1000 bytes, not 999 as listed",
        ),
        (
            Faults { listed_size: Some(1 << 60), ..Faults::default() },
            Exit::Exhausted,
            "1.00 EiB are needed in ",
        ),
    ];
    for (faults, exit, words) in failing {
        bench.hub.fail(faults);
        let answer = bench.pull(&["-q", model]);
        answer.failed(exit, words);
        assert_eq!(answer.stderr.lines().count(), 1, "{}", answer.stderr);
        assert!(!bench.snapshot().exists(), "{words}");
    }
    bench.hub.fail(Faults { stall: Some(10), ..Faults::default() });
    bench
        .pull(&[model, "--timeout", "0.5"])
        .failed(Exit::Deadline, "no complete answer after 0.5 s");
    bench.hub.fail(Faults::default());
    let _ = bench.pull(&[model]).ok();
}

/// What is not there to be written in has the system's words.
#[test]
fn a_cache_that_cannot_be_written_is_named() {
    let Some(bench) = Bench::new(gguf()) else { return };
    let answer = finish(bench.client(&["owner/name:Q8_0"]).env("HF_HUB_CACHE", "/dev/null"), b"");
    answer.failed(Exit::Failed, "/dev/null");
    answer.failed(Exit::Failed, "Not a directory");
}

#[test]
fn json_has_the_path_and_what_is_there() {
    let Some(bench) = Bench::new(gguf()) else { return };
    let cache = bench.home.path("elsewhere");
    let arguments = ["owner/name:Q8_0", "--revision", "refs/pr/1", "--json"];
    let answer = finish(bench.client(&arguments).env("HF_HUB_CACHE", &cache), b"").json();
    let repository = cache.join("models--owner--name");
    let path = repository.join("snapshots").join(COMMIT).join("m-Q8_0.gguf");
    let expected = serde_json::json!({
        "schema": "tinygpt.pull/1",
        "path": path,
        "repository": "owner/name",
        "revision": "refs/pr/1",
        "commit": COMMIT,
        "files": ["m-Q8_0.gguf"],
        "bytes": 1000,
    });
    assert_eq!(answer, expected);
    assert_eq!(fs::read_to_string(repository.join("refs/refs/pr/1")).unwrap(), COMMIT);
}

#[test]
fn without_a_terminal_each_file_is_a_line_and_quiet_is_quiet() {
    let Some(bench) = Bench::new(directory()) else { return };
    let answer = bench.pull(&["owner/name"]).ok();
    assert_eq!(answer.stderr.lines().count(), 6, "{}", answer.stderr);
    assert!(answer.stderr.contains("model-00001-of-00002.safetensors: 292.97 KiB\n"));
    assert_eq!(bench.pull(&["-q", "owner/name"]).ok().stderr, "");
}

#[test]
fn on_a_terminal_there_is_a_bar() {
    let Some(bench) = Bench::new(gguf()) else { return };
    bench.hub.fail(Faults { stall: Some(150_000), ..Faults::default() });
    let pull = bench.client(&["owner/name:Q4_K_M", "--timeout", "2"]);
    let words: Vec<_> = pull.get_args().map(|word| word.to_str().unwrap()).collect();
    let line = format!("{} {}", pull.get_program().to_str().unwrap(), words.join(" "));
    let mut script = Command::new("script");
    bench.home.settle(&mut script);
    script.args(["-qec", &line, "/dev/null"]).env("HF_ENDPOINT", &bench.hub.endpoint);
    let answer = finish(script.env("TERM", "xterm"), b"");
    assert_eq!(answer.code, i32::from(Exit::Deadline.code()), "{}", answer.stdout);
    assert!(answer.stdout.contains("146.48 KiB/390.62 KiB"), "{}", answer.stdout);
}
