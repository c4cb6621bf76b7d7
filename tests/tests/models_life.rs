//! Models come when they are asked for and go when they are not needed: over real daemons.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tinygpt_client::exit::Exit;
use tinygpt_tests::process::{Home, Started, until};
use tinygpt_tests::prompts;
use tinygpt_tests::seeded::Shape;

/// Some 38 MB of weights.
const WIDE: Shape = Shape::new(3, 4, 512, 512);

/// About as many, in smaller pieces: each thread that reads them may keep the memory of one.
const DEEP: Shape = Shape::new(24, 4, 256, 512);

/// What `models` says of the one called `name`.
fn model(home: &Home, name: &str) -> Option<Value> {
    let listed = home.run(&["models", "--served", "--json"]).json();
    let mut models = listed["models"].as_array().unwrap().iter();
    models.find(|model| model["name"] == name).cloned()
}

fn state(home: &Home, name: &str) -> String {
    model(home, name).unwrap()["state"].as_str().unwrap().to_owned()
}

/// Writes a model and gives its path.
fn written(home: &Home, name: &str, shape: Shape) -> String {
    let path = home.path(name);
    shape.write(&path).unwrap();
    path.display().to_string()
}

/// The words for a greedy sample from a model.
fn greedy<'a>(model: &'a str, prompt: &'a str) -> [&'a str; 10] {
    ["sample", "--json", "-n", "4", "--temperature", "0", "-m", model, "--prompt", prompt]
}

fn sample(home: &Home, model: &str, prompt: &str) -> Value {
    home.run(&greedy(model, prompt)).json()
}

#[test]
fn only_the_first_model_is_loaded_at_the_start_and_another_when_it_is_asked() {
    let home = Home::new();
    let [first, second] = ["a.tinygpt", "b.tinygpt"].map(|name| written(&home, name, Shape::TINY));
    let _daemon = home.serve(&["--model", &first, "--model", &second]);
    let told = model(&home, "b").unwrap();
    assert_eq!((&told["state"], &told["path"]), (&"UNLOADED".into(), &second.clone().into()));
    assert_eq!((&told["layers"], &told["weight_bytes"]), (&0.into(), &0.into()), "{told}");
    assert_eq!(state(&home, "a"), "READY");
    assert_eq!(state(&home, "builtin"), "UNLOADED");
    assert_eq!(home.run(&["status", "--json"]).json()["state"], "SERVING");

    assert_eq!(sample(&home, "b", "x")["model"], "b");
    assert_eq!(state(&home, "b"), "READY");
    assert_eq!(state(&home, "builtin"), "UNLOADED", "nobody asked for it");
    let loaded = model(&home, "b").unwrap();
    assert!(loaded["layers"] == 4 && loaded["weight_bytes"].as_u64().unwrap() > 0, "{loaded}");
}

#[test]
fn a_second_model_that_cannot_be_read_is_refused_until_its_file_changes() {
    let home = Home::new();
    fs::write(home.path("bad.tinygpt"), "no model").unwrap();
    let path = home.path("bad.tinygpt").display().to_string();
    let _daemon = home.serve(&["--model", "builtin", "--model", &path]);
    home.run(&greedy("bad", "x")).failed(Exit::Refused, "bad.tinygpt");
    assert_eq!(state(&home, "bad"), "FAILED");
    let _ = home.run(&["wait", "--ready", "--timeout", "5s"]).ok();
    assert_eq!(sample(&home, "builtin", "x")["model"], "builtin", "the others serve");
    Shape::TINY.write(&home.path("bad.tinygpt")).unwrap();
    until("tried again", || state(&home, "bad") == "UNLOADED");
    assert_eq!(sample(&home, "bad", "x")["model"], "bad");
}

/// A model that is read from a pipe loads until somebody has written there.
#[test]
fn whoever_waits_for_a_model_is_told_so() {
    let home = Home::new();
    let pipe = home.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let slow = format!("slow={}", pipe.display());
    let _daemon = home.serve(&["--model", "builtin", "--model", &slow]);
    let asked = Instant::now();
    let words = [&greedy("slow", "x")[..], &["--timeout", "3s"]].concat();
    let answer = home.run(&words);
    assert!(answer.stderr.contains("model slow is being loaded"), "{}", answer.stderr);
    assert_eq!(answer.code, i32::from(Exit::Deadline.code()), "{}", answer.stderr);
    assert!(asked.elapsed() < Duration::from_secs(20));
    assert_eq!(state(&home, "slow"), "LOADING");
    assert_eq!(sample(&home, "builtin", "x")["model"], "builtin", "it holds nobody up");
}

#[test]
fn an_unloaded_model_gives_its_memory_back_and_finds_its_blocks_again() {
    let home = Home::new();
    let path = written(&home, "wide.tinygpt", WIDE);
    let daemon = home.serve(&["--model", "builtin", "--model", &path]);
    let empty = anonymous(&daemon);
    let prompt = prompts::long(200);
    let durable = [&greedy("wide", &prompt)[..], &["--persist", "durable"]].concat();
    let cold = home.run(&durable).json();
    assert_eq!(cold["verdict"], "COLD");
    let weights = model(&home, "wide").unwrap()["weight_bytes"].as_u64().unwrap();
    let full = anonymous(&daemon);
    assert!(weights > 15_000_000 && full > empty + weights / 10 * 9, "{empty} {full} {weights}");

    let _ = home.run(&["models", "unload", "wide"]).ok();
    let told = model(&home, "wide").unwrap();
    assert_eq!((&told["state"], &told["weight_bytes"]), (&"UNLOADED".into(), &0.into()));
    assert_eq!(told["layers"], 3, "it is known by now");
    // The heap keeps pieces that lie between others.
    until("its memory is back", || anonymous(&daemon) < empty + weights / 4);
    let listed = home.run(&["cache", "ls", "--json"]).json();
    assert_eq!(listed["entries"][0]["model"], "wide", "{listed}");

    let again = sample(&home, "wide", &prompt);
    assert_eq!((&again["verdict"], &again["text"]), (&"FULL_DISK".into(), &cold["text"]));
}

/// Resident bytes that no file backs.
fn anonymous(daemon: &Started) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn unloading_lets_running_requests_end_and_the_default_model_comes_back() {
    let home = Home::new();
    let path = written(&home, "long.tinygpt", Shape::new(6, 6, 192, 2048));
    let _daemon = home.serve(&["--model", &path]);
    let words = ["sample", "-n", "600", "--temperature", "0", "--json", "--prompt", "x"];
    let mut running = home.client();
    let running =
        thread::spawn(move || tinygpt_tests::client::finish(running.args(words), b"").json());
    until("it runs", || home.run(&["status", "--json"]).json()["running"] == 1);
    let _ = home.run(&["models", "unload", "long"]).ok();
    let generated = running.join().unwrap();
    assert_eq!(generated["usage"]["completion_tokens"], 600, "{generated}");
    assert_eq!(state(&home, "long"), "UNLOADED");
    let _ = home.run(&["wait", "--ready", "--timeout", "5s"]).ok();
    assert_eq!(sample(&home, "", "x")["model"], "long");
}

#[test]
fn a_model_is_loaded_from_a_path_while_the_daemon_runs() {
    let home = Home::new();
    let path = written(&home, "new.tinygpt", Shape::TINY);
    let _daemon = home.serve(&[]);
    let loaded = home.run(&["models", "load", &path, "--json"]).json();
    assert_eq!(
        (&loaded["model"]["name"], &loaded["model"]["state"]),
        (&"new".into(), &"READY".into())
    );
    assert_eq!(sample(&home, "new", "x")["model"], "new");
    let _ = home.run(&["models", "load", &path]).ok();
    let _ = home.run(&["models", "load", &path, "--name", "other"]).ok();
    assert_eq!(sample(&home, "other", "x")["text"], sample(&home, "new", "x")["text"]);
    let _ = home.run(&["models", "unload", "new"]).ok();
    let _ = home.run(&["models", "load", "new"]).ok();
    assert_eq!(state(&home, "new"), "READY");
}

#[test]
fn what_cannot_be_loaded_is_refused_and_leaves_nothing_behind() {
    let home = Home::new();
    let path = written(&home, "a.tinygpt", Shape::TINY);
    fs::write(home.path("bad.gguf"), "no model").unwrap();
    let pipe = home.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let _daemon = home.serve(&[]);
    let load = |words: &[&str]| home.run(&[&["models", "load"], words].concat());
    load(&[home.path("bad.gguf").to_str().unwrap()]).failed(Exit::Refused, "bad.gguf");
    load(&[pipe.to_str().unwrap()]).failed(Exit::Refused, "no file or directory");
    load(&["/nowhere/x.gguf", "--name", "x"]).failed(Exit::Refused, "/nowhere/x.gguf");
    load(&["nothing"]).failed(Exit::NotFound, "nothing");
    load(&[&path, "--name", "builtin"]).failed(Exit::Refused, "another model's");
    home.run(&["models", "unload", "nothing"]).failed(Exit::NotFound, "nothing");
    let listed = home.run(&["models", "--served", "--json"]).json();
    assert_eq!(listed["models"].as_array().unwrap().len(), 1, "{listed}");
}

#[test]
fn a_model_without_requests_is_unloaded_after_a_while() {
    let home = Home::new();
    let path = written(&home, "a.tinygpt", Shape::TINY);
    let _daemon = home.serve(&["--model", &path, "--unload-after", "2s"]);
    assert_eq!(state(&home, "a"), "READY");
    sample(&home, "builtin", "x");
    until("both are gone", || ["a", "builtin"].iter().all(|name| state(&home, name) == "UNLOADED"));
    let _ = home.run(&["wait", "--ready", "--timeout", "5s"]).ok();
    assert_eq!(sample(&home, "a", "x")["model"], "a");
}

#[test]
fn models_make_room_for_each_other_and_a_fresh_one_stays_for_a_while() {
    let home = Home::new();
    let [first, second] = ["a.tinygpt", "b.tinygpt"].map(|name| written(&home, name, WIDE));
    let one = fs::metadata(&first).unwrap().len();
    let limit = (one + one / 2).to_string();
    let _daemon = home.serve(&["--model", &first, "--model", &second, "--model-memory", &limit]);
    let started = Instant::now();
    // One that was loaded just now stays: whoever may not wait is told why, in numbers.
    let hasty = home.run(&[&greedy("b", "x")[..], &["--timeout", "1s"]].concat());
    assert_eq!(hasty.code, i32::from(Exit::Unavailable.code()), "{}", hasty.stderr);
    assert!(hasty.stderr.contains("all may take"), "{}", hasty.stderr);
    assert_eq!(sample(&home, "b", "x")["model"], "b");
    assert!(started.elapsed() > Duration::from_secs(8), "{:?}", started.elapsed());
    assert_eq!((&*state(&home, "a"), &*state(&home, "b")), ("UNLOADED", "READY"));
    let _ = home.run(&["wait", "--ready", "--timeout", "5s"]).ok();
}

#[test]
fn a_model_larger_than_all_may_be_is_refused_with_both_numbers() {
    let home = Home::new();
    let path = written(&home, "wide.tinygpt", WIDE);
    let mut daemon = home.daemon();
    let refused = daemon.args(["--model", &path, "--model-memory", "10000000"]);
    let (code, said) = tinygpt_tests::process::ended(refused);
    assert!(code == 64 && said.contains("10000000"), "{code} {said}");
    let _daemon =
        home.serve(&["--model", "builtin", "--model", &path, "--model-memory", "10000000"]);
    home.run(&greedy("wide", "x")).failed(Exit::Exhausted, "10,000,000");
    home.run(&["models", "load", &path, "--name", "more"]).failed(Exit::Exhausted, "10,000,000");
    assert!(model(&home, "more").is_none());
}

#[test]
fn a_model_whose_file_was_broken_holds_no_weights() {
    let home = Home::new();
    let path = written(&home, "deep.tinygpt", DEEP);
    let daemon = home.serve(&["--model", "builtin", "--model", &path]);
    let empty = anonymous(&daemon);
    sample(&home, "deep", "x");
    let weights = model(&home, "deep").unwrap()["weight_bytes"].as_u64().unwrap();
    let full = anonymous(&daemon);
    assert!(full > empty + weights / 10 * 9, "{empty} {full} {weights}");

    fs::write(&path, "no model").unwrap();
    until("it is noticed", || state(&home, "deep") == "FAILED");
    until("the old weights are gone", || anonymous(&daemon) < empty + weights / 4);
    home.run(&greedy("deep", "x")).failed(Exit::Refused, "deep.tinygpt");
    let _ = written(&home, "deep.tinygpt", DEEP);
    until("tried again", || state(&home, "deep") == "UNLOADED");
    assert_eq!(sample(&home, "deep", "x")["model"], "deep");

    let _ = home.run(&["models", "unload", "deep"]).ok();
    // Its weights are cut short: most of them are read before that is found out.
    let whole = fs::metadata(&path).unwrap().len();
    fs::File::options().write(true).open(&path).unwrap().set_len(whole - 1).unwrap();
    home.run(&greedy("deep", "x")).failed(Exit::Refused, "deep.tinygpt");
    assert_eq!(state(&home, "deep"), "FAILED");
    until("what was read is gone", || anonymous(&daemon) < empty + weights / 2);
}

#[test]
fn a_model_that_goes_before_its_packed_weights_are_kept_gives_its_memory_back() {
    let home = Home::new();
    let path = written(&home, "wide.tinygpt", WIDE);
    let daemon = home.serve(&["--model", "builtin", "--model", &path]);
    let empty = anonymous(&daemon);
    sample(&home, "wide", "x");
    let weights = model(&home, "wide").unwrap()["weight_bytes"].as_u64().unwrap();
    let _ = home.run(&["models", "unload", "wide"]).ok();
    until("its memory is back", || anonymous(&daemon) < empty + weights / 4);
}

#[test]
fn a_model_is_swapped_under_running_requests() {
    let home = Home::new();
    let shape = Shape::new(6, 6, 192, 2048);
    let path = written(&home, "m.tinygpt", shape);
    let _daemon = home.serve(&["--model", &path]);
    let before = model(&home, "m").unwrap();
    let words = ["sample", "-n", "600", "--temperature", "0", "--json", "--prompt", "x"];
    let mut running = home.client();
    let running =
        thread::spawn(move || tinygpt_tests::client::finish(running.args(words), b"").json());
    until("it runs", || home.run(&["status", "--json"]).json()["running"] == 1);
    Shape { layers: 5, ..shape }.write(&home.path("next")).unwrap();
    fs::rename(home.path("next"), &path).unwrap();
    // It waits for the running one, and is served by the new model.
    sample(&home, "m", "x");
    let after = model(&home, "m").unwrap();
    assert_eq!((&before["layers"], &after["layers"]), (&6.into(), &5.into()));
    let generated = running.join().unwrap();
    assert_eq!(generated["usage"]["completion_tokens"], 600, "{generated}");
}
