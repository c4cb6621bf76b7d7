//! The Llama architecture: its keys, its tensors.

use tinygpt_kernels::Convention;

use super::metadata::Metadata;
use super::tensors::Tensors;
use super::value::Value;
use crate::model::load::{
    Attention, LayerPlan, LlamaBlock, LlamaConfig, LlamaWeights, LoadError, RopeConfig,
};

/// Keys under `llama.` that are read below, or say nothing about the arithmetic.
const KNOWN: [&str; 16] = [
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.value_length",
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scaling.factor",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
    "vocab_size",
];

/// Base of the rotary frequencies in files that do not say.
const ROPE_BASE: f32 = 10_000.0;

/// Longest context that is believed.
const CONTEXT: usize = 1 << 20;

/// Most layers that are believed.
const LAYERS: usize = 1 << 12;

/// The dimensions, checked against each other; `vocab` is the number of tokens in the file.
pub(super) fn config(
    metadata: &Metadata<'_>,
    tensors: &mut Tensors<'_>,
    vocab: usize,
) -> Result<LlamaConfig, LoadError> {
    refuse_unknown_keys(metadata)?;
    refuse_rope_scaling(metadata)?;
    let heads = positive(metadata, "llama.attention.head_count")?;
    let kv_heads = optional(metadata, "llama.attention.head_count_kv")?.unwrap_or(heads);
    let width = positive(metadata, "llama.embedding_length")?;
    expect(heads.is_multiple_of(kv_heads), "llama.attention.head_count_kv", kv_heads, || {
        format!("a divisor of the {heads} heads")
    })?;
    let head_dim = head_dim(metadata, width, heads)?;
    let stated = optional(metadata, "llama.vocab_size")?.unwrap_or(vocab);
    expect(stated == vocab, "llama.vocab_size", stated, || {
        format!("the {vocab} tokens of the vocabulary")
    })?;
    let layers = positive(metadata, "llama.block_count")?;
    expect(layers <= LAYERS, "llama.block_count", layers, || format!("at most {LAYERS}"))?;
    let rope = RopeConfig {
        base: metadata.optional_float("llama.rope.freq_base")?.unwrap_or(ROPE_BASE).into(),
        convention: Convention::Interleaved,
        dims: head_dim,
        factors: rope_factors(tensors, head_dim)?,
        attention_factor: 1.0,
    };
    Ok(LlamaConfig {
        layers,
        heads,
        kv_heads,
        width,
        mlp: positive(metadata, "llama.feed_forward_length")?,
        head_dim,
        context: context(metadata)?,
        vocab,
        eps: metadata.float("llama.attention.layer_norm_rms_epsilon")?,
        ropes: vec![rope],
        plan: vec![LayerPlan::PLAIN; layers],
    })
}

/// One head size for queries, keys and values, all of it rotated.
fn head_dim(metadata: &Metadata<'_>, width: usize, heads: usize) -> Result<usize, LoadError> {
    let head_dim = match optional(metadata, "llama.attention.key_length")? {
        Some(head_dim) => head_dim,
        None if width.is_multiple_of(heads) => width / heads,
        None => {
            return expect(false, "llama.embedding_length", width, || {
                format!("a multiple of the {heads} heads")
            })
            .map(|()| 0);
        }
    };
    expect(head_dim.is_multiple_of(2), "the head size", head_dim, || "even".into())?;
    for key in ["llama.attention.value_length", "llama.rope.dimension_count"] {
        let found = optional(metadata, key)?.unwrap_or(head_dim);
        expect(found == head_dim, key, found, || format!("the head size, {head_dim}"))?;
    }
    Ok(head_dim)
}

fn context(metadata: &Metadata<'_>) -> Result<usize, LoadError> {
    const KEY: &str = "llama.context_length";
    let found = positive(metadata, KEY)?;
    expect(found <= CONTEXT, KEY, found, || format!("at most {CONTEXT}"))?;
    Ok(found)
}

fn rope_factors(tensors: &mut Tensors<'_>, head_dim: usize) -> Result<Option<Vec<f32>>, LoadError> {
    const NAME: &str = "rope_freqs.weight";
    if !tensors.contains(NAME) {
        return Ok(None);
    }
    let factors = tensors.vector(NAME, head_dim / 2)?;
    match factors.iter().find(|factor| !(factor.is_finite() && **factor > 0.0)) {
        None => Ok(Some(factors)),
        Some(factor) => Err(LoadError::OutOfRange {
            what: format!("a factor in tensor \"{NAME}\""),
            found: factor.to_string(),
            expected: "positive and finite".into(),
        }),
    }
}

/// A key that this reader does not know may change the arithmetic, unless its value is neutral.
fn refuse_unknown_keys(metadata: &Metadata<'_>) -> Result<(), LoadError> {
    for key in metadata.keys() {
        let Some(part) = key.strip_prefix("llama.") else { continue };
        match metadata.get(key) {
            Some(value) if !KNOWN.contains(&part) && !neutral(part, value) => {
                return Err(unsupported(key, value.describe()));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Values that say of a feature that it is not used.
fn neutral(part: &str, value: Value<'_>) -> bool {
    match part {
        "expert_count" | "expert_used_count" | "attention.sliding_window" => {
            matches!(value, Value::Unsigned(0) | Value::Signed(0))
        }
        "attention.causal" => value == Value::Bool(true),
        // Checkpoints in the original layout and in the permuted one are stored alike.
        "tensor_data_layout" => value == Value::String(b"Meta AI original pth"),
        _ => false,
    }
}

/// A scaling factor without a type means linear scaling.
fn refuse_rope_scaling(metadata: &Metadata<'_>) -> Result<(), LoadError> {
    const TYPE: &str = "llama.rope.scaling.type";
    const FACTOR: &str = "llama.rope.scaling.factor";
    let factor = metadata.optional_float(FACTOR)?.unwrap_or(1.0);
    match metadata.optional_text(TYPE)? {
        Some("none") => Ok(()),
        None | Some("linear") if factor == 0.0 || factor == 1.0 => Ok(()),
        None => Err(unsupported(FACTOR, factor.to_string())),
        Some(found) => Err(unsupported(TYPE, format!("\"{found}\" with factor {factor}"))),
    }
}

fn positive(metadata: &Metadata<'_>, key: &str) -> Result<usize, LoadError> {
    let found = metadata.size(key)?;
    expect(found > 0, key, found, || "positive".into()).map(|()| found)
}

fn optional(metadata: &Metadata<'_>, key: &str) -> Result<Option<usize>, LoadError> {
    metadata.get(key).map(|_| positive(metadata, key)).transpose()
}

fn expect(
    holds: bool,
    what: &str,
    found: usize,
    expected: impl FnOnce() -> String,
) -> Result<(), LoadError> {
    if holds {
        return Ok(());
    }
    Err(LoadError::OutOfRange { what: what.into(), found: found.to_string(), expected: expected() })
}

fn unsupported(key: &str, detail: String) -> LoadError {
    LoadError::Unsupported { what: format!("metadata key \"{key}\""), detail }
}

/// The weights; a tensor that is left over is an error.
pub(super) fn weights(
    config: LlamaConfig,
    mut tensors: Tensors<'_>,
) -> Result<LlamaWeights, LoadError> {
    let LlamaConfig { vocab, width, .. } = config;
    let token_embedding = tensors.matrix("token_embd.weight", vocab, width)?;
    let final_norm = tensors.norm("output_norm", width)?;
    const HEAD: &str = "output.weight";
    let head = tensors.contains(HEAD).then(|| tensors.matrix(HEAD, vocab, width)).transpose()?;
    let blocks = (0..config.layers).map(|layer| block(&config, &mut tensors, layer));
    let blocks = blocks.collect::<Result<_, _>>()?;
    tensors.finish()?;
    Ok(LlamaWeights { config, token_embedding, final_norm, head, blocks })
}

fn block(
    config: &LlamaConfig,
    tensors: &mut Tensors<'_>,
    layer: usize,
) -> Result<LlamaBlock, LoadError> {
    let LlamaConfig { width, mlp, .. } = *config;
    let (queries, keys) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
    let name = |part: &str| format!("blk.{layer}.{part}");
    Ok(LlamaBlock {
        attention: Attention {
            norm: tensors.norm(&name("attn_norm"), width)?,
            q: tensors.linear(&name("attn_q"), queries, width)?,
            k: tensors.linear(&name("attn_k"), keys, width)?,
            v: tensors.linear(&name("attn_v"), keys, width)?,
            o: tensors.linear(&name("attn_output"), width, queries)?,
            q_norm: None,
            k_norm: None,
        },
        norm: tensors.norm(&name("ffn_norm"), width)?,
        gate: tensors.linear(&name("ffn_gate"), mlp, width)?,
        up: tensors.linear(&name("ffn_up"), mlp, width)?,
        down: tensors.linear(&name("ffn_down"), width, mlp)?,
    })
}
