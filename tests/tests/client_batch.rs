//! `sample --batch`: JSON lines in, JSON lines out.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use serde_json::{Value, json};
use tinygpt_client::exit::Exit;
use tinygpt_tests::process::Home;
use tinygpt_tests::prompts::verse;

const BATCH: [&str; 8] = ["sample", "--temperature", "0", "-n", "8", "--jobs", "3", "--batch"];

#[test]
fn answers_come_in_the_order_of_the_lines() {
    let home = Home::new();
    let _daemon = home.serve(&[]);
    let lines: Vec<_> = (0..12)
        // The first of them takes the longest.
        .map(|n| json!({ "id": format!("line {n}"), "prompt": verse(n), "max_tokens": 40 - 3 * n }))
        .collect();
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    fs::write(home.path("b.jsonl"), text).unwrap();
    let file = home.path("b.jsonl").display().to_string();
    let answers = home.run(&[&BATCH[..], &[&file]].concat()).ok().lines();
    assert_eq!(answers.len(), 12);
    for (n, answer) in answers.iter().enumerate() {
        assert_eq!((&answer["index"], &answer["id"]), (&json!(n), &lines[n]["id"]));
        assert_eq!(answer["usage"]["completion_tokens"], 40 - 3 * n);
        let alone = ["sample", "--json", "--temperature", "0", "-n", "4", "--prompt", &verse(n)];
        let alone = home.run(&alone).json();
        let text = answer["text"].as_str().unwrap();
        assert!(text.starts_with(alone["text"].as_str().unwrap()), "{n}: {answer}");
    }
}

#[test]
fn a_bad_line_is_answered_where_it_stands_and_stops_nothing() {
    let home = Home::new();
    let _daemon = home.serve(&[]);
    let input = b"{\"prompt\": \"a\"}\n\
        not json\n\
        \n\
        {\"id\": 7, \"prompt\": \"a\", \"temperature\": -1}\n\
        {\"id\": 8, \"prompt\": \"a\", \"temprature\": 1}\n\
        {\"prompt\": \"a\", \"token_ids\": [1]}\n\
        {\"prompt\": \"a\", \"model\": \"none\"}\n\
        \xff\n\
        {\"id\": 9, \"prompt\": 3}\n\
        {\"prompt\": \"a\", \"stop\": \"x\"}\n\
        {\"token_ids\": [97]}";
    let answer = home.pipe(&[&BATCH[..], &["-"]].concat(), input);
    assert_eq!(answer.code, i32::from(Exit::Partial.code()), "{}", answer.stderr);
    let answers = answer.lines();
    let codes: Vec<_> = answers.iter().map(|answer| answer["error"]["code"].as_str()).collect();
    let (invalid, unknown) = (Some("INVALID_ARGUMENT"), Some("NOT_FOUND"));
    let expected =
        [None, invalid, invalid, invalid, invalid, unknown, invalid, invalid, invalid, None];
    assert_eq!(codes, expected);
    let indices: Vec<_> = answers.iter().map(|answer| answer["index"].as_u64().unwrap()).collect();
    assert_eq!(indices, [0, 1, 3, 4, 5, 6, 7, 8, 9, 10], "the blank line counts");
    assert_eq!(answers[2]["error"]["reason"], "OUT_OF_RANGE");
    for (at, id) in [(2, 7), (3, 8), (7, 9)] {
        assert_eq!(answers[at]["id"], id);
    }
    for (at, words) in [
        (1, "at column 2"),
        (3, "temprature: unknown field"),
        (7, "prompt: invalid type: integer `3`, expected a string"),
        (8, "stop: invalid type: string \"x\", expected a sequence"),
    ] {
        let message = answers[at]["error"]["message"].as_str().unwrap();
        assert!(message.contains(words), "{message}");
        assert!(!message.contains("line 1"), "{message}");
    }
    assert_eq!(answers[0]["text"], answers[9]["text"]);
}

#[test]
fn more_jobs_than_the_queue_holds_are_all_done() {
    let home = Home::new();
    // Room for one request that runs, and for one that waits.
    let _daemon = home.serve(&["--queue", "1", "--active-memory", "900KB"]);
    let line = json!({ "prompt": verse(0), "max_tokens": 100 }).to_string();
    let input = [&*line; 6].join("\n");
    let batch = ["sample", "--temperature", "0", "--jobs", "6", "--batch", "-"];
    let answers = home.pipe(&batch, input.as_bytes()).ok().lines();
    assert_eq!(answers.len(), 6);
    for answer in &answers {
        assert_eq!(answer["text"], answers[0]["text"]);
    }
}

#[test]
fn a_line_that_never_ends_ends_the_batch_with_the_number() {
    let home = Home::new();
    let _daemon = home.serve(&[]);
    let answer = home.run(&["sample", "--batch", "/dev/zero"]);
    answer.failed(Exit::Usage, "cannot read /dev/zero: a line has more than 67,108,864 bytes");
}

#[test]
fn an_answer_does_not_wait_for_the_next_line() {
    let home = Home::new();
    let _daemon = home.serve(&[]);
    let mut command = home.client();
    command.args(BATCH).arg("-").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut client = command.spawn().unwrap();
    let mut input = client.stdin.take().unwrap();
    let mut output = BufReader::new(client.stdout.take().unwrap()).lines();
    for n in 0..3 {
        writeln!(input, "{}", json!({ "prompt": verse(n) })).unwrap();
        let answer: Value = serde_json::from_str(&output.next().unwrap().unwrap()).unwrap();
        assert_eq!(answer["index"], n);
    }
    drop(input);
    assert!(client.wait().unwrap().success());
    assert!(output.next().is_none());
}
