//! Small GGUF models of every architecture and weight type against exact arithmetic on their
//! dequantised weights, or on the checkpoint that they were made from.

use crate::files::{find, gguf_case, ids, json, npy, read};
use crate::runner::{Runner, distance};

const TOLERANCE: f32 = 1e-3;

/// Where rows are rounded to 8 bits.
const ROUNDED: f32 = 0.8;

/// Logits after the last 8 tokens of the prompt `[8][V]`, and the greedy ids after it.
fn check(model: &str, prompt: &[u32], logits: &[f32], greedy: &[u32]) {
    for mut runner in Runner::everywhere(&read(model)) {
        let rows = runner.feed(prompt, 8);
        assert_eq!(logits.len(), rows.concat().len());
        let error = distance(&rows.concat(), logits);
        assert!(error <= TOLERANCE, "{model}: {error}");
        assert_eq!(runner.greedy(rows[7].clone(), greedy.len()), greedy, "{model}");
    }
    check_fast(model, &read(model), prompt, logits);
}

/// The same in integers, as near as llama.cpp comes.
fn check_fast(name: &str, file: &[u8], prompt: &[u32], logits: &[f32]) {
    let error = distance(&Runner::fast(file).feed(prompt, 8).concat(), logits);
    assert!(error <= ROUNDED, "{name} in integers: {error}");
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

/// Architectures and the Hugging Face checkpoints that their files were made from.
const ARCHITECTURES: [(&str, &str); 7] = [
    ("llama", "llama3rope"),
    ("mistral", "mistral"),
    ("qwen2", "qwen2"),
    ("qwen3", "qwen3"),
    ("gemma3", "gemma3_text"),
    ("phi3", "phi3"),
    ("gpt2", "gpt2"),
];

/// Files with quantised matrices, each beside one with those matrices in F32.
const QUANTISED: [&str; 14] = [
    "llama-F16",
    "llama-BF16",
    "llama-Q4_0",
    "llama-Q4_1",
    "llama-Q5_0",
    "llama-Q5_1",
    "llama-Q8_0",
    "llama-MXFP4",
    "qwen2-Q4_1",
    "qwen3-Q5_0",
    "gemma3-Q8_0",
    "phi3-Q4_0",
    "phi3-MXFP4",
    "gpt2-Q5_1",
];

/// The prompt of a checkpoint, logits after its last 8 tokens, and greedy ids after it.
fn hugging_face(source: &str) -> Option<(Vec<u32>, Vec<f32>, Vec<u32>)> {
    let read = |file: &str| Some(std::fs::read(find(&format!("hf/{source}/{file}"))?).unwrap());
    let case: serde_json::Value = serde_json::from_slice(&read("case.json")?).unwrap();
    let logits = npy(&read("logits_last8.npy")?);
    Some((ids(&case["prompt_ids"]), logits, ids(&case["greedy_ids"])))
}

#[test]
fn every_architecture_computes_what_its_checkpoint_does() {
    for (name, source) in ARCHITECTURES {
        let Some(file) = gguf_case(&format!("{name}.gguf")) else { return };
        let Some((prompt, logits, greedy)) = hugging_face(source) else { return };
        for mut runner in Runner::everywhere(&file) {
            let rows = runner.feed(&prompt, 8);
            let error = distance(&rows.concat(), &logits);
            assert!(error <= TOLERANCE, "{name}: {error}");
            assert_eq!(runner.greedy(rows[7].clone(), greedy.len()), greedy, "{name}");
        }
    }
}

#[test]
fn quantised_matrices_compute_what_they_do_as_plain_numbers() {
    for name in QUANTISED {
        let Some(file) = gguf_case(&format!("{name}.gguf")) else { return };
        let Some(plain) = gguf_case(&format!("{name}.plain.gguf")) else { return };
        let prompt: Vec<u32> = (0..40).map(|i| i * i * 7 % 500).collect();
        let expected = Runner::exact(&plain).feed(&prompt, 8).concat();
        for mut runner in Runner::everywhere(&file) {
            let error = distance(&runner.feed(&prompt, 8).concat(), &expected);
            assert!(error <= TOLERANCE, "{name}: {error}");
        }
        check_fast(name, &file, &prompt, &expected);
    }
}

/// What no checkpoint has as it is.
#[test]
fn variants_compute_what_their_definition_says() {
    for (name, source) in [("smollm3", "smollm3"), ("phi3-long", "phi3"), ("phi3-short", "phi3")] {
        let Some(file) = gguf_case(&format!("{name}.gguf")) else { return };
        let Some(expected) = gguf_case(&format!("{name}.logits.npy")) else { return };
        let Some((prompt, unchanged, _)) = hugging_face(source) else { return };
        let expected = npy(&expected);
        assert!(distance(&unchanged, &expected) > 10.0 * TOLERANCE, "{name} is no variant");
        for mut runner in Runner::everywhere(&file) {
            let error = distance(&runner.feed(&prompt, 8).concat(), &expected);
            assert!(error <= TOLERANCE, "{name}: {error}");
        }
    }
}

/// It is the embedding with each row one further down, so the logits are, too.
#[test]
fn gpt2_may_have_a_head_of_its_own() {
    let Some(file) = gguf_case("gpt2-head.gguf") else { return };
    let Some((prompt, logits, _)) = hugging_face("gpt2") else { return };
    for mut runner in Runner::everywhere(&file) {
        for (found, expected) in runner.feed(&prompt, 8).iter().zip(logits.chunks_exact(512)) {
            let rolled = [&expected[511..], &expected[..511]].concat();
            assert!(distance(found, &rolled) <= TOLERANCE);
        }
    }
}
