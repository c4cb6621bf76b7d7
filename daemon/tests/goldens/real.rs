//! Real models, SmolLM2-135M-Instruct in Q4_1 and Gemma 3 270M in Q4_K_M, against oracles.
//!
//! One oracle is llama.cpp, which rounds activations to 8 bits in every product: its
//! log-probabilities are up to 0.4 away from exact ones, and once 0.7. The others compute in f32 on
//! dequantised weights, as this project does under `exact`: mlx-lm for SmolLM2, llama.cpp for Gemma.

use serde_json::Value;

use crate::files::{floats, gemma3, ids, json, smollm2};
use crate::runner::{Runner, argmax};

/// Log-probabilities of the 20 best ids, from where rows are rounded to where they are.
const ROUNDED: f32 = 0.6;

/// The same for Gemma, in whose case `code` llama.cpp is 0.685 from itself on F32 weights, and both
/// of our numerics are where exact arithmetic is.
const ROUNDED_GEMMA: f32 = 0.75;

/// The same, from exact arithmetic to exact arithmetic.
const EXACT: f32 = 2e-4;

/// The same where the oracle looks GELU up in f16.
const EXACT_GEMMA: f32 = 2e-2;

/// Where llama.cpp's two best logits are further apart than this, rounding does not turn them.
const CLEAR: f32 = 0.5;

fn log_sum_exp(logits: &[f32]) -> f32 {
    let largest = logits.iter().fold(f32::NEG_INFINITY, |largest, &logit| largest.max(logit));
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - largest).exp()).sum();
    largest + sum.ln() as f32
}

/// The largest distance from an oracle's log-probabilities of its 20 best ids.
fn distance(logits: &[f32], oracle: &Value) -> f32 {
    let ours = log_sum_exp(logits);
    let theirs = oracle["logsumexp"].as_f64().unwrap() as f32;
    let best = ids(&oracle["top20_ids"]).into_iter().zip(floats(&oracle["top20_logits"]));
    best.map(|(id, expected)| (logits[id as usize] - ours - (expected - theirs)).abs())
        .fold(0.0, f32::max)
}

#[test]
fn smollm2_has_both_oracles_probabilities_and_llama_cpps_clear_choices() {
    let Some(model) = smollm2() else { return };
    let golden = json("gguf_public/smollm2-135m-instruct-q4_1/cases.json");
    let cases = golden["cases"].as_array().unwrap();
    for mut runner in Runner::everywhere(&model) {
        for case in cases {
            check(&mut runner, case, ROUNDED);
            let second = case.get("second_oracle").filter(|second| !second.is_null());
            second.into_iter().for_each(|second| check_exact(&mut runner, case, second, EXACT));
        }
    }
    let mut rounding = Runner::fast(&model);
    cases.iter().for_each(|case| check(&mut rounding, case, ROUNDED));
}

#[test]
fn gemma3_has_both_oracles_probabilities_and_llama_cpps_clear_choices() {
    let Some(model) = gemma3() else { return };
    let golden = json("gguf_public/gemma3-270m-q4_k_m/cases.json");
    let exact = json("gguf_public/gemma3-270m-q4_k_m/exact.json");
    let (mut runner, mut rounding) = (Runner::exact(&model), Runner::fast(&model));
    for case in golden["cases"].as_array().unwrap() {
        let second = &exact[case["name"].as_str().unwrap()];
        check_exact(&mut runner, case, second, EXACT_GEMMA);
        check(&mut runner, case, ROUNDED_GEMMA);
        check(&mut rounding, case, ROUNDED_GEMMA);
    }
}

/// Against llama.cpp on the file as it is.
fn check(runner: &mut Runner, case: &Value, tolerance: f32) {
    let name = &case["name"];
    let mut logits = runner.prompt(&ids(&case["ids"]));
    let rounded = distance(&logits, case);
    assert!(rounded <= tolerance, "{name}: {rounded} from llama.cpp");
    let greedy = ids(&case["greedy_ids"]).into_iter().zip(floats(&case["greedy_margin"]));
    for (step, (id, margin)) in greedy.enumerate() {
        assert!(argmax(&logits) == id || margin < CLEAR, "{name} step {step}: margin {margin}");
        logits = runner.feed(&[id], 1).remove(0);
    }
}

/// Against an oracle that rounds nothing.
fn check_exact(runner: &mut Runner, case: &Value, oracle: &Value, tolerance: f32) {
    let exact = distance(&runner.prompt(&ids(&case["ids"])), oracle);
    assert!(exact <= tolerance, "{}: {exact} from exact arithmetic", case["name"]);
}
