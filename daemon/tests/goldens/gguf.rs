//! Small GGUF models of every weight type against exact arithmetic on their dequantised weights.

use crate::files::{ids, json, npy, read};
use crate::runner::{Runner, distance};

const TOLERANCE: f32 = 1e-3;

/// Logits after the last 8 tokens of the prompt `[8][V]`, and the greedy ids after it.
fn check(model: &str, prompt: &[u32], logits: &[f32], greedy: &[u32]) {
    for mut runner in Runner::everywhere(&read(model)) {
        let rows = runner.feed(prompt, 8);
        assert_eq!(logits.len(), rows.concat().len());
        let error = distance(&rows.concat(), logits);
        assert!(error <= TOLERANCE, "{model}: {error}");
        assert_eq!(runner.greedy(rows[7].clone(), greedy.len()), greedy, "{model}");
    }
}

fn check_folder(folder: &str) {
    for case in json(&format!("{folder}/cases.json"))["cases"].as_array().unwrap() {
        let stem = case["file"].as_str().unwrap().trim_end_matches(".gguf");
        let logits = npy(&read(&format!("{folder}/{stem}.logits_dequant_f32.npy")));
        let (prompt, greedy) = (ids(&case["prompt_ids"]), ids(&case["greedy_dequant_f32"]));
        check(&format!("{folder}/{stem}.gguf"), &prompt, &logits, &greedy);
    }
}

#[test]
fn a_llama_computes_and_continues_as_the_reference_does() {
    check_folder("gguf_tiny/llama");
}

#[test]
fn a_llama_with_scaled_rotary_frequencies_does_too() {
    check_folder("gguf_tiny/llama3rope");
}

#[test]
fn so_does_every_other_weight_type() {
    for (stem, case) in json("gguf/cases.json").as_object().unwrap() {
        let logits = npy(&read(&format!("gguf/{stem}.logits.npy")));
        let (prompt, greedy) = (ids(&case["prompt_ids"]), ids(&case["greedy"]));
        check(&format!("gguf/{stem}.gguf"), &prompt, &logits, &greedy);
    }
}
