//! Small models with seeded weights, as Hugging Face directories: for behaviour, not for sense.

use std::path::Path;
use std::{fs, io};

use serde_json::{Value, json};

/// The files with its weights.
pub const SHARDS: [&str; 2] =
    ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];

/// Which tensor is in which.
pub const INDEX: &str = "model.safetensors.index.json";

/// Makes the directory of a Llama.
///
/// # Errors
/// When the file system refuses.
pub fn write(directory: &Path) -> io::Result<()> {
    write_model(directory, &config(), &tensors())
}

/// Makes the directory of a Gemma 3: one layer with a window, one without.
///
/// # Errors
/// When the file system refuses.
pub fn write_gemma(directory: &Path) -> io::Result<()> {
    let more = |layer| {
        let norm = |name: &str, width| (format!("model.layers.{layer}.{name}.weight"), vec![width]);
        let head = WIDTH / 4;
        [
            norm("pre_feedforward_layernorm", WIDTH),
            norm("post_feedforward_layernorm", WIDTH),
            norm("self_attn.q_norm", head),
            norm("self_attn.k_norm", head),
        ]
    };
    let mut config = config();
    let gemma = json!({
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "head_dim": WIDTH / 4,
        "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 24,
        "rms_norm_eps": 1e-6, "rope_theta": 1e6, "rope_local_base_freq": 1e4,
        "sliding_window": 40, "layer_types": ["sliding_attention", "full_attention"]
    });
    for (key, value) in gemma.as_object().into_iter().flatten() {
        config[key] = value.clone();
    }
    let tensors: Vec<_> = tensors().into_iter().chain((0..2).flat_map(more)).collect();
    write_model(directory, &config, &tensors)
}

fn write_model(
    directory: &Path,
    config: &Value,
    tensors: &[(String, Vec<usize>)],
) -> io::Result<()> {
    fs::create_dir(directory)?;
    let mut map = serde_json::Map::new();
    for (shard, half) in SHARDS.iter().zip(tensors.chunks(tensors.len().div_ceil(2))) {
        fs::write(directory.join(shard), safetensors(half))?;
        map.extend(half.iter().map(|(name, _)| (name.clone(), json!(shard))));
    }
    let files = [
        ("config.json", config.clone()),
        ("tokenizer.json", tokenizer()),
        (INDEX, json!({"weight_map": map})),
    ];
    files
        .into_iter()
        .try_for_each(|(name, value)| fs::write(directory.join(name), value.to_string()))
}

const WIDTH: usize = 64;
const MLP: usize = 96;
const VOCAB: usize = 256;

/// What `config.json` says.
#[must_use]
pub fn config() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": WIDTH,
        "intermediate_size": MLP, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 512, "vocab_size": VOCAB,
        "tie_word_embeddings": true, "eos_token_id": 255
    })
}

/// What `tokenizer.json` says: every byte is a token.
#[must_use]
pub fn tokenizer() -> Value {
    let own = |byte: &u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let (own, others): (Vec<u32>, Vec<u32>) = (0..256).partition(own);
    let others = others.iter().zip(0x100..).map(|(byte, letter)| (*byte, letter));
    let letters = own.iter().map(|byte| (*byte, *byte)).chain(others);
    let vocab = letters.map(|(byte, letter)| {
        (char::from_u32(letter).unwrap_or_default().to_string(), json!(byte))
    });
    let byte_level = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true
    });
    json!({
        "version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": byte_level,
        "post_processor": null, "decoder": byte_level,
        "model": {"type": "BPE", "vocab": Value::Object(vocab.collect()), "merges": []}
    })
}

/// Names and shapes.
fn tensors() -> Vec<(String, Vec<usize>)> {
    let mut tensors = vec![
        ("model.embed_tokens.weight".to_owned(), vec![VOCAB, WIDTH]),
        ("model.norm.weight".to_owned(), vec![WIDTH]),
    ];
    for layer in 0..2 {
        for (name, shape) in [
            ("input_layernorm", vec![WIDTH]),
            ("mlp.down_proj", vec![WIDTH, MLP]),
            ("mlp.gate_proj", vec![MLP, WIDTH]),
            ("mlp.up_proj", vec![MLP, WIDTH]),
            ("post_attention_layernorm", vec![WIDTH]),
            ("self_attn.k_proj", vec![WIDTH / 2, WIDTH]),
            ("self_attn.o_proj", vec![WIDTH, WIDTH]),
            ("self_attn.q_proj", vec![WIDTH, WIDTH]),
            ("self_attn.v_proj", vec![WIDTH / 2, WIDTH]),
        ] {
            tensors.push((format!("model.layers.{layer}.{name}.weight"), shape));
        }
    }
    tensors
}

/// A file of bf16 tensors: norms near one, other numbers around zero, the same on every run.
fn safetensors(tensors: &[(String, Vec<usize>)]) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, shape) in tensors {
        let begin = data.len();
        for at in 0..shape.iter().product::<usize>() {
            let noise = ((at + begin).wrapping_mul(2_654_435_761) >> 7) % 1000;
            let small = (noise as f32 - 500.0) / 2000.0;
            let number = if shape.len() == 1 { 1.0 + small } else { small };
            data.extend(((number.to_bits() >> 16) as u16).to_le_bytes());
        }
        let place = json!({"dtype": "BF16", "shape": shape, "data_offsets": [begin, data.len()]});
        header.insert(name.clone(), place);
    }
    let header = Value::Object(header).to_string();
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
}
