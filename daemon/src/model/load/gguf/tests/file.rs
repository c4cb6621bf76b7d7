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
