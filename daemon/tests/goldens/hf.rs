//! Hugging Face directories of every family against two oracles in f32: logits, greedy ids, keys
//! and values, and the ids of their texts.

use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;
use tinygpt_kernels::Pool;
use tinygptd::model::load::{Checkpoint, Files, Packing, Weights};
use tinygptd::text::Tokenizer;

use crate::files::{find, gguf_case, ids, npy, npz};
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

/// A golden directory with another configuration, and its prompt.
fn changed(name: &str, keys: &Value) -> Option<(TempDir, Vec<u32>)> {
    let golden = find(&format!("hf/{name}"))?;
    let parse = |name: &str| -> Value {
        serde_json::from_slice(&std::fs::read(golden.join(name)).unwrap()).unwrap()
    };
    let directory = tempfile::tempdir().unwrap();
    let mut config = parse("config.json");
    keys.as_object().unwrap().iter().for_each(|(key, value)| config[key] = value.clone());
    for file in ["model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(golden.join(file), directory.path().join(file)).unwrap();
    }
    std::fs::write(directory.path().join("config.json"), config.to_string()).unwrap();
    Some((directory, ids(&parse("case.json")["prompt_ids"])))
}

/// Phi 3's, with the factors of the GGUF cases: trained with 64 tokens and good for 512.
fn long_phi3(attention_factor: &Value) -> Option<(TempDir, Vec<u32>)> {
    let factors = |step: f64| (0..16).map(|i| 1.0 + f64::from(i) / step).collect::<Vec<_>>();
    let scaling = json!({"type": "longrope", "short_factor": factors(64.0),
        "long_factor": factors(8.0), "attention_factor": attention_factor});
    changed("phi3", &json!({"original_max_position_embeddings": 64, "rope_scaling": scaling}))
}

#[test]
fn a_limit_on_the_context_chooses_longropes_factors() {
    let Some((directory, prompt)) = long_phi3(&json!(1.0)) else { return };
    let Some((growing, _)) = long_phi3(&Value::Null) else { return };
    let oracles = ["phi3-short.logits.npy", "phi3-long.logits.npy"];
    let [Some(short), Some(long)] = oracles.map(gguf_case) else { return };
    let [short, long] = [short, long].map(|oracle| npy(&oracle));
    let limited = |directory: &TempDir, pool: &Pool, limit: usize| {
        let mut weights = load(directory.path(), pool).weights;
        weights.limit(limit);
        weights
    };
    let error = |directory: &TempDir, limit: usize, oracle: &[f32]| {
        let runners = Runner::everywhere_of(|pool| limited(directory, pool, limit));
        runners.map(|mut runner| distance(&runner.feed(&prompt, 8).concat(), oracle))
    };
    let near = |errors: [f32; 2]| errors.iter().all(|&error| error <= LOGITS);
    assert!(near(error(&directory, 64, &short)) && near(error(&directory, 40, &short)));
    assert!(near(error(&growing, usize::MAX, &long)) && near(error(&growing, 65, &long)));
    assert!(error(&directory, 65, &short)[0] > 10.0 * LOGITS, "the other factors");
    let pool = Pool::new(std::num::NonZeroUsize::MIN);
    let named = |limit| limited(&directory, &pool, limit).config_digest_input();
    assert_ne!(named(64), named(65));
    assert_eq!((named(64), named(65)), (named(40), named(usize::MAX)));
}

/// A file of one tensor.
fn tensor(name: &str, dtype: &Value, shape: &Value, data: &[u8]) -> Vec<u8> {
    let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [0, data.len()]});
    let header = json!({ name: entry }).to_string();
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

/// It is the embedding with each row one further down, so the logits are, too.
#[test]
fn gpt2_may_have_a_head_of_its_own() {
    let untied = json!({"tie_word_embeddings": false});
    let Some((directory, prompt)) = changed("gpt2", &untied) else { return };
    let path = |name: &str| directory.path().join(name);
    let file = std::fs::read(path("model.safetensors")).unwrap();
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&file[8..8 + length]).unwrap();
    let (_, embedding) =
        header.as_object().unwrap().iter().find(|(name, _)| name.ends_with("wte.weight")).unwrap();
    let at = |i: usize| 8 + length + embedding["data_offsets"][i].as_u64().unwrap() as usize;
    let data = &file[at(0)..at(1)];
    let row = data.len() / embedding["shape"][0].as_u64().unwrap() as usize;
    let head = [&data[data.len() - row..], &data[..data.len() - row]].concat();
    let head = tensor("lm_head.weight", &embedding["dtype"], &embedding["shape"], &head);
    std::fs::rename(path("model.safetensors"), path("model-1.safetensors")).unwrap();
    std::fs::write(path("model-2.safetensors"), head).unwrap();
    let Some(oracle) = find("hf/gpt2/logits_last8.npy") else { return };
    let oracle = npy(&std::fs::read(oracle).unwrap());
    let vocab = oracle.len() / 8;
    let rolled = oracle.chunks_exact(vocab);
    let rolled: Vec<f32> =
        rolled.flat_map(|row| [&row[vocab - 1..], &row[..vocab - 1]].concat()).collect();
    let weights = |pool: &Pool| -> Weights { load(directory.path(), pool).weights };
    for mut runner in Runner::everywhere_of(weights) {
        assert!(distance(&runner.feed(&prompt, 8).concat(), &rolled) <= LOGITS);
    }
}
