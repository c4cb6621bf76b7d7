//! `sample` as a user sees it: what it prints where, and what the cache does for it.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;

use serde_json::{Value, json};
use tinygpt_client::exit::Exit;
use tinygpt_tests::client::finish;
use tinygpt_tests::process::Home;
use tinygpt_tests::prompts::{long, verse};

/// Arguments of a greedy generation with one JSON object as its answer.
const GREEDY: [&str; 6] = ["sample", "--json", "--temperature", "0", "-n", "24"];

fn greedy(home: &Home, prompt: &str, more: &[&str]) -> Value {
    home.run(&[&GREEDY, more, &["--prompt", prompt]].concat()).json()
}

/// Verdict, reason and cached tokens.
fn reuse(report: &Value) -> (&str, Option<&str>, u64) {
    let cached = report["usage"]["cached_tokens"].as_u64().unwrap();
    (report["verdict"].as_str().unwrap(), report["reason"].as_str(), cached)
}

#[test]
fn the_built_in_model_continues_as_it_was_trained_to() {
    let golden = include_str!("../golden/builtin/golden.json");
    let golden: Value = serde_json::from_str(golden).unwrap();
    let home = Home::new();
    let _daemon = home.serve(&[]);
    for (name, case) in golden["prompts"].as_object().unwrap() {
        let ids: Vec<_> = case["ids"].as_array().unwrap().iter().map(Value::to_string).collect();
        let arguments = ["sample", "--json", "--temperature", "0", "-n", "64", "--echo-ids"];
        let report = home.run(&[&arguments[..], &["--token-ids", &ids.join(",")]].concat()).json();
        assert_eq!(report["token_ids"], case["greedy64"], "{name}");
        assert_eq!(report["prompt_token_ids"], case["ids"], "{name}");
    }
}

#[test]
fn a_prompt_is_cold_once_then_full_in_memory_then_full_from_disk() {
    let (home, prompt) = (Home::new(), long(900));
    let mut daemon = home.serve(&[]);
    let cold = greedy(&home, &prompt, &["--persist", "durable"]);
    assert_eq!(reuse(&cold), ("COLD", Some("NO_ENTRY"), 0));
    let memory = greedy(&home, &prompt, &[]);
    assert_eq!(reuse(&memory), ("FULL_MEMORY", None, 900));
    daemon.kill();
    let _next = home.serve(&[]);
    let disk = greedy(&home, &prompt, &[]);
    assert_eq!(reuse(&disk), ("FULL_DISK", None, 900));
    assert_eq!(disk["usage"]["cached"]["disk"], 900);
    assert_eq!(reuse(&greedy(&home, &prompt, &[])), ("FULL_MEMORY", None, 900));
    for warm in [&memory, &disk] {
        assert_eq!(warm["token_ids"], cold["token_ids"]);
        assert_eq!(warm["prompt_key"], cold["prompt_key"]);
        assert_eq!(warm["timings"]["prefill_ms"], 0.0, "a full hit runs no layer");
    }
}

#[test]
fn several_texts_share_one_prompt_and_stand_behind_each_other() {
    let (home, prompt) = (Home::new(), long(300));
    let _daemon = home.serve(&[]);
    let hot = ["-n", "8", "--temperature", "2", "--seed", "5", "--priority", "high"];
    let ask =
        |more: &[&str]| home.run(&[&["sample", "--prompt", &prompt][..], &hot, more].concat());
    let report = ask(&["--choices", "3", "--json"]).json();
    let choices = report["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 3);
    assert_eq!(choices[0]["text"], report["text"]);
    assert_eq!(choices[0]["text"], ask(&["--json"]).json()["text"], "as if it were alone");
    assert_ne!(choices[1]["text"], choices[2]["text"]);
    for choice in choices {
        assert_eq!(choice["usage"]["completion_tokens"], 8);
        assert_eq!(choice["usage"]["prompt_tokens"], 300);
    }
    let texts: Vec<_> = choices.iter().map(|choice| choice["text"].as_str().unwrap()).collect();
    let told = ask(&["--choices", "3", "-q"]).stdout;
    assert_eq!(told, format!("{}\n", texts.join("\n")));
}

#[test]
fn four_clients_at_once_compute_a_cold_prefix_once() {
    let (home, prefix) = (Home::new(), long(900));
    let _daemon = home.serve(&[]);
    let reports: Vec<Value> = std::thread::scope(|scope| {
        let run = |n: usize| greedy(&home, &format!("{prefix}{}", verse(n)), &["-n", "4"]);
        let clients: Vec<_> = (0..4).map(|n| scope.spawn(move || run(n))).collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    let computed: u64 = reports
        .iter()
        .map(|report| {
            let usage = &report["usage"];
            usage["prompt_tokens"].as_u64().unwrap() - usage["cached_tokens"].as_u64().unwrap()
        })
        .sum();
    assert!(computed < 2 * 900, "{computed} tokens computed: {reports:#?}");
    for (n, report) in reports.iter().enumerate() {
        let alone = greedy(
            &home,
            &format!("{prefix}{}", verse(n)),
            &["-n", "4", "--cache-policy", "bypass"],
        );
        assert_eq!(report["token_ids"], alone["token_ids"], "client {n}");
    }
}

#[test]
fn text_alone_goes_to_stdout_and_the_rest_to_stderr() {
    let home = Home::new();
    let _daemon = home.serve(&[]);
    let answer = home.run(&["sample", "--temperature", "0", "-n", "24", "--prompt", "ROMEO:"]).ok();
    let report = greedy(&home, "ROMEO:", &[]);
    assert_eq!(answer.stdout, report["text"].as_str().unwrap());
    let expected = "COLD (BELOW_MINIMUM): 0/6 prompt tokens cached, TTFT ";
    assert!(answer.stderr.starts_with(expected), "{}", answer.stderr);
    assert!(answer.stderr.contains(", 24 tokens at "), "{}", answer.stderr);
    assert!(answer.stderr.ends_with(" tok/s, LENGTH\n"), "{}", answer.stderr);
    assert!(!answer.stderr.contains('\x1b'), "no bar and no colour in a pipe");
    let quiet = home.run(&["-q", "sample", "-n", "1", "--prompt", "ROMEO:"]).ok();
    assert_eq!(quiet.stderr, "");
}

#[test]
fn a_prompt_is_the_same_from_a_flag_a_file_a_pipe_and_as_ids() {
    let home = Home::new();
    let _daemon = home.serve(&[]);
    let prompt = "KING:\n  na\u{ef}ve\n";
    fs::write(home.path("prompt"), prompt).unwrap();
    let file = home.path("prompt").display().to_string();
    let ids: Vec<_> = prompt.bytes().map(|byte| byte.to_string()).collect();
    let flag = greedy(&home, prompt, &[]);
    let others = [
        home.run(&[&GREEDY[..], &["--prompt-file", &file]].concat()),
        home.pipe(&[&GREEDY[..], &["--prompt-file", "-"]].concat(), prompt.as_bytes()),
        home.pipe(&GREEDY, prompt.as_bytes()),
        home.run(&[&GREEDY[..], &["--token-ids", &ids.join(",")]].concat()),
    ];
    for other in others.map(|answer| answer.json()) {
        assert_eq!(other["prompt_key"], flag["prompt_key"]);
        assert_eq!(other["text"], flag["text"]);
        assert_eq!(reuse(&other).0, "FULL_MEMORY");
    }
}

#[test]
fn the_object_has_the_keys_that_scripts_rely_on() {
    let home = Home::new();
    let _daemon = home.serve(&[]);
    let report = greedy(&home, "ROMEO:", &["--echo-ids", "--logprobs", "3"]);
    let has = |value: &Value, keys: &[&str]| {
        for key in keys {
            assert!(value.as_object().unwrap().contains_key(*key), "no {key} in {value}");
        }
    };
    has(&report, &["schema", "text", "token_ids", "prompt_token_ids", "finish_reason", "model"]);
    has(&report, &["verdict", "reason", "logprobs", "usage", "timings"]);
    has(&report["usage"], &["prompt_tokens", "cached_tokens", "cached", "completion_tokens"]);
    has(&report["usage"]["cached"], &["memory", "disk", "joined"]);
    has(
        &report["timings"],
        &["queue_ms", "load_ms", "prefill_ms", "ttft_ms", "decode_ms", "total_ms"],
    );
    assert_eq!(report["finish_reason"], "LENGTH");
    assert_eq!(report["model"], "builtin");
    let plain = greedy(&home, "ROMEO:", &[]);
    assert!(plain.get("logprobs").is_none() && plain.get("prompt_token_ids").is_none());
}

#[test]
fn log_probabilities_come_with_the_likeliest_tokens_best_first() {
    let home = Home::new();
    let _daemon = home.serve(&[]);
    let report = greedy(&home, "ROMEO:", &["--logprobs", "3"]);
    let logprobs = report["logprobs"].as_array().unwrap();
    assert_eq!(logprobs.len(), 24);
    for (token, id) in logprobs.iter().zip(report["token_ids"].as_array().unwrap()) {
        let top = token["top"].as_array().unwrap();
        let likelihood = |n: usize| top[n][1].as_f64().unwrap();
        assert_eq!((&token["id"], top.len()), (id, 3));
        assert_eq!(top[0], json!([id, token["logprob"]]), "greedy takes the likeliest");
        assert!(
            0.0 >= likelihood(0)
                && likelihood(0) >= likelihood(1)
                && likelihood(1) >= likelihood(2)
        );
    }
}

#[test]
fn a_score_is_what_a_generation_said() {
    let home = Home::new();
    let _daemon = home.serve(&[]);
    let report = greedy(&home, "ROMEO:", &["--logprobs", "2"]);
    let generated = report["token_ids"].as_array().unwrap();
    let ids = b"ROMEO:".iter().map(u8::to_string).chain(generated.iter().map(Value::to_string));
    let ids = ids.collect::<Vec<_>>().join(",");
    let score = home.run(&["score", "--json", "--logprobs", "2", "--token-ids", &ids]).json();
    let scored = score["logprobs"].as_array().unwrap();
    assert_eq!(scored[0]["logprob"], Value::Null, "nothing precedes the first token");
    assert_eq!(scored[6..], report["logprobs"].as_array().unwrap()[..]);
}

#[test]
fn a_seed_gives_the_same_text_again_and_another_seed_another() {
    let home = Home::new();
    let _daemon = home.serve(&[]);
    let with = |seed: &str| {
        let arguments = ["sample", "--json", "-n", "60", "--prompt", "ROMEO:", "--seed", seed];
        home.run(&arguments).json()["text"].clone()
    };
    assert_eq!(with("7"), with("7"));
    assert_ne!(with("7"), with("8"));
    let drawn = home.run(&["sample", "--json", "-n", "60", "--prompt", "ROMEO:"]).json();
    assert_eq!(with(&drawn["seed"].to_string()), drawn["text"], "a drawn seed is told");
}

#[test]
fn filters_that_leave_one_token_are_greedy() {
    let home = Home::new();
    let _daemon = home.serve(&[]);
    let expected = greedy(&home, "ROMEO:", &[]);
    for filter in [["--top-k", "1"], ["--top-p", "0.000001"], ["--min-p", "1"]] {
        let arguments = ["sample", "--json", "-n", "24", "--prompt", "ROMEO:"];
        let report = home.run(&[&arguments[..], &filter].concat()).json();
        assert_eq!(report["text"], expected["text"], "{filter:?}");
    }
    let penalised = greedy(&home, "ROMEO:", &["--repeat-penalty", "2"]);
    assert_ne!(penalised["text"], expected["text"]);
}

#[test]
fn a_stop_string_ends_the_text_before_it() {
    let home = Home::new();
    let _daemon = home.serve(&[]);
    let whole = greedy(&home, "ROMEO:", &["-n", "60"]);
    let whole = whole["text"].as_str().unwrap();
    let stop = &whole[20..24];
    let report = greedy(&home, "ROMEO:", &["-n", "60", "--stop", "never there", "--stop", stop]);
    assert_eq!(report["text"], whole[..whole.find(stop).unwrap()]);
    assert_eq!(report["finish_reason"], "STOP");
}

#[test]
fn no_tokens_at_all_is_a_prefill() {
    let (home, prompt) = (Home::new(), long(200));
    let _daemon = home.serve(&[]);
    let report = greedy(&home, &prompt, &["-n", "0"]);
    assert_eq!(report["finish_reason"], "LENGTH");
    assert_eq!((&report["text"], &report["usage"]["completion_tokens"]), (&json!(""), &json!(0)));
    assert_eq!(reuse(&greedy(&home, &prompt, &[])), ("FULL_MEMORY", None, 200));
}

#[test]
fn what_was_warmed_is_a_full_hit_and_its_beginning_a_partial_one() {
    let (home, system) = (Home::new(), long(320));
    let _daemon = home.serve(&[]);
    fs::write(home.path("system.txt"), &system).unwrap();
    let file = home.path("system.txt").display().to_string();
    let answer = home.run(&["warm", "--prompt-file", &file]).ok();
    assert!(answer.stderr.starts_with("COLD (NO_ENTRY): 0/320 prompt tokens cached, prefill "));
    let hit = greedy(&home, &system, &[]);
    assert_eq!(reuse(&hit), ("FULL_MEMORY", None, 320));
    assert_eq!(answer.stdout.trim_end(), hit["prompt_key"].as_str().unwrap());
    let longer = greedy(&home, &format!("{system} And then?"), &[]);
    assert_eq!(reuse(&longer), ("PARTIAL_MEMORY", Some("EXTENDED"), 320));
}

#[test]
fn an_edited_prompt_is_told_where_it_parts() {
    let (home, prompt) = (Home::new(), long(400));
    let _daemon = home.serve(&[]);
    greedy(&home, &prompt, &[]);
    let mut edited = prompt.clone();
    edited.replace_range(300..301, "#");
    let report = greedy(&home, &edited, &[]);
    assert_eq!((reuse(&report).0, reuse(&report).1), ("PARTIAL_MEMORY", Some("DIVERGED")));
    assert_eq!(report["divergence"]["token_index"], 300);
    assert!(report["divergence"]["prompt_text"].as_str().unwrap().starts_with('#'));
    let words = home.run(&[
        "sample",
        "-n",
        "1",
        "--cache-policy",
        "read-only",
        "--prompt",
        &edited.replace('#', "%"),
    ]);
    assert!(words.ok().stderr.contains("parts from a cached prompt at token 300: \"%"));
}

#[test]
fn a_cache_policy_is_kept() {
    let (home, prompt) = (Home::new(), long(200));
    let _daemon = home.serve(&[]);
    let with = |policy| greedy(&home, &prompt, &["--cache-policy", policy]);
    assert_eq!(reuse(&with("read-only")), ("COLD", Some("NO_ENTRY"), 0));
    assert_eq!(reuse(&with("bypass")), ("BYPASSED", Some("POLICY_BYPASS"), 0));
    assert_eq!(reuse(&with("use")), ("COLD", Some("NO_ENTRY"), 0), "neither has kept anything");
    assert_eq!(reuse(&with("read-only")), ("FULL_MEMORY", None, 200));
    assert_eq!(reuse(&with("refresh")), ("COLD", Some("POLICY_REFRESH"), 0));
    assert_eq!(reuse(&with("use")), ("FULL_MEMORY", None, 200));
}

#[test]
fn what_must_not_persist_is_gone_after_a_restart() {
    let (home, kept, long) = (Home::new(), long(200), long(302));
    let (gone, gone_too) = (&long[1..], &long[2..]);
    let mut daemon = home.serve(&[]);
    let _ = greedy(&home, gone, &["--no-persist"]);
    let _ = greedy(&home, gone_too, &["--persist", "no"]);
    greedy(&home, &kept, &[]);
    assert!(daemon.terminate().success());
    let _next = home.serve(&[]);
    assert_eq!(reuse(&greedy(&home, gone, &[])).0, "COLD");
    assert_eq!(reuse(&greedy(&home, gone_too, &[])).0, "COLD");
    assert_eq!(reuse(&greedy(&home, &kept, &[])).0, "FULL_DISK");
}

#[test]
fn a_namespace_and_a_storage_format_keep_to_themselves_and_say_so() {
    let (home, prompt) = (Home::new(), long(200));
    let _daemon = home.serve(&[]);
    let first = greedy(&home, &prompt, &[]);
    let other = greedy(&home, &prompt, &["--namespace", "other"]);
    assert_eq!(reuse(&other), ("COLD", Some("NAMESPACE"), 0));
    assert_eq!(
        reuse(&greedy(&home, &prompt, &["--kv-dtype", "f32"])),
        ("COLD", Some("KV_DTYPE"), 0)
    );
    assert_eq!(other["text"], first["text"]);
    assert_eq!(
        reuse(&greedy(&home, &prompt, &["--namespace", "other"])),
        ("FULL_MEMORY", None, 200)
    );
}

#[test]
fn events_come_as_lines_in_order() {
    let home = Home::new();
    let _daemon = home.serve(&[]);
    let arguments =
        ["sample", "--json-stream", "--temperature", "0", "-n", "24", "--prompt", "ROMEO:"];
    let events = home.run(&arguments).ok().lines();
    let names: Vec<_> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!((names[0], names[names.len() - 1]), ("admitted", "done"));
    let text: String = events.iter().filter_map(|event| event["text"].as_str()).collect();
    assert_eq!(text, greedy(&home, "ROMEO:", &[])["text"].as_str().unwrap());
}

#[test]
fn without_a_flag_an_unnamed_model_is_the_first() {
    let home = Home::new();
    let copy = home.path("copy.tinygpt");
    fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/golden/builtin/builtin-int4.tinygpt"), &copy)
        .unwrap();
    let _daemon = home.serve(&["--model", &copy.display().to_string()]);
    assert_eq!(greedy(&home, "ROMEO:", &[])["model"], "copy");
    assert_eq!(greedy(&home, "ROMEO:", &["--model", "builtin"])["model"], "builtin");
    home.run(&["sample", "--model", "other", "--prompt", "x"]).failed(Exit::NotFound, "builtin");
}

#[test]
fn characters_are_never_cut() {
    let home = Home::new();
    let _daemon = home.serve(&[]);
    // Bytes at random: most of them are no UTF-8.
    let arguments = ["sample", "--json-stream", "--temperature", "9", "--seed", "3", "-n", "200"];
    let mut command = home.client();
    let answer = finish(command.args(arguments).args(["--prompt", "x"]), b"").ok();
    let events = answer.lines();
    let deltas = events.iter().filter(|event| event["event"] == "delta");
    let ids: Vec<u8> = deltas
        .clone()
        .flat_map(|delta| delta["token_ids"].as_array().unwrap())
        .map(|id| u8::try_from(id.as_u64().unwrap()).unwrap())
        .collect();
    let text: String = deltas.filter_map(|delta| delta["text"].as_str()).collect();
    assert_eq!(text, String::from_utf8_lossy(&ids));
}
