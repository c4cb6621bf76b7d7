//! Weights of golden GGUF files, element by element, against candle's reader and dequantiser.

use std::collections::HashMap;
use std::io::Cursor;
use std::num::NonZeroUsize;

use candle_core::Device;
use candle_core::quantized::gguf_file::Content;
use tinygpt_kernels::{Matrix, Pool};
use tinygptd::model::load::{LlamaWeights, Weights, load};

use crate::files::{read, smollm2};

struct Oracle<'a> {
    content: Content,
    file: Cursor<&'a [u8]>,
}

impl Oracle<'_> {
    fn tensor(&mut self, name: &str) -> Vec<f32> {
        let tensor = self.content.tensor(&mut self.file, name, &Device::Cpu).unwrap();
        let values = tensor.dequantize(&Device::Cpu).unwrap();
        values.flatten_all().unwrap().to_vec1().unwrap()
    }
}

fn llama(file: &[u8]) -> LlamaWeights {
    let pool = Pool::new(NonZeroUsize::new(2).unwrap());
    match load(file, &pool).unwrap().weights {
        Weights::Llama(weights) => weights,
        _ => panic!("a llama"),
    }
}

/// Matrices of a file by their names in it.
fn matrices(weights: &LlamaWeights) -> HashMap<String, &Matrix> {
    let mut matrices = HashMap::from([("token_embd.weight".into(), &weights.token_embedding)]);
    matrices.extend(weights.head.iter().map(|head| ("output.weight".into(), head)));
    for (layer, block) in weights.blocks.iter().enumerate() {
        for (part, linear) in [
            ("attn_q", &block.attention.q),
            ("attn_k", &block.attention.k),
            ("attn_v", &block.attention.v),
            ("attn_output", &block.attention.o),
            ("ffn_gate", &block.gate),
            ("ffn_up", &block.up),
            ("ffn_down", &block.down),
        ] {
            matrices.insert(format!("blk.{layer}.{part}.weight"), &linear.weight);
        }
    }
    matrices
}

/// Every element within 1e-6 of the largest of its row: a value near zero may be the difference
/// of two large ones.
fn check(file: &[u8]) {
    let weights = llama(file);
    let content = Content::read(&mut Cursor::new(file)).unwrap();
    let mut oracle = Oracle { content, file: Cursor::new(file) };
    for (name, matrix) in matrices(&weights) {
        let expected = oracle.tensor(&name);
        let mut row = vec![0.0; matrix.k()];
        for (n, expected) in expected.chunks_exact(matrix.k()).enumerate() {
            matrix.row(n, &mut row);
            let largest = expected.iter().fold(0f32, |largest, value| largest.max(value.abs()));
            for (value, expected) in row.iter().zip(expected) {
                let error = (value - expected).abs();
                assert!(error <= 1e-6 * largest, "{name} row {n}: {value}, expected {expected}");
            }
        }
    }
    assert_eq!(weights.final_norm.weight, oracle.tensor("output_norm.weight"));
    let last = weights.blocks.len() - 1;
    let norm = &weights.blocks[last].norm.weight;
    assert_eq!(*norm, oracle.tensor(&format!("blk.{last}.ffn_norm.weight")));
}

#[test]
fn every_weight_type_has_the_oracles_values() {
    for file in [
        "gguf_tiny/llama/Q8_0.gguf",
        "gguf_tiny/llama/Q4_0.gguf",
        "gguf_tiny/llama/Q4_K.gguf",
        "gguf_tiny/llama3rope/F16.gguf",
        "gguf/llama3rope-BF16.gguf",
        "gguf/llama3rope-Q4_1.gguf",
        "gguf/llama3rope-Q5_0.gguf",
        "gguf/llama3rope-Q5_1.gguf",
        "gguf/llama-Q5_K.gguf",
        "gguf/llama-Q6_K.gguf",
        "gguf/llama-Q2_K.gguf",
        "gguf/llama-Q3_K.gguf",
    ] {
        check(&read(file));
    }
}

#[test]
fn smollm2_has_the_oracles_weights() {
    let Some(model) = smollm2() else { return };
    check(&model);
}
