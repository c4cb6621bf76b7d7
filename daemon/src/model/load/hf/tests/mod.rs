//! Directories that are right, and what is wrong with others.

#![expect(clippy::unwrap_used, reason = "tests")]

mod config;
mod directory;
mod quantised;
mod text;

use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;

use serde_json::{Value, json};
use tinygpt_kernels::Pool;

use crate::model::load::{Checkpoint, Files, LoadError, OpenError, Packing};

/// A directory with a model of one layer, one head of two and a vocabulary of three.
struct Model(tempfile::TempDir);

impl Model {
    fn new() -> Self {
        let model = Self(tempfile::tempdir().unwrap());
        model.write("config.json", llama().to_string());
        model.write("tokenizer.json", TOKENIZER);
        model.write_tensors("model.safetensors", &tensors());
        model
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, name: &str, contents: impl AsRef<[u8]>) {
        fs::write(self.path().join(name), contents).unwrap();
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.path().join(name)).unwrap();
    }

    fn write_tensors(&self, name: &str, tensors: &[(&str, Vec<usize>)]) {
        let mut header = serde_json::Map::new();
        let mut end = 0;
        for (name, shape) in tensors {
            let begin = end;
            end += 4 * shape.iter().product::<usize>();
            let entry = json!({"dtype": "F32", "shape": shape, "data_offsets": [begin, end]});
            header.insert((*name).into(), entry);
        }
        let header = Value::Object(header).to_string();
        let size = (header.len() as u64).to_le_bytes();
        let numbers = (0..end / 4).flat_map(|at| (at as f32).to_le_bytes());
        self.write(name, [&size[..], header.as_bytes(), &numbers.collect::<Vec<_>>()].concat());
    }

    fn load(&self) -> Result<Checkpoint, LoadError> {
        let pool = Pool::new(NonZeroUsize::MIN);
        match Files::open(self.path()) {
            Ok(files) => files.load(&Packing::new(&pool)),
            Err(OpenError::Load(error)) => Err(error),
            Err(error) => panic!("{error}"),
        }
    }

    fn refusal(&self) -> String {
        self.load().unwrap_err().to_string()
    }
}

fn llama() -> Value {
    json!({
        "model_type": "llama", "hidden_size": 2, "intermediate_size": 4, "num_hidden_layers": 1,
        "num_attention_heads": 1, "max_position_embeddings": 8, "vocab_size": 3
    })
}

fn tensors() -> Vec<(&'static str, Vec<usize>)> {
    vec![
        ("lm_head.weight", vec![3, 2]),
        ("model.embed_tokens.weight", vec![3, 2]),
        ("model.layers.0.input_layernorm.weight", vec![2]),
        ("model.layers.0.mlp.down_proj.weight", vec![2, 4]),
        ("model.layers.0.mlp.gate_proj.weight", vec![4, 2]),
        ("model.layers.0.mlp.up_proj.weight", vec![4, 2]),
        ("model.layers.0.post_attention_layernorm.weight", vec![2]),
        ("model.layers.0.self_attn.k_proj.weight", vec![2, 2]),
        ("model.layers.0.self_attn.o_proj.weight", vec![2, 2]),
        ("model.layers.0.self_attn.q_proj.weight", vec![2, 2]),
        ("model.layers.0.self_attn.v_proj.weight", vec![2, 2]),
        ("model.norm.weight", vec![2]),
    ]
}

const TOKENIZER: &str = r#"{"version": "1.0", "added_tokens": [], "normalizer": null,
    "pre_tokenizer": null, "post_processor": null, "decoder": {"type": "ByteLevel",
    "add_prefix_space": false, "trim_offsets": true, "use_regex": true}, "model": {"type": "BPE",
    "vocab": {"a": 0, "b": 1, "c": 2}, "merges": []}}"#;
