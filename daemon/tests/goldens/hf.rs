//! Hugging Face directories of every family against two oracles in f32: logits, greedy ids, keys
//! and values, and the ids of their texts.

use std::path::Path;

use serde_json::Value;
use tinygpt_kernels::Pool;
use tinygptd::model::load::{Checkpoint, Files, Packing};
use tinygptd::text::Tokenizer;

use crate::files::{find, ids, npy, npz};
use crate::runner::{Runner, distance};

const LOGITS: f32 = 1e-3;
const ROWS: f32 = 5e-4;

fn load(directory: &Path, pool: &Pool) -> Checkpoint {
    Files::open(directory).unwrap().load(&Packing::new(pool)).unwrap()
}

/// A golden directory: what it computes is what both oracles compute.
fn check(name: &str) {
    let Some(directory) = find(&format!("hf/{name}")) else { return };
    let case: Value =
        serde_json::from_slice(&std::fs::read(directory.join("case.json")).unwrap()).unwrap();
    let prompt = ids(&case["prompt_ids"]);
    let numbers = |name: &str| std::fs::read(directory.join(name)).unwrap();
    let oracles = ["logits_last8.npy", "logits_last8_transformers.npy"].map(|n| npy(&numbers(n)));
    let kv = numbers("kv_prompt.npz");
    for mut runner in Runner::everywhere_of(|pool| load(&directory, pool).weights) {
        let rows = runner.feed(&prompt, 8);
        for oracle in &oracles {
            let error = distance(&rows.concat(), oracle);
            assert!(error <= LOGITS, "{name}: logits {error}");
        }
        check_rows(name, &runner, 0, &kv, "l0");
        check_rows(name, &runner, runner.layers() - 1, &kv, "last");
        let greedy = ids(&case["greedy_ids"]);
        assert_eq!(runner.greedy(rows[7].clone(), greedy.len()), greedy, "{name}");
    }
    check_slices(name, &directory, &prompt);
    check_text(&directory, &case, &prompt);
}

fn check_rows(name: &str, runner: &Runner, layer: usize, kv: &[u8], which: &str) {
    for (rows, kind) in runner.rows(layer).iter().zip(["k", "v"]) {
        let error = distance(rows, &npz(kv, &format!("{kind}_{which}")));
        assert!(error <= ROWS, "{name}: {kind} of layer {layer} {error}");
    }
}

/// However a prompt is cut, and whatever of it was there before, its logits have the same bits.
fn check_slices(name: &str, directory: &Path, prompt: &[u32]) {
    let [mut runner, _] = Runner::everywhere_of(|pool| load(directory, pool).weights);
    let whole = runner.feed(prompt, 8);
    for slices in [&[40, 48, 8][..], &[1, 31, 33, 23, 8], &[88, 1, 1, 1, 1, 1, 1, 1, 1]] {
        runner.restart();
        let (mut at, mut rows) = (0, Vec::new());
        for &slice in slices {
            rows.extend(runner.feed(&prompt[at..at + slice], slice.min(8)));
            at += slice;
        }
        assert_eq!(rows[rows.len() - 8..], whole[..], "{name} in {slices:?}");
    }
}

/// The prompt's text has its ids, and the greedy ids have their text.
fn check_text(directory: &Path, case: &Value, prompt: &[u32]) {
    let pool = Pool::new(std::num::NonZeroUsize::MIN);
    let tokenizer = Tokenizer::new(&load(directory, &pool).vocabulary).unwrap();
    assert_eq!(tokenizer.encode_prompt(case["prompt_text"].as_str().unwrap()).unwrap(), prompt);
    let greedy = case["greedy_text"].as_str().unwrap();
    assert_eq!(tokenizer.decode(&ids(&case["greedy_ids"])), greedy);
}

#[test]
fn llama_computes_what_both_oracles_compute() {
    check("llama");
}

#[test]
fn llama_with_scaled_frequencies_does_too() {
    check("llama3rope");
}

#[test]
fn mistral_does_beyond_its_window() {
    check("mistral");
}

#[test]
fn qwen2_does_with_its_biases() {
    check("qwen2");
}

#[test]
fn qwen3_does_with_its_norms_of_heads() {
    check("qwen3");
}

#[test]
fn smollm3_does_with_layers_that_are_not_told_positions() {
    check("smollm3");
}

#[test]
fn phi3_does_from_tensors_that_are_several() {
    check("phi3");
}

#[test]
fn gemma3_does_with_both_kinds_of_layers() {
    check("gemma3_text");
}

#[test]
fn gpt2_does_from_transposed_weights() {
    check("gpt2");
}
