//! GGUF files in parts, so that each part can lie.

/// A value as GGUF stores it, type number first.
pub(super) fn meta(kind: u32, value: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes(), value].concat()
}

pub(super) fn number(value: u32) -> Vec<u8> {
    meta(4, &value.to_le_bytes())
}

pub(super) fn float(value: f32) -> Vec<u8> {
    meta(6, &value.to_le_bytes())
}

pub(super) fn flag(value: u8) -> Vec<u8> {
    meta(7, &[value])
}

pub(super) fn raw_string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

pub(super) fn text(value: &str) -> Vec<u8> {
    meta(8, &raw_string(value))
}

pub(super) fn array(kind: u32, items: &[Vec<u8>]) -> Vec<u8> {
    let head = [&kind.to_le_bytes()[..], &(items.len() as u64).to_le_bytes()].concat();
    meta(9, &[head, items.concat()].concat())
}

#[derive(Clone)]
pub(super) struct Tensor {
    pub(super) name: String,
    /// Innermost first.
    pub(super) dims: Vec<u64>,
    pub(super) kind: u32,
    pub(super) offset: Option<u64>,
    pub(super) data: Vec<u8>,
}

/// A file in parts, so that each can lie.
#[derive(Clone)]
pub(super) struct File {
    pub(super) version: u32,
    pub(super) keys: Vec<(String, Vec<u8>)>,
    pub(super) tensors: Vec<Tensor>,
    pub(super) claimed_tensors: Option<u64>,
    pub(super) claimed_keys: Option<u64>,
}

impl File {
    pub(super) fn set(&mut self, key: &str, value: Vec<u8>) {
        self.keys.retain(|(other, _)| other != key);
        self.keys.push((key.into(), value));
    }

    pub(super) fn remove(&mut self, key: &str) {
        self.keys.retain(|(other, _)| other != key);
    }

    pub(super) fn tensor(&mut self, name: &str) -> &mut Tensor {
        self.tensors.iter_mut().find(|tensor| tensor.name == name).unwrap()
    }

    pub(super) fn add(&mut self, name: &str, dims: &[u64]) {
        let elements: u64 = dims.iter().product();
        let seed = name.len() as f32;
        let data = (0..elements).flat_map(|i| (i as f32 / 100.0 - seed).to_le_bytes()).collect();
        self.tensors.push(Tensor {
            name: name.into(),
            dims: dims.into(),
            kind: 0,
            offset: None,
            data,
        });
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = [&b"GGUF"[..], &self.version.to_le_bytes()].concat();
        let tensors = self.claimed_tensors.unwrap_or(self.tensors.len() as u64);
        bytes.extend(tensors.to_le_bytes());
        bytes.extend(self.claimed_keys.unwrap_or(self.keys.len() as u64).to_le_bytes());
        for (key, value) in &self.keys {
            bytes.extend(raw_string(key));
            bytes.extend(value);
        }
        let mut next = 0;
        for tensor in &self.tensors {
            bytes.extend(raw_string(&tensor.name));
            bytes.extend((tensor.dims.len() as u32).to_le_bytes());
            bytes.extend(tensor.dims.iter().flat_map(|dim| dim.to_le_bytes()));
            bytes.extend(tensor.kind.to_le_bytes());
            bytes.extend(tensor.offset.unwrap_or(next).to_le_bytes());
            next += (tensor.data.len() as u64).next_multiple_of(32);
        }
        for tensor in &self.tensors {
            bytes.resize(bytes.len().next_multiple_of(32), 0);
            bytes.extend(&tensor.data);
        }
        bytes
    }
}

/// One layer, 4 heads of 8 over 2 KV heads, 3 tokens.
pub(super) fn llama() -> File {
    let tokens: Vec<_> = ["a", "b", "</s>"].map(raw_string).into();
    let types: Vec<_> = [1i32, 1, 3].map(|kind| kind.to_le_bytes().to_vec()).into();
    let keys = [
        ("general.architecture", text("llama")),
        ("llama.block_count", number(1)),
        ("llama.context_length", number(64)),
        ("llama.embedding_length", number(32)),
        ("llama.feed_forward_length", number(64)),
        ("llama.attention.head_count", number(4)),
        ("llama.attention.head_count_kv", number(2)),
        ("llama.attention.layer_norm_rms_epsilon", float(1e-5)),
        ("llama.vocab_size", number(3)),
        ("tokenizer.ggml.model", text("gpt2")),
        ("tokenizer.ggml.pre", text("gpt-2")),
        ("tokenizer.ggml.tokens", array(8, &tokens)),
        ("tokenizer.ggml.token_type", array(5, &types)),
        ("tokenizer.ggml.eos_token_id", number(2)),
    ];
    let keys = keys.map(|(key, value)| (key.to_owned(), value)).into();
    let mut file =
        File { version: 3, keys, tensors: vec![], claimed_tensors: None, claimed_keys: None };
    for (name, dims) in [
        ("token_embd.weight", &[32, 3][..]),
        ("output_norm.weight", &[32]),
        ("blk.0.attn_norm.weight", &[32]),
        ("blk.0.attn_q.weight", &[32, 32]),
        ("blk.0.attn_k.weight", &[32, 16]),
        ("blk.0.attn_v.weight", &[32, 16]),
        ("blk.0.attn_output.weight", &[32, 32]),
        ("blk.0.ffn_norm.weight", &[32]),
        ("blk.0.ffn_gate.weight", &[32, 64]),
        ("blk.0.ffn_up.weight", &[32, 64]),
        ("blk.0.ffn_down.weight", &[64, 32]),
    ] {
        file.add(name, dims);
    }
    file
}

/// A Llama under another name.
pub(super) fn named(architecture: &str) -> File {
    let mut file = llama();
    for (key, _) in &mut file.keys {
        if let Some(part) = key.strip_prefix("llama.") {
            *key = format!("{architecture}.{part}");
        }
    }
    file.set("general.architecture", text(architecture));
    file
}

/// A file of each architecture with all that it can have.
pub(super) fn every() -> [File; 7] {
    [llama(), named("smollm3"), qwen2(), qwen3(), gemma3(), phi3(), gpt2()]
}

pub(super) fn qwen2() -> File {
    let mut file = named("qwen2");
    file.add("blk.0.attn_q.bias", &[32]);
    file.add("blk.0.attn_k.bias", &[16]);
    file.add("blk.0.attn_v.bias", &[16]);
    file
}

pub(super) fn qwen3() -> File {
    let mut file = named("qwen3");
    file.add("blk.0.attn_q_norm.weight", &[8]);
    file.add("blk.0.attn_k_norm.weight", &[8]);
    file
}

/// Two layers, the first with a window.
pub(super) fn gemma3() -> File {
    let mut file = named("gemma3");
    file.set("gemma3.attention.sliding_window", number(16));
    file.set("gemma3.attention.sliding_window_pattern", number(2));
    file.set("gemma3.rope.freq_base", float(1e6));
    file.set("gemma3.final_logit_softcapping", float(30.0));
    file.set("gemma3.block_count", number(2));
    let second = file.tensors.iter().filter_map(|tensor| {
        let name = format!("blk.1.{}", tensor.name.strip_prefix("blk.0.")?);
        Some(Tensor { name, ..tensor.clone() })
    });
    let second: Vec<_> = second.collect();
    file.tensors.extend(second);
    for layer in 0..2 {
        for (part, width) in [
            ("attn_q_norm", 8),
            ("attn_k_norm", 8),
            ("post_attention_norm", 32),
            ("post_ffw_norm", 32),
        ] {
            file.add(&format!("blk.{layer}.{part}.weight"), &[width]);
        }
    }
    file.set("tokenizer.ggml.model", text("llama"));
    let scores = [0f32, -1.0, -2.0].map(|score| score.to_le_bytes().to_vec());
    file.set("tokenizer.ggml.scores", array(6, &scores));
    file
}

/// Fused projections, and two sets of rotary factors.
pub(super) fn phi3() -> File {
    let mut file = named("phi3");
    file.tensors.retain(|tensor| !tensor.name.contains("attn_q") && !tensor.name.contains("ffn_"));
    file.tensors
        .retain(|tensor| !matches!(&*tensor.name, "blk.0.attn_k.weight" | "blk.0.attn_v.weight"));
    file.add("blk.0.attn_qkv.weight", &[32, 64]);
    file.add("blk.0.ffn_norm.weight", &[32]);
    file.add("blk.0.ffn_up.weight", &[32, 128]);
    file.add("blk.0.ffn_down.weight", &[64, 32]);
    for (name, factor) in [("short", 1f32), ("long", 8.0)] {
        let name = format!("rope_factors_{name}.weight");
        file.add(&name, &[4]);
        file.tensor(&name).data = [factor; 4].map(f32::to_le_bytes).concat();
    }
    file.set("phi3.rope.scaling.original_context_length", number(32));
    file.set("phi3.rope.scaling.attn_factor", float(1.25));
    file
}

/// LayerNorms, biases, one tensor for queries, keys and values.
pub(super) fn gpt2() -> File {
    let mut file = named("gpt2");
    file.remove("gpt2.attention.layer_norm_rms_epsilon");
    file.remove("gpt2.attention.head_count_kv");
    file.set("gpt2.attention.layer_norm_epsilon", float(1e-5));
    file.tensors.clear();
    for (name, dims) in [
        ("token_embd.weight", &[32, 3][..]),
        ("position_embd.weight", &[32, 64]),
        ("output_norm.weight", &[32]),
        ("output_norm.bias", &[32]),
        ("blk.0.attn_norm.weight", &[32]),
        ("blk.0.attn_norm.bias", &[32]),
        ("blk.0.attn_qkv.weight", &[32, 96]),
        ("blk.0.attn_qkv.bias", &[96]),
        ("blk.0.attn_output.weight", &[32, 32]),
        ("blk.0.attn_output.bias", &[32]),
        ("blk.0.ffn_norm.weight", &[32]),
        ("blk.0.ffn_norm.bias", &[32]),
        ("blk.0.ffn_up.weight", &[32, 64]),
        ("blk.0.ffn_up.bias", &[64]),
        ("blk.0.ffn_down.weight", &[64, 32]),
        ("blk.0.ffn_down.bias", &[32]),
    ] {
        file.add(name, dims);
    }
    file
}
