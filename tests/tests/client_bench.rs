//! `bench`: agents that are processes, and what they saw.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tinygpt_client::exit::Exit;
use tinygpt_tests::process::{Home, until};
use tinygpt_tests::prompts;

/// The common beginning ends with a block: where prompts part inside of one, each has that part of
/// its own to compute.
const SMALL: [&str; 10] =
    ["bench", "--agents", "4", "--prefix", "288", "--unique", "20", "--tokens", "9", "--json"];

fn bench(home: &Home, more: &[&str]) -> Value {
    home.run(&[&SMALL[..], more].concat()).json()
}

/// A bench that goes on for long, and its agents, which generate.
fn running(home: &Home) -> (Child, Vec<u32>) {
    let mut command = home.client();
    command.args(["bench", "--agents", "3", "--prefix", "50", "--rounds", "10000"]);
    let finished = || status(home)["counters"]["requests_finished"].as_u64().unwrap();
    let before = finished();
    let bench = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until("generating", || finished() > before + 3);
    let agents = children(bench.id());
    assert_eq!(agents.len(), 3);
    (bench, agents)
}

fn status(home: &Home) -> Value {
    home.run(&["status", "--json"]).json()
}

/// The children of all threads of a process.
fn children(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let of = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("children")).unwrap();
    let children: String = threads.map(|thread| of(thread.unwrap()) + " ").collect();
    children.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// A process that has ended and that nobody has waited for has no command line.
fn is_gone(pid: u32) -> bool {
    fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default().is_empty()
}

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.try_into().unwrap()).unwrap(), signal).unwrap();
}

/// The exit status and the words of a bench whose agents are gone with it, as their requests are.
fn ended(bench: Child, agents: &[u32]) -> (i32, String) {
    let output = bench.wait_with_output().unwrap();
    until("the agents are gone", || agents.iter().copied().all(is_gone));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
    (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn cold_agents_compute_one_prefix_and_their_own_tails() {
    let home = Home::new();
    let _daemon = home.serve(&["--threads", "1"]);
    let found = bench(&home, &["--rounds", "2", "--cold"]);
    let number = |pointer: &str| found.pointer(pointer).unwrap().as_u64().unwrap();
    assert_eq!(number("/usage/prompt_tokens"), 2 * 4 * 308, "{found}");
    assert_eq!(number("/computed_tokens"), 2 * (288 + 4 * 20), "{found}");
    let cached = number("/usage/cached_tokens");
    assert_eq!(number("/computed_tokens") + cached, number("/usage/prompt_tokens"));
    let sources =
        ["memory", "disk", "joined"].map(|source| number(&format!("/usage/cached/{source}")));
    assert_eq!(sources.iter().sum::<u64>(), cached);
    assert_eq!(number("/verdicts/COLD"), 2, "{found}");
    let verdicts = found["verdicts"].as_object().unwrap().values();
    assert_eq!(verdicts.map(|count| count.as_u64().unwrap()).sum::<u64>(), 8);
    assert_eq!((&found["schema"], &found["model"]), (&"tinygpt.bench/1".into(), &"builtin".into()));
    assert_eq!(found["beside_prefill"], Value::Null);
    for spread in ["ttft_ms", "inter_token_ms"] {
        let [p50, p99] = ["p50", "p99"].map(|name| found[spread][name].as_f64().unwrap());
        assert!(0.0 < p50 && p50 <= p99, "{found}");
    }
    assert!(found["tokens_per_second"].as_f64().unwrap() > 0.0, "{found}");
}

#[test]
fn what_was_computed_once_is_there_in_the_next_round_and_the_next_run() {
    let home = Home::new();
    let _daemon = home.serve(&["--threads", "1"]);
    let first = bench(&home, &["--rounds", "2"]);
    // Tails of 256 ids may begin alike by chance, and then share that.
    let is_about = |found: &Value, tokens: u64| {
        let computed = found["computed_tokens"].as_u64().unwrap();
        assert!((tokens - 12..=tokens).contains(&computed), "{found}");
    };
    is_about(&first, 288 + 2 * 4 * 20);
    let second = bench(&home, &["--rounds", "1"]);
    is_about(&second, 4 * 20);
    assert_eq!(second["verdicts"], serde_json::json!({ "PARTIAL_MEMORY": 4 }));
    assert_eq!(status(&home)["disk"]["used"], 0, "nothing is written");
}

#[test]
fn a_text_is_as_good_as_ids() {
    let home = Home::new();
    let _daemon = home.serve(&["--threads", "1"]);
    fs::write(home.path("text"), prompts::long(256)).unwrap();
    let path = home.path("text").display().to_string();
    let found = bench(&home, &["--rounds", "1", "--prompt-file", &path]);
    assert_eq!(
        (&found["prefix_tokens"], &found["computed_tokens"]),
        (&256.into(), &(256 + 4 * 20).into())
    );
}

#[test]
fn gaps_are_told_alone_and_beside_a_prefill() {
    let home = Home::new();
    let _daemon = home.serve(&["--threads", "1"]);
    let found = bench(&home, &["--rounds", "1", "--beside-prefill", "900"]);
    let beside = &found["beside_prefill"];
    assert_eq!(beside["prompt_tokens"], 900, "{found}");
    assert!(beside["prefill_ms"].as_f64().unwrap() > 0.0, "{found}");
    for gaps in ["alone", "beside"] {
        assert!(beside[gaps]["p99"].as_f64().unwrap() > 0.0, "{found}");
    }
    assert_eq!(found["usage"]["prompt_tokens"], 4 * 308, "the rounds alone");
    let shown =
        home.run(&["bench", "--prefix", "40", "--rounds", "1", "--beside-prefill", "90"]).ok();
    for words in ["time to first token", "computed of 720 asked", "90 tokens in"] {
        assert!(shown.stdout.contains(words), "{words}: {}", shown.stdout);
    }
}

#[test]
fn agents_end_with_a_parent_that_is_interrupted_or_killed() {
    let home = Home::new();
    let _daemon = home.serve(&["--threads", "1"]);
    for (how, code) in [(Signal::INT, 130), (Signal::KILL, -1)] {
        let (bench, agents) = running(&home);
        signal(bench.id(), how);
        let (ended, words) = ended(bench, &agents);
        assert_eq!(ended, code, "{words}");
        until("idle", || status(&home)["running"] == 0);
    }
}

#[test]
fn one_agent_that_ends_ends_them_all() {
    let home = Home::new();
    let _daemon = home.serve(&["--threads", "1"]);
    let (bench, agents) = running(&home);
    signal(agents[1], Signal::KILL);
    let (code, words) = ended(bench, &agents);
    assert_eq!(code, i32::from(Exit::Failed.code()), "{words}");
    assert_eq!(words, "tinygpt-client: an agent failed: its process ended\n");
}

#[test]
fn a_daemon_that_dies_ends_them_all() {
    let home = Home::new();
    let mut daemon = home.serve(&["--threads", "1"]);
    let (bench, agents) = running(&home);
    daemon.kill();
    let (code, words) = ended(bench, &agents);
    assert_eq!(code, i32::from(Exit::Unavailable.code()), "{words}");
    assert_eq!(words.matches("an agent failed: ").count(), 1, "{words}");
}

#[test]
fn what_the_daemon_refuses_is_told_once_in_its_words() {
    let home = Home::new();
    home.run(&["bench"]).failed(Exit::NoDaemon, "no daemon answers");
    let _daemon = home.serve(&["--threads", "1"]);
    let unknown = home.run(&["bench", "--model", "none"]);
    unknown.failed(Exit::NotFound, "none");
    let long = home.run(&["bench", "--prefix", "100000"]);
    long.failed(Exit::Refused, "an agent failed: ");
    assert_eq!(long.stderr.lines().count(), 1, "{}", long.stderr);
    home.run(&["bench", "--agents", "0"]).failed(Exit::Usage, "--agents");
}
