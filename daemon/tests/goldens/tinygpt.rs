//! A model that TinyGPT itself trained and ran, in its three bodies, at every position; and models of
//! which parts of the format make use that that one does not.

use serde_json::Value;

use crate::files::{find, ids, json, npy, npz, read};
use crate::runner::{Runner, argmax, distance, margin};

const TOLERANCE: f32 = 2e-4;

/// Ids are compared while the two best logits are further apart than this.
const TIE: f32 = 1e-3;

fn check(variant: &str, model: &[u8]) {
    let logits = read("tinygpt/tiny/logits.npz");
    let golden = json("tinygpt/tiny/cases.json");
    let mut runners = Runner::everywhere(model);
    let of_variant = |case: &&Value| case["variant"] == variant;
    for case in golden["cases"].as_array().unwrap().iter().filter(of_variant) {
        let expected = npz(&logits, case["logits_key"].as_str().unwrap());
        runners.iter_mut().for_each(|runner| check_case(runner, case, &expected));
    }
}

fn check_case(runner: &mut Runner, case: &Value, expected: &[f32]) {
    let prompt = ids(&case["prompt_bytes"]);
    runner.restart();
    let rows = runner.feed(&prompt, prompt.len());
    assert_eq!(expected.len(), rows.len() * 256);
    for (position, (row, expected)) in rows.iter().zip(expected.chunks_exact(256)).enumerate() {
        let error = distance(row, expected);
        let name = &case["prompt_name"];
        assert!(error <= TOLERANCE, "{name} position {position}: {error}");
    }
    check_greedy(runner, case, rows.last().unwrap().clone());
}

/// Follows the reference's bytes, as long as its window has not slid.
fn check_greedy(runner: &mut Runner, case: &Value, mut logits: Vec<f32>) {
    let within = case["tokens_before_window_slides"].as_u64().unwrap() as usize;
    let greedy = ids(&case["greedy64"]);
    for (step, &id) in greedy.iter().take(within).enumerate() {
        assert!(argmax(&logits) == id || margin(&logits) <= TIE, "{} {step}", case["prompt_name"]);
        if step + 1 < within {
            logits = runner.feed(&[id], 1).remove(0);
        }
    }
}

#[test]
fn the_fp16_body_computes_what_tinygpt_computes() {
    check("fp16", &read("tinygpt/tiny/model.fp16.tinygpt"));
}

#[test]
fn the_int4_body_computes_what_tinygpt_computes() {
    check("int4", &read("tinygpt/tiny/model.int4.tinygpt"));
}

#[test]
fn the_fp32_body_computes_what_tinygpt_computes() {
    let Some(path) = find("tinygpt/tiny/model.tinygpt") else { return };
    check("fp32", &std::fs::read(path).unwrap());
}

/// Models with experts, with heads of keys and values that are shared, and with a window.
#[test]
fn experts_compute_what_their_definition_says() {
    let prompt = ids(&json("tinygpt/experts/prompt.json"));
    for name in ["top1", "top2"] {
        let expected = npy(&read(&format!("tinygpt/experts/{name}.logits.npy")));
        for mut runner in Runner::everywhere(&read(&format!("tinygpt/experts/{name}.tinygpt"))) {
            let error = distance(&runner.feed(&prompt, prompt.len()).concat(), &expected);
            assert!(error <= TOLERANCE, "{name}: {error}");
        }
    }
}
