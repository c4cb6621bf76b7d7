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
        {\"token_ids\": [97]}";
    let answer = home.pipe(&[&BATCH[..], &["-"]].concat(), input);
    assert_eq!(answer.code, i32::from(Exit::Partial.code()), "{}", answer.stderr);
    let answers = answer.lines();
    let codes: Vec<_> = answers.iter().map(|answer| answer["error"]["code"].as_str()).collect();
    let invalid = Some("INVALID_ARGUMENT");
    assert_eq!(codes, [None, invalid, invalid, invalid, invalid, Some("NOT_FOUND"), invalid, None]);
    assert_eq!(answers[2]["error"]["reason"], "OUT_OF_RANGE");
    assert_eq!((&answers[2]["id"], &answers[3]["id"]), (&json!(7), &json!(8)));
    assert!(answers[3]["error"]["message"].as_str().unwrap().contains("temprature"));
    assert_eq!(answers[0]["text"], answers[7]["text"]);
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
