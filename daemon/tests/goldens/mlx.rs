//! MLX-quantised directories against their dequantised weights in f32: logits and greedy ids.

use std::path::Path;

use serde_json::Value;
use tinygpt_kernels::Pool;
use tinygptd::model::load::{Checkpoint, Files, Packing};

use crate::files::{find, floats, ids, npy};
use crate::runner::{Runner, distance};

const LOGITS: f32 = 1e-3;
/// Two logits that are so close may change places.
const CLOSE: f32 = 2e-3;

fn load(directory: &Path, pool: &Pool) -> Checkpoint {
    Files::open(directory).unwrap().load(&Packing::new(pool)).unwrap()
}

fn check(name: &str) {
    let Some(directory) = find(name) else { return };
    let read = |name: &str| std::fs::read(directory.join(name)).unwrap();
    let case: Value = serde_json::from_slice(&read("case.json")).unwrap();
    let (prompt, logits) = (ids(&case["prompt_ids"]), npy(&read("logits_last8.npy")));
    let margins = floats(&case["greedy_margin"]);
    let sure = margins.iter().position(|&margin| margin <= CLOSE).unwrap_or(margins.len());
    let greedy = &ids(&case["greedy_ids"])[..sure];
    for mut runner in Runner::everywhere_of(|pool| load(&directory, pool).weights) {
        let rows = runner.feed(&prompt, 8);
        let error = distance(&rows.concat(), &logits);
        assert!(error <= LOGITS, "{name}: logits {error}");
        assert_eq!(runner.greedy(rows[7].clone(), sure), greedy, "{name}");
    }
}

#[test]
fn a_llama_of_3_bits_computes_what_its_dequantised_weights_do() {
    check("mlx_quant/llama-q3g64");
}

#[test]
fn a_qwen3_of_4_bits_does() {
    check("mlx_quant/qwen3-q4g64");
}

#[test]
fn a_qwen3_of_8_bits_does() {
    check("mlx_quant/qwen3-q8g32");
}

#[test]
fn a_qwen3_with_schemes_for_some_layers_does() {
    check("mlx_quant/qwen3-q4g32-mixed");
}

#[test]
fn a_llama_whose_layers_have_every_scheme_does() {
    check("mlx/every_scheme");
}

/// What `make_mlx_goldens.py` makes of a golden model.
#[test]
fn a_llama_in_each_scheme_as_a_whole_does() {
    for bits in [2, 3, 4, 5, 6, 8] {
        for group in [32, 64, 128] {
            check(&format!("mlx/affine-{bits}-{group}"));
        }
    }
    for scheme in ["mxfp4-4-32", "nvfp4-4-16", "mxfp8-8-32"] {
        check(&format!("mlx/{scheme}"));
    }
}

#[test]
fn other_families_do_as_mlx_names_and_arranges_their_tensors() {
    for family in ["gemma3_text", "gpt2", "phi3", "qwen2", "smollm3"] {
        check(&format!("mlx/{family}-affine-4-32"));
    }
}
