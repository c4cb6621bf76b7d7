//! What the daemon's commands print, and what becomes of it when nobody can take it.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs::File;
use std::process::{Command, Stdio};

use tinygpt_tests::process::{Home, Started, tinygptd};

/// Everything that exists to print.
const PRINTING: [&[&str]; 6] = [
    &["config"],
    &["print-plist"],
    &["man"],
    &["completions", "bash"],
    &["--help"],
    &["--version"],
];

/// How a command ends that prints to `stdout`: its exit code, and what it wrote to stderr.
fn printing(home: &Home, words: &[&str], stdout: impl Into<Stdio>) -> (i32, String) {
    let mut command = Command::new(tinygptd());
    home.settle(&mut command);
    let output = command.args(words).stdout(stdout).stderr(Stdio::piped()).output().unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

fn full() -> File {
    File::options().write(true).open("/dev/full").unwrap()
}

#[test]
fn what_cannot_be_written_ends_with_74_and_the_reason() {
    for words in PRINTING {
        let (code, said) = printing(&Home::new(), words, full());
        assert_eq!(code, 74, "{words:?}: {said}");
        assert!(said.contains("cannot write to standard output: No space left"), "{said}");
    }
}

#[test]
fn a_reader_that_has_gone_is_a_quiet_end() {
    for words in PRINTING {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        assert_eq!(printing(&Home::new(), words, writer), (0, String::new()), "{words:?}");
    }
}

#[tokio::test]
async fn a_log_that_cannot_be_written_stops_nobody() {
    let home = Home::new();
    let mut daemon = Started::new(home.daemon().stderr(full()));
    home.await_serving().await;
    assert_eq!(daemon.terminate().code(), Some(0));
    let mistake = home.daemon().arg("--threads=0").stderr(full()).status().unwrap();
    assert_eq!(mistake.code(), Some(64));
}
