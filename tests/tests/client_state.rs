//! The commands that look at the daemon and tend its cache.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tinygpt_client::connect::Connection;
use tinygpt_client::exit::Exit;
use tinygpt_proto::VERSION_HEADER;
use tinygpt_proto::v1::{CacheServiceGetRequest, StatusRequest};
use tinygpt_tests::process::{Home, Started, until};
use tinygpt_tests::prompts::long;

/// A home whose daemon has computed a prompt of so many bytes, and the prompt's key.
fn warmed(bytes: usize) -> (Home, Started, String) {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let key = home.run(&["warm", "--persist", "durable", "--prompt", &long(bytes)]).ok().stdout;
    (home, daemon, key.trim_end().to_owned())
}

fn json(home: &Home, arguments: &[&str]) -> Value {
    home.run(&[arguments, &["--json"]].concat()).json()
}

#[test]
fn status_tells_what_the_daemon_is_and_does() {
    let (home, daemon, _) = warmed(200);
    let status = json(&home, &["status"]);
    assert_eq!(status["schema"], "tinygpt.status/1");
    assert_eq!((&status["state"], &status["pid"]), (&json!("SERVING"), &json!(daemon.pid())));
    assert_eq!(status["socket"], home.socket().display().to_string());
    assert_eq!(status["cache_dir"], home.path("cache").display().to_string());
    assert_eq!(status["counters"]["prompt_tokens"], 200);
    let table = home.run(&["status"]).ok();
    assert!(table.stdout.starts_with("state "), "{}", table.stdout);
    assert!(
        table
            .stdout
            .lines()
            .any(|line| line.starts_with("version") && line.ends_with(env!("CARGO_PKG_VERSION")))
    );
    assert_eq!(table.stderr, "", "client and daemon are of one version");
}

#[test]
fn status_tells_when_the_cache_directory_is_not_there_any_more() {
    let (home, mut daemon, _) = warmed(200);
    fs::remove_dir_all(home.path("cache")).unwrap();
    for prompt in [long(300), long(400)] {
        let _ = home.run(&["warm", "--prompt", &prompt]).ok();
    }
    let warnings = || json(&home, &["status"])["warnings"].to_string();
    until("said to be gone", || warnings().contains("was moved, removed or replaced"));
    assert!(warnings().contains(&home.path("cache").display().to_string()));
    assert_eq!(daemon.terminate().code(), Some(0));
    let log = fs::read_to_string(home.path("log")).unwrap();
    let complaints = log.lines().filter(|line| line.contains("cache directory")).count();
    assert_eq!(complaints, 1, "{log}");
    assert!(!home.path("cache").exists());
}

#[test]
fn a_removal_that_finds_another_cache_directory_fails_and_forgets_what_memory_held() {
    let (home, _daemon, key) = warmed(300);
    let _ = home.run(&["warm", "--no-persist", "--prompt", &long(200)]).ok();
    fs::rename(home.path("cache"), home.path("away")).unwrap();
    for target in [&key[..], "--all"] {
        let answer = home.run(&["cache", "rm", target]);
        answer.failed(Exit::Refused, "is no longer this daemon's");
    }
    for prompt in [long(300), long(200)] {
        let cold = ["sample", "-n", "0", "--cache-policy", "read-only", "--prompt", &prompt];
        assert_eq!(json(&home, &cold)["verdict"], "COLD");
    }
    assert!(!home.path("cache").exists());
}

#[test]
fn status_tells_by_how_much_the_disk_is_too_full() {
    let home = Home::new();
    let _daemon = home.serve(&["--free-floor", "8388608TiB"]);
    let _ = home.run(&["warm", "--prompt", &long(200)]).ok();
    let warnings = || json(&home, &["status"])["warnings"].to_string();
    until("said to be full", || warnings().contains("the disk is full, "));
    assert!(warnings().contains("9223372036854775808 are to stay free"), "{}", warnings());
}

#[tokio::test]
async fn every_answer_tells_the_daemons_version() {
    let (home, _daemon, _) = warmed(64);
    let connection = Connection::open_path(&home.socket()).await.unwrap();
    let known = connection.admin().status(StatusRequest {}).await.unwrap();
    let unknown = connection.cache().get(CacheServiceGetRequest { key: "abcdef".into() }).await;
    for metadata in [known.metadata(), unknown.unwrap_err().metadata()] {
        assert_eq!(metadata.get(VERSION_HEADER).unwrap(), env!("CARGO_PKG_VERSION"));
    }
}

#[test]
fn models_tell_what_a_token_costs_and_would_cost_without_grouped_heads() {
    let (home, _daemon, _) = warmed(64);
    let models = json(&home, &["models"]);
    let builtin = &models["models"][0];
    assert_eq!((&builtin["name"], &builtin["default"]), (&json!("builtin"), &json!(true)));
    // 6 layers of 6 heads of 32 values, K and V, two bytes each.
    assert_eq!(builtin["kv_bytes_per_token"], 6 * 6 * 32 * 2 * 2);
    assert_eq!(builtin["kv_bytes_per_token_mha"], builtin["kv_bytes_per_token"]);
    assert_eq!(builtin["context"], 1024);
    assert_eq!(builtin["parameters"], 2_915_328);
    let table = home.run(&["models"]).ok().stdout;
    assert!(table.contains("builtin *") && table.contains("4,608 (1.0x)"), "{table}");
}

#[test]
fn text_goes_to_ids_and_back() {
    let (home, _daemon, _) = warmed(64);
    assert_eq!(home.run(&["tokenize", "-p", "ROMEO:"]).ok().stdout, "82,79,77,69,79,58\n");
    assert_eq!(json(&home, &["tokenize", "--prompt", "AB"])["token_ids"], json!([65, 66]));
    fs::write(home.path("t"), "\u{e9}").unwrap();
    let file = home.path("t").display().to_string();
    assert_eq!(home.run(&["tokenize", "--prompt-file", &file]).ok().stdout, "195,169\n");
    assert_eq!(home.pipe(&["tokenize"], "\u{e9}".as_bytes()).ok().stdout, "195,169\n");
    assert_eq!(home.run(&["detokenize", "--token-ids", "195,169,10"]).ok().stdout, "\u{e9}\n");
    assert_eq!(home.pipe(&["detokenize"], b"72, 105\n").ok().stdout, "Hi");
}

#[test]
fn a_cached_prompt_is_listed_shown_and_found_by_the_beginning_of_its_key() {
    let (home, _daemon, key) = warmed(300);
    let list = json(&home, &["cache", "ls"]);
    let entry =
        list["entries"].as_array().unwrap().iter().find(|entry| entry["prompt_key"] == *key);
    let entry = entry.unwrap_or_else(|| panic!("{key} is not in {list}"));
    assert_eq!((&entry["tokens"], &entry["record"]), (&json!(300), &json!(true)));
    assert_eq!((&entry["model"], &entry["kv_dtype"]), (&json!("builtin"), &json!("f16")));
    let preview = entry["preview"].as_str().unwrap();
    assert!(long(300).replace('\n', " ").starts_with(preview) && preview.len() >= 40, "{entry}");
    let table = home.run(&["cache", "ls"]).ok().stdout;
    assert!(table.starts_with("KEY") && table.contains(&key[..12]), "{table}");
    let shown = json(&home, &["cache", "show", &key[..10]]);
    assert_eq!(shown["entry"]["prompt_key"], *key);
    assert_eq!(shown["text"], long(300));
    assert_eq!(shown["token_ids"].as_array().unwrap().len(), 300);
    assert_eq!(shown["blocks"].as_array().unwrap().len(), 300 / 32);
    let table = home.run(&["cache", "show", &key]).ok().stdout;
    assert!(table.contains("9 of 9 blocks"), "{table}");
}

#[test]
fn a_list_tells_memory_of_the_daemon_from_what_it_reads_in_its_files() {
    let home = Home::new();
    let mut daemon = home.serve(&[]);
    let warm = |when| home.run(&["warm", "--persist", when, "--prompt", &long(300)]).ok();
    let sizes = || {
        let list = json(&home, &["cache", "ls"]);
        let [entry] = list["entries"].as_array().unwrap().as_slice() else { panic!("{list}") };
        ["memory_bytes", "mapped_bytes", "disk_bytes"].map(|name| entry[name].as_u64().unwrap())
    };
    let blocks = 9 * 32 * 4_608;
    let _ = warm("no");
    let [memory, mapped, disk] = sizes();
    assert!(memory >= blocks && (mapped, disk) == (0, 0), "{memory} {mapped} {disk}");
    let _ = warm("durable");
    assert!(sizes()[2] >= blocks, "{:?}", sizes());
    assert!(daemon.terminate().success());
    let _next = home.serve(&[]);
    let [memory, mapped, disk] = sizes();
    assert!((memory, mapped) == (0, 0) && disk >= blocks, "{memory} {mapped} {disk}");
    let _ = warm("durable");
    let [memory, mapped, disk] = sizes();
    assert!(memory < blocks && mapped == blocks && disk >= blocks, "{memory} {mapped} {disk}");
}

#[test]
fn an_empty_cache_is_listed_as_such() {
    let home = Home::new();
    let _daemon = home.serve(&[]);
    let list = home.run(&["cache", "ls"]).ok();
    assert_eq!(list.stderr, "nothing is cached\n");
    let columns: Vec<_> = list.stdout.split_whitespace().collect();
    let expected =
        "KEY MODEL TOKENS KV MEMORY MAPPED DISK RECORD PINNED USED BEGINS".split_whitespace();
    assert!(columns.into_iter().eq(expected), "{}", list.stdout);
    let removed = home.run(&["cache", "rm", "--all"]).ok().stdout;
    assert!(removed.starts_with("removed 0 prompts, 0 blocks: "), "{removed}");
}

#[test]
fn explain_tells_what_would_be_reused_and_computes_nothing() {
    let home = Home::new();
    let _daemon = home.serve(&[]);
    let key = home.run(&["warm", "--no-persist", "--prompt", &long(300)]).ok().stdout;
    let key = key.trim_end();
    let explain = |prompt: &str| json(&home, &["cache", "explain", "--prompt", prompt]);
    let hit = explain(&long(300));
    assert_eq!((&hit["verdict"], &hit["prompt_key"]), (&json!("FULL_MEMORY"), &json!(key)));
    let mut edited = long(300);
    edited.replace_range(200..201, "#");
    let parted = explain(&edited);
    assert_eq!(
        (&parted["verdict"], &parted["reason"]),
        (&json!("PARTIAL_MEMORY"), &json!("DIVERGED"))
    );
    assert_eq!(parted["divergence"]["token_index"], 200);
    let foreign = explain(&"something else entirely ".repeat(9));
    assert_eq!((&foreign["verdict"], &foreign["reason"]), (&json!("COLD"), &json!("NO_ENTRY")));
    let words = home.run(&["cache", "explain", "--prompt", &edited]).ok().stdout;
    assert!(words.contains("parts from a cached prompt at token 200"), "{words}");
    assert_eq!(json(&home, &["status"])["counters"]["prompt_tokens"], 300, "only the warm-up ran");
}

#[test]
fn what_is_removed_is_gone_from_memory_and_disk() {
    let (home, mut daemon, key) = warmed(300);
    let removed = json(&home, &["cache", "rm", &key[..12]]);
    assert_eq!(removed["blocks"], 300 / 32, "{removed}");
    let cold =
        json(&home, &["sample", "-n", "0", "--cache-policy", "read-only", "--prompt", &long(300)]);
    assert_eq!(cold["verdict"], "COLD");
    let _ = home.run(&["warm", "--persist", "durable", "--prompt", &long(400)]).ok();
    let words = home.run(&["cache", "rm", "--all"]).ok().stdout;
    assert!(words.starts_with("removed 1 prompt, 12 blocks: "), "{words}");
    assert!(daemon.terminate().success());
    let _next = home.serve(&[]);
    assert_eq!(json(&home, &["cache", "ls"])["entries"], json!([]));
    let cold = json(&home, &["sample", "-n", "0", "--prompt", &long(400)]);
    assert_eq!((&cold["verdict"], &cold["reason"]), (&json!("COLD"), &json!("NO_ENTRY")));
}

#[test]
fn sums_checks_and_cleaning_are_told() {
    let (home, _daemon, _) = warmed(300);
    let stats = json(&home, &["cache", "stats"]);
    assert_eq!(stats["blocks"], 300 / 32);
    assert_eq!((&stats["records"], &stats["prompt_tokens"]), (&json!(1), &json!(300)));
    assert!(stats["disk"]["used"].as_u64().unwrap() > 9 * 32 * 4_608, "{stats}");
    let sound = json(&home, &["cache", "verify"]);
    assert!(sound["segments"].as_u64().unwrap() >= 1 && sound["records"] == 1, "{sound}");
    let unfinished = files(&home, "tgkv")[0].with_extension("tmp");
    fs::write(unfinished, "left by a writer that was killed").unwrap();
    let freed = json(&home, &["cache", "gc"]);
    assert_eq!(freed["files"], 1, "{freed}");
    for command in [&["cache", "stats"][..], &["cache", "verify"], &["cache", "gc"]] {
        assert!(!home.run(command).ok().stdout.is_empty());
    }
}

#[test]
fn a_damaged_file_is_found_and_has_its_own_exit_code() {
    let (home, mut daemon, _) = warmed(300);
    assert!(daemon.terminate().success());
    let segment = files(&home, "tgkv").pop().unwrap();
    let mut bytes = fs::read(&segment).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&segment, bytes).unwrap();
    let _next = home.serve(&[]);
    let name = segment.file_name().unwrap().to_str().unwrap();
    home.run(&["cache", "verify"]).failed(Exit::DataLoss, name);
}

/// Files with an extension anywhere in the cache directory.
fn files(home: &Home, extension: &str) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![home.path("cache")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|found| found == extension) {
                found.push(path);
            }
        }
    }
    found
}

#[test]
fn waiting_ends_when_the_daemon_serves_or_time_is_up() {
    let home = Home::new();
    home.run(&["wait", "--timeout", "0.1"]).failed(Exit::NoDaemon, "no daemon answers");
    let mut command = home.daemon();
    let _daemon = thread::scope(|scope| {
        let waiting = scope.spawn(|| home.run(&["wait", "--ready", "--json"]).json());
        thread::sleep(Duration::from_millis(100));
        let daemon = Started::new(&mut command);
        let answer = waiting.join().unwrap();
        assert!(answer["waited_ms"].as_f64().unwrap() >= 50.0, "{answer}");
        daemon
    });
    assert_eq!(json(&home, &["status"])["state"], "SERVING");
}

#[test]
fn the_doctor_finds_nothing_wrong_with_a_sound_daemon_and_much_without_one() {
    let (home, mut daemon, _) = warmed(64);
    let checks = json(&home, &["doctor"]);
    for check in checks["checks"].as_array().unwrap() {
        assert_ne!(check["state"], "FAIL", "{check}");
    }
    daemon.kill();
    let answer = home.run(&["doctor"]);
    assert_eq!(answer.code, i32::from(Exit::Failed.code()));
    assert!(answer.stdout.contains("FAIL  daemon"), "{}", answer.stdout);
    assert!(answer.stdout.contains("Connection refused"), "{}", answer.stdout);
}

#[test]
fn completions_and_the_manual_pages_are_made_without_a_daemon() {
    let home = Home::new();
    for shell in ["bash", "zsh", "fish"] {
        assert!(home.run(&["completions", shell]).ok().stdout.contains("explain"), "{shell}");
    }
    let _ = home.run(&["man", &home.path("").display().to_string()]).ok();
    let page = fs::read_to_string(home.path("tinygpt-client-cache-ls.1")).unwrap();
    assert!(page.contains(".TH tinygpt-client-cache-ls 1"), "{page}");
}
