//! How the daemon ends, and that two of them never share what belongs to one.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

use tinygpt_tests::process::{Home, Started, ended, until};

#[tokio::test]
async fn asked_to_end_it_ends_with_0_and_takes_its_socket_along() {
    let home = Home::new();
    let mut daemon = Started::new(&mut home.daemon());
    home.await_serving().await;
    assert_eq!(fs::metadata(home.socket()).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(daemon.terminate().code(), Some(0));
    assert!(!home.socket().exists());
}

#[tokio::test]
async fn killed_it_leaves_nothing_that_stops_the_next() {
    let home = Home::new();
    let mut daemon = Started::new(&mut home.daemon());
    home.await_serving().await;
    daemon.kill();
    assert!(home.socket().exists());
    let _next = Started::new(&mut home.daemon());
    home.await_serving().await;
}

#[tokio::test]
async fn a_second_daemon_ends_with_75_and_names_the_first() {
    let home = Home::new();
    let first = Started::new(&mut home.daemon());
    home.await_serving().await;
    let same_socket = ended(home.daemon().arg("--no-persist"));
    let same_cache = ended(&mut home.daemon_on(&home.path("other")));
    for (code, said) in [same_socket, same_cache] {
        assert_eq!(code, 75, "{said}");
        assert!(said.contains(&first.pid().to_string()), "{said}");
        assert!(said.contains(&home.socket().display().to_string()), "{said}");
    }
    home.await_serving().await;
}

#[test]
fn a_socket_path_that_is_too_long_ends_with_64_and_both_numbers() {
    let home = Home::new();
    let path = home.path(&"s".repeat(200));
    let (code, said) = ended(&mut home.daemon_on(&path));
    assert_eq!(code, 64, "{said}");
    assert!(said.contains(&format!("is {} bytes long", path.as_os_str().len())), "{said}");
    assert!(said.contains("allows 107") || said.contains("allows 103"), "{said}");
}

#[test]
fn what_cannot_be_created_ends_with_73_and_its_name() {
    let home = Home::new();
    fs::write(home.path("cache"), "a file").unwrap();
    fs::write(home.path("taken"), "a file").unwrap();
    let cases =
        [(home.socket(), "cache"), (home.path("taken"), "taken"), (home.path("cache/s"), "cache")];
    for (socket, name) in cases {
        let (code, said) = ended(&mut home.daemon_on(&socket));
        assert_eq!(code, 73, "{said}");
        assert!(said.contains(&home.path(name).display().to_string()), "{said}");
    }
}

#[test]
fn what_only_the_user_can_mend_ends_with_64_and_its_name() {
    let home = Home::new();
    fs::write(home.path("t.toml"), "cache-disc = \"1GiB\"").unwrap();
    let file = home.path("t.toml").display().to_string();
    let cases = [
        (["--config", &file], "cache-disc"),
        (["--threads", "0"], "--threads"),
        (["--log", "tinygptd=loud"], "tinygptd=loud"),
        (["--log", ""], "it is empty"),
    ];
    for (arguments, word) in cases {
        let (code, said) = ended(home.daemon().args(arguments));
        assert_eq!(code, 64, "{said}");
        assert!(said.contains(word), "{said}");
    }
}

#[test]
fn a_model_that_cannot_be_loaded_ends_with_69_and_its_name() {
    let home = Home::new();
    fs::write(home.path("m.gguf"), "not a model").unwrap();
    for model in ["m.gguf", "missing.gguf"] {
        let (code, said) = ended(home.daemon().arg("--model").arg(home.path(model)));
        assert_eq!(code, 69, "{said}");
        assert!(said.contains(model), "{said}");
    }
    let (code, said) = ended(home.daemon().args(["--model", "/dev/zero"]));
    assert!(code == 69 && said.contains("/dev/zero"), "{said}");
    assert!(said.contains("not a regular file"), "{said}");
}

/// A model whose file is sound but for what it says of its tokenizer.
#[test]
fn a_model_whose_tokenizer_cannot_be_built_ends_with_69_and_its_name() {
    let home = Home::new();
    let sound = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/gguf/llama3rope-Q4_1.gguf");
    for (truth, lie, why) in
        [("llama-bpe", "llama-zzz", "llama-zzz"), ("sha ll", "sha+ll", "is not two tokens")]
    {
        fs::write(home.path("lying.gguf"), replaced(&fs::read(sound).unwrap(), truth, lie))
            .unwrap();
        let (code, said) = ended(home.daemon().arg("--model").arg(home.path("lying.gguf")));
        assert_eq!(code, 69, "{said}");
        assert!(said.contains("lying.gguf") && said.contains(why), "{said}");
    }
}

/// The first `old` in `bytes` made `new`, which is as long.
fn replaced(bytes: &[u8], old: &str, new: &str) -> Vec<u8> {
    let at = bytes.windows(old.len()).position(|window| window == old.as_bytes()).unwrap();
    let mut bytes = bytes.to_vec();
    bytes[at..at + new.len()].copy_from_slice(new.as_bytes());
    bytes
}

#[test]
fn a_model_that_is_never_read_to_its_end_keeps_no_daemon_from_ending() {
    let home = Home::new();
    let pipe = home.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let slow = format!("slow={}", pipe.display());
    let mut daemon = Started::new(home.daemon().args(["--grace", "1s", "--model", &slow]));
    until("it answers", || home.run(&["status"]).code == 0);
    let asked = Instant::now();
    assert_eq!(daemon.terminate().code(), Some(0));
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
}
