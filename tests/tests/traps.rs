//! `docs/traps.md` names the tests that hold the daemon to its words: they must exist.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// The tests named in a line, each with the file that is named before it.
fn named(line: &str) -> Vec<(&str, &str)> {
    let mut file = None;
    let mut tests = Vec::new();
    for span in line.split('`').skip(1).step_by(2) {
        let is_file = [".rs", ".py", ".mjs"].iter().any(|end| span.ends_with(end));
        match file {
            _ if is_file => file = Some(span),
            Some(file) if is_test(file, span) => tests.push((file, span)),
            _ => {}
        }
    }
    tests
}

/// Tests in JavaScript are named in words.
fn is_test(file: &str, span: &str) -> bool {
    let word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    match file.ends_with(".mjs") {
        true => span.contains(' '),
        false => span.contains('_') && span.chars().all(word),
    }
}

fn exists(file: &str, test: &str) -> bool {
    let source = fs::read_to_string(root().join(file)).unwrap_or_default();
    match file.rsplit('.').next() {
        Some("rs") => source.contains(&format!("fn {test}(")),
        Some("py") => source.contains(&format!("def {test}(")),
        _ => source.contains(&format!("\"{test}\"")),
    }
}

#[test]
fn every_test_that_the_traps_name_exists() {
    let page = fs::read_to_string(root().join("docs/traps.md")).unwrap();
    let tests: Vec<_> = page.lines().flat_map(named).collect();
    assert!(tests.len() > 100, "{}", tests.len());
    let missing: Vec<_> = tests.into_iter().filter(|(file, test)| !exists(file, test)).collect();
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn a_line_is_read_file_by_file() {
    let line = "| a `b_c` | `x/y.rs`: `one_two`, `UNKNOWN`; `z.mjs`: `in words`, `--flag` |";
    assert_eq!(named(line), [("x/y.rs", "one_two"), ("z.mjs", "in words")]);
}
