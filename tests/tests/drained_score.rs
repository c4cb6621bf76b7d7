//! A score that the daemon's end cuts short is an error, not a shorter answer.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::process::Stdio;

use tinygpt_tests::process::{Home, until};
use tinygpt_tests::seeded::Shape;

#[test]
fn a_score_that_is_cut_short_is_refused() {
    let home = Home::new();
    let file = home.path("slow.tinygpt");
    Shape::new(16, 8, 512, 1100).write(&file).unwrap();
    let mut daemon = home.serve(&["--grace", "1ms", "--model", file.to_str().unwrap()]);
    let ids = vec!["65"; 1000].join(",");
    let mut command = home.client();
    command.args(["score", "--token-ids", &ids, "--logprobs", "1", "--json"]);
    let score = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until("the score to run", || {
        home.run(&["status", "--json"]).json()["running"].as_u64().unwrap() > 0
    });
    daemon.terminate();
    let output = score.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("DRAINING"), "{said}");
    assert!(output.stdout.is_empty());
}
