//! What the daemon's commands print, and what becomes of it when nobody can take it.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs::{self, File};
use std::process::{Command, Stdio};

use tinygpt_tests::client::tinygpt_client;
use tinygpt_tests::process::{Home, Started, tinygptd};

/// Everything that exists to print.
const PRINTING: [&[&str]; 5] =
    [&["config"], &["print-plist"], &["completions", "bash"], &["--help"], &["--version"]];

/// How a command ends that prints to `stdout`: its exit code, and what it wrote to stderr.
fn printing(home: &Home, words: &[&str], stdout: impl Into<Stdio>) -> (i32, String) {
    let mut command = Command::new(tinygptd());
    home.settle(&mut command);
    let output = command.args(words).stdout(stdout).stderr(Stdio::piped()).output().unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

/// Both programs, with the commands that have pages.
#[test]
fn every_page_that_a_manual_page_points_to_is_written() {
    let pages = tempfile::tempdir().unwrap();
    for program in [tinygptd(), tinygpt_client()] {
        let written = Command::new(program).arg("man").arg(pages.path()).status().unwrap();
        assert!(written.success());
    }
    let names: Vec<_> = fs::read_dir(pages.path()).unwrap().map(|p| p.unwrap().path()).collect();
    assert!(names.len() > 10, "{names:?}");
    for page in names {
        let text = fs::read_to_string(&page).unwrap().replace("\\-", "-");
        let words = text.split_whitespace();
        for word in words.filter_map(|word| word.strip_suffix("(1)")) {
            let target = pages.path().join(format!("{word}.1"));
            assert!(target.exists(), "{} points to {word}(1)", page.display());
        }
    }
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
