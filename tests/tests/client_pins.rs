//! Pinned prompts, and prompts that the daemon warms by itself.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::thread;
use std::time::Duration;

use serde_json::Value;
use tinygpt_client::exit::Exit;
use tinygpt_tests::process::{Home, until};
use tinygpt_tests::prompts::long;

/// Of 300 tokens: nine blocks of 147,456 bytes, and a record.
const PROMPT: usize = 300;
/// A segment of that prompt, and its record.
const BYTES: u64 = 9 * 147_456 + 16_384 + 60_000;

fn json(home: &Home, arguments: &[&str]) -> Value {
    home.run(&[arguments, &["--json"]].concat()).json()
}

/// Another prompt for each number, which has nothing in common with the others.
fn prompt(number: u8) -> String {
    format!("{}{}", char::from(b'0' + number), long(PROMPT - 1))
}

fn warm(home: &Home, number: u8, flags: &[&str]) -> String {
    let words = ["warm", "--persist", "durable", "--prompt", &prompt(number)];
    home.run(&[&words[..], flags].concat()).ok().stdout.trim_end().to_owned()
}

fn verdict(home: &Home, number: u8) -> Value {
    let words = ["sample", "-n", "0", "--cache-policy", "read-only", "--prompt", &prompt(number)];
    json(home, &words)["verdict"].clone()
}

fn entry(home: &Home, key: &str) -> Value {
    let list = json(home, &["cache", "ls"]);
    let entries = list["entries"].as_array().unwrap();
    let found = entries.iter().find(|entry| entry["prompt_key"] == *key);
    found.unwrap_or_else(|| panic!("{key} is not in {list}")).clone()
}

/// Room for `prompts` prompts, in memory and on disk.
fn budgets(prompts: u64) -> [String; 2] {
    let bytes = prompts * BYTES;
    [format!("--cache-memory={bytes}"), format!("--cache-disk={bytes}")]
}

#[test]
fn a_pinned_prompt_outlasts_later_ones_and_the_daemon() {
    let home = Home::new();
    // A record is a twentieth of a prompt: the quota of records is for forty prompts.
    let budgets = budgets(30);
    let budgets = budgets.each_ref().map(String::as_str);
    let mut daemon = home.serve(&budgets);
    let key = warm(&home, 0, &[]);
    let pinned = json(&home, &["cache", "pin", &key[..12], "--for", "2h"]);
    assert_eq!(
        (&pinned["schema"], &pinned["durable"]),
        (&"tinygpt.cache.pin/1".into(), &true.into())
    );
    assert!(pinned["bytes"].as_u64().unwrap() > 9 * 147_456, "{pinned}");
    assert_eq!(entry(&home, &key)["pinned_until"], pinned["expires"]);
    let shorter = json(&home, &["cache", "pin", &key, "--for", "5"]);
    assert_eq!(shorter["expires"], pinned["expires"], "renewing never shortens");
    let table = home.run(&["cache", "ls"]).ok().stdout;
    assert!(table.contains(" 2h ") || table.contains(" 1h "), "{table}");
    assert!(daemon.terminate().success());

    let mut daemon = home.serve(&budgets);
    assert_eq!(entry(&home, &key)["pinned_until"], pinned["expires"]);
    for number in 1..40 {
        warm(&home, number, &[]);
    }
    assert_eq!(verdict(&home, 1), "COLD", "later prompts wanted the room");
    assert!(verdict(&home, 0).as_str().unwrap().starts_with("FULL_"));
    assert!(daemon.terminate().success());

    // What a file of pins cannot say is a loss, and no error.
    let path = home.path("cache/v1/pins.tgpin");
    fs::write(&path, "nothing that was ever written").unwrap();
    let _daemon = home.serve(&budgets);
    assert_eq!(entry(&home, &key)["pinned_until"], Value::Null);
    let log = fs::read_to_string(home.path("log")).unwrap();
    assert!(log.contains("all pins are lost") && !path.exists(), "{log}");
}

#[test]
fn what_is_pinned_in_memory_stays_there_without_a_disk() {
    let home = Home::new();
    let [memory, _] = budgets(6);
    let _daemon = home.serve(&["--no-persist", &memory]);
    let warm = |number: u8| {
        let answer = home.run(&["warm", "--prompt", &prompt(number)]).ok();
        answer.stdout.trim_end().to_owned()
    };
    let key = warm(0);
    let said = home.run(&["cache", "pin", &key]).ok().stdout;
    assert!(said.starts_with("pinned for 1h: ") && said.ends_with(", in memory only\n"), "{said}");
    (1..12).for_each(|number| _ = warm(number));
    assert_eq!((verdict(&home, 0), verdict(&home, 1)), ("FULL_MEMORY".into(), "COLD".into()));
    let _ = home.run(&["cache", "unpin", &key]).ok();
    (12..24).for_each(|number| _ = warm(number));
    assert_eq!(verdict(&home, 0), "COLD");
}

#[test]
fn pins_hold_half_of_a_budget_and_more_is_refused_with_the_numbers() {
    let home = Home::new();
    let [memory, _] = budgets(4);
    let _daemon = home.serve(&["--no-persist", &memory]);
    let warm = |number: u8, flags: &[&str]| {
        home.run(&[&["warm", "--prompt", &prompt(number)], flags].concat())
    };
    for number in 0..2 {
        let _ = warm(number, &["--pin", "10m"]).ok();
    }
    let refused = warm(2, &["--pin", "10m"]);
    refused.failed(Exit::Exhausted, "bytes of memory of the 2,806,976 that they may");
    assert_eq!(verdict(&home, 2), "FULL_MEMORY", "it is kept all the same");
    let list = json(&home, &["cache", "ls"]);
    let pinned = list["entries"].as_array().unwrap().iter();
    assert_eq!(pinned.filter(|entry| !entry["pinned_until"].is_null()).count(), 2);
}

#[test]
fn a_lease_ends_by_itself_and_a_removal_ends_it_and_says_so() {
    let home = Home::new();
    let _daemon = home.serve(&[]);
    let key = warm(&home, 0, &["--pin", "1s"]);
    until("over", || entry(&home, &key)["pinned_until"].is_null());
    let _ = home.run(&["cache", "pin", &key]).ok();
    let removed = home.run(&["cache", "rm", &key]).ok().stdout;
    assert!(removed.starts_with("removed 1 prompt, 9 blocks, 1 pin: "), "{removed}");
    let key = warm(&home, 0, &[]);
    assert_eq!(entry(&home, &key)["pinned_until"], Value::Null);
    home.run(&["cache", "pin", "0123456789ab"]).failed(Exit::NotFound, "no cached prompt");
    home.run(&["cache", "pin", &key, "--for", "31days"]).failed(Exit::Usage, "30 days");
}

#[test]
fn one_call_warms_and_pins_and_every_event_is_a_line() {
    let home = Home::new();
    let _daemon = home.serve(&[]);
    let words = ["warm", "--pin", "1h", "--json-stream", "--prompt", &long(900)];
    let lines = home.run(&words).ok().lines();
    let events: Vec<_> = lines.iter().map(|line| line["event"].as_str().unwrap()).collect();
    let (first, last) = (events[0], &events[events.len() - 2..]);
    assert_eq!((first, last), ("admitted", &["pinned", "done"][..]), "{events:?}");
    let between = &events[1..events.len() - 2];
    assert!(between.iter().all(|event| *event == "prefill_progress"), "{events:?}");
    let key = lines[lines.len() - 1]["prompt_key"].as_str().unwrap();
    assert_eq!(entry(&home, key)["pinned_until"], lines[lines.len() - 2]["expires"]);
    let again = json(&home, &["warm", "--pin", "2h", "--prompt", &long(900)]);
    assert_eq!(
        (&again["verdict"], &again["pinned"]["durable"]),
        (&"FULL_MEMORY".into(), &true.into())
    );
}

#[test]
fn what_the_configuration_names_is_warm_and_pinned_before_anyone_asks() {
    let home = Home::new();
    fs::create_dir(home.path("prompts")).unwrap();
    fs::write(home.path("prompts/system"), prompt(0)).unwrap();
    let config = r#"
        [[warm]]
        model = "builtin"
        prompt-file = "prompts/missing"

        [[warm]]
        prompt_file = "prompts/system"
        namespace = "tools"
        kv-dtype = "f32"
        pin = "2s"
    "#;
    fs::write(home.path("tinygptd.toml"), config).unwrap();
    let path = home.path("tinygptd.toml").display().to_string();
    let mut daemon = home.serve(&["--config", &path]);
    let words = ["--namespace", "tools", "--kv-dtype", "f32", "--prompt"];
    let explain = |number: u8| {
        let prompt = prompt(number);
        json(&home, &[&["cache", "explain"], &words[..], &[&prompt]].concat())
    };
    until("warm", || explain(0)["verdict"] == "FULL_MEMORY");
    let key = explain(0)["prompt_key"].as_str().unwrap().to_owned();
    until("pinned", || !entry(&home, &key)["pinned_until"].is_null());
    thread::sleep(Duration::from_secs(3));
    assert!(!entry(&home, &key)["pinned_until"].is_null(), "its lease is renewed");
    let log = fs::read_to_string(home.path("log")).unwrap();
    assert!(log.contains("prompts/missing") && log.contains("was not warmed"), "{log}");
    let mut printed = home.daemon();
    let printed = printed.args(["config", "--config", &path]).output().unwrap().stdout;
    let printed = String::from_utf8(printed).unwrap();
    let system = home.path("prompts/system").display().to_string();
    assert!(printed.contains("[[warm]]") && printed.contains(&system), "{printed}");
    assert!(daemon.terminate().success());

    fs::write(home.path("prompts/system"), prompt(1)).unwrap();
    let _daemon = home.serve(&["--config", &path]);
    until("warm", || explain(1)["verdict"].as_str().is_some_and(|v| v.starts_with("FULL_")));
}

#[test]
fn a_pinned_prompt_is_kept_in_memory_again_when_its_model_was_unloaded_and_loaded() {
    let home = Home::new();
    let budgets = budgets(30);
    let _daemon = home.serve(&budgets.each_ref().map(String::as_str));
    let key = warm(&home, 0, &["--pin", "1h"]);
    let pinned = entry(&home, &key)["pinned_until"].clone();
    let _ = home.run(&["models", "unload", "builtin"]).ok();
    assert_eq!(entry(&home, &key)["pinned_until"], pinned, "nobody has it in memory");
    assert_eq!(verdict(&home, 0), "FULL_DISK");
    // They want the memory of all records.
    (1..60).for_each(|number| _ = warm(&home, number, &[]));
    assert_eq!((verdict(&home, 0), verdict(&home, 1)), ("FULL_MEMORY".into(), "COLD".into()));
}
