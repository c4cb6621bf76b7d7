//! The Llama family: what distinguishes its members in a file, and its tensors.

use tinygpt_kernels::Convention;

use super::keys::Keys;
use super::rope;
use super::tensors::Tensors;
use crate::kv::layout::Window;
use crate::model::load::{
    Attention, LayerPlan, Linear, LlamaBlock, LlamaConfig, LlamaWeights, LoadError,
};

/// Largest head that is believed.
const HEAD: usize = 1 << 14;

/// A member of the family.
#[derive(Debug)]
pub(super) struct Member {
    /// As files name it.
    pub(super) name: &'static str,
    /// Which elements turn together: converters put the rows of some members in another order.
    pub(super) convention: Convention,
    /// Whether heads are normalised before they turn.
    pub(super) normalised: bool,
    /// Whether a part of a head may be left as it is.
    partial: bool,
    /// Whether all layers may have a window.
    windowed: bool,
    /// Every so many layers there is one that is not told positions.
    silent: Option<usize>,
}

impl Member {
    const fn new(name: &'static str, convention: Convention) -> Self {
        Self { name, convention, normalised: false, partial: false, windowed: false, silent: None }
    }

    /// Gemma 3, as far as it is a Llama.
    pub(super) const GEMMA3: Self =
        Self { normalised: true, ..Self::new("gemma3", Convention::HalfSplit) };
}

/// The members that can run; Mistral's files say `llama`. llama.cpp does not look at Phi-3's window,
/// the model's authors do.
pub(super) static MEMBERS: [Member; 5] = [
    Member { windowed: true, ..Member::new("llama", Convention::Interleaved) },
    Member { silent: Some(4), ..Member::new("smollm3", Convention::Interleaved) },
    Member::new("qwen2", Convention::HalfSplit),
    Member { normalised: true, ..Member::new("qwen3", Convention::HalfSplit) },
    Member { partial: true, windowed: true, ..Member::new("phi3", Convention::HalfSplit) },
];

/// The dimensions, checked against each other; `vocab` is the number of tokens in the file.
pub(super) fn config(
    member: &Member,
    keys: &Keys<'_>,
    tensors: &mut Tensors<'_>,
    vocab: usize,
) -> Result<LlamaConfig, LoadError> {
    let (heads, kv_heads) = keys.heads()?;
    let width = keys.size("embedding_length")?;
    let head_dim = head_dim(keys, width, heads)?;
    let turned = turned(member, keys, head_dim)?;
    keys.check_vocab(vocab)?;
    let (layers, context) = (keys.layers()?, keys.context()?);
    let window = if member.windowed { window(keys, context)? } else { Window::Full };
    Ok(LlamaConfig {
        layers,
        heads,
        kv_heads,
        width,
        mlp: keys.size("feed_forward_length")?,
        head_dim,
        context,
        vocab,
        eps: keys.float("attention.layer_norm_rms_epsilon")?,
        ropes: vec![rope::read(keys, tensors, member.convention, turned, context)?],
        plan: (0..layers).map(|layer| plan(member, window, layer)).collect(),
    })
}

fn plan(member: &Member, window: Window, layer: usize) -> LayerPlan {
    let silent = member.silent.is_some_and(|every| (layer + 1).is_multiple_of(every));
    LayerPlan { rope: (!silent).then_some(0), window }
}

/// What the file says that a query sees. No window is as wide as the context.
pub(super) fn window(keys: &Keys<'_>, context: usize) -> Result<Window, LoadError> {
    let tokens = keys.size_or_zero("attention.sliding_window")?;
    Ok(tokens.filter(|&tokens| tokens < context).map_or(Window::Full, Window::Sliding))
}

/// One head size for queries, keys and values.
fn head_dim(keys: &Keys<'_>, width: usize, heads: usize) -> Result<usize, LoadError> {
    const KEY: &str = "attention.key_length";
    let head_dim = match keys.optional_size(KEY)? {
        Some(head_dim) => head_dim,
        None => {
            keys.expect(width.is_multiple_of(heads), "embedding_length", width, || {
                format!("a multiple of the {heads} heads")
            })?;
            width / heads
        }
    };
    keys.expect(head_dim.is_multiple_of(2) && head_dim <= HEAD, KEY, head_dim, || {
        format!("even and at most {HEAD}")
    })?;
    const VALUES: &str = "attention.value_length";
    let values = keys.optional_size(VALUES)?.unwrap_or(head_dim);
    keys.expect(values == head_dim, VALUES, values, || format!("the head size, {head_dim}"))?;
    Ok(head_dim)
}

/// Elements of a head that turn.
fn turned(member: &Member, keys: &Keys<'_>, head_dim: usize) -> Result<usize, LoadError> {
    const KEY: &str = "rope.dimension_count";
    let turned = keys.optional_size(KEY)?.unwrap_or(head_dim);
    let whole = turned == head_dim;
    let part = member.partial && turned < head_dim && turned.is_multiple_of(2);
    keys.expect(whole || part, KEY, turned, || format!("the head size, {head_dim}"))?;
    Ok(turned)
}

/// The weights; a tensor that is left over is an error.
pub(super) fn weights(
    member: &Member,
    config: LlamaConfig,
    mut tensors: Tensors<'_>,
) -> Result<LlamaWeights, LoadError> {
    let LlamaConfig { vocab, width, .. } = config;
    let token_embedding = tensors.matrix("token_embd.weight", vocab, width)?;
    let final_norm = tensors.norm("output_norm", width)?;
    let head = tensors.optional_matrix("output.weight", vocab, width)?;
    let blocks = (0..config.layers).map(|layer| block(member, &config, &mut tensors, layer));
    let blocks = blocks.collect::<Result<_, _>>()?;
    tensors.finish()?;
    Ok(LlamaWeights { config, token_embedding, final_norm, head, blocks })
}

fn block(
    member: &Member,
    config: &LlamaConfig,
    tensors: &mut Tensors<'_>,
    layer: usize,
) -> Result<LlamaBlock, LoadError> {
    let attention = attention(member, config, tensors, layer)?;
    let norm = tensors.norm(&format!("blk.{layer}.ffn_norm"), config.width)?;
    let [gate, up, down] = mlp(config, tensors, layer)?;
    Ok(LlamaBlock { attention, norm, gate, up, down })
}

/// A block's first half, whose projections may be one tensor.
pub(super) fn attention(
    member: &Member,
    config: &LlamaConfig,
    tensors: &mut Tensors<'_>,
    layer: usize,
) -> Result<Attention, LoadError> {
    let LlamaConfig { width, heads, kv_heads, head_dim, .. } = *config;
    let (queries, keys) = (heads * head_dim, kv_heads * head_dim);
    let name = |part: &str| format!("blk.{layer}.{part}");
    let norm = tensors.norm(&name("attn_norm"), width)?;
    let fused = name("attn_qkv");
    let [q, k, v] = if tensors.contains(&format!("{fused}.weight")) {
        tensors.fused(&fused, [queries, keys, keys], width)?
    } else {
        [
            tensors.linear(&name("attn_q"), queries, width)?,
            tensors.linear(&name("attn_k"), keys, width)?,
            tensors.linear(&name("attn_v"), keys, width)?,
        ]
    };
    let o = tensors.linear(&name("attn_output"), width, queries)?;
    let [q_norm, k_norm] = if member.normalised {
        let mut norm = |part| tensors.norm(&name(part), head_dim).map(Some);
        [norm("attn_q_norm")?, norm("attn_k_norm")?]
    } else {
        [None, None]
    };
    Ok(Attention { norm, q, k, v, o, q_norm, k_norm })
}

/// Gate, up and down; without a gate of its own, the first half of `ffn_up` is it.
pub(super) fn mlp(
    config: &LlamaConfig,
    tensors: &mut Tensors<'_>,
    layer: usize,
) -> Result<[Linear; 3], LoadError> {
    let LlamaConfig { width, mlp, .. } = *config;
    let name = |part: &str| format!("blk.{layer}.{part}");
    let gate = name("ffn_gate");
    let [gate, up] = if tensors.contains(&format!("{gate}.weight")) {
        [tensors.linear(&gate, mlp, width)?, tensors.linear(&name("ffn_up"), mlp, width)?]
    } else {
        tensors.fused(&name("ffn_up"), [mlp, mlp], width)?
    };
    Ok([gate, up, tensors.linear(&name("ffn_down"), width, mlp)?])
}
