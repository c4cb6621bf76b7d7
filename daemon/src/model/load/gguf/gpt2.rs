//! GPT-2: learned positions, LayerNorm, biases, one tensor for queries, keys and values.

use tinygpt_kernels::Gelu;

use super::keys::Keys;
use super::tensors::Tensors;
use crate::kv::layout::Window;
use crate::model::load::{Attention, Dense, GptBlock, GptConfig, GptWeights, LoadError, Mlp};

/// The dimensions; `vocab` is the number of tokens in the file.
pub(super) fn config(keys: &Keys<'_>, vocab: usize) -> Result<GptConfig, LoadError> {
    let (heads, kv_heads) = keys.heads()?;
    let width = keys.size("embedding_length")?;
    keys.expect(width.is_multiple_of(heads), "embedding_length", width, || {
        format!("a multiple of the {heads} heads")
    })?;
    keys.check_vocab(vocab)?;
    Ok(GptConfig {
        layers: keys.layers()?,
        heads,
        kv_heads,
        width,
        mlp: keys.size("feed_forward_length")?,
        context: keys.context()?,
        vocab,
        eps: keys.float("attention.layer_norm_epsilon")?,
        activation: Gelu::Tanh,
        window: Window::Full,
        experts: None,
    })
}

/// The weights; a tensor that is left over is an error.
pub(super) fn weights(
    config: GptConfig,
    mut tensors: Tensors<'_>,
) -> Result<GptWeights, LoadError> {
    let GptConfig { layers, vocab, width, context, .. } = config;
    let token_embedding = tensors.matrix("token_embd.weight", vocab, width)?;
    let position_embedding = tensors.plain("position_embd.weight", &[context, width])?;
    let final_norm = tensors.layer_norm("output_norm", width)?;
    let head = tensors.optional_matrix("output.weight", vocab, width)?;
    let blocks = (0..layers).map(|layer| block(&config, &mut tensors, layer));
    let blocks = blocks.collect::<Result<_, _>>()?;
    tensors.finish()?;
    Ok(GptWeights { config, token_embedding, position_embedding, final_norm, head, blocks })
}

fn block(
    config: &GptConfig,
    tensors: &mut Tensors<'_>,
    layer: usize,
) -> Result<GptBlock, LoadError> {
    let GptConfig { width, mlp, heads, kv_heads, .. } = *config;
    let keys = width / heads * kv_heads;
    let name = |part: &str| format!("blk.{layer}.{part}");
    let norm = tensors.layer_norm(&name("attn_norm"), width)?;
    let [q, k, v] = tensors.fused(&name("attn_qkv"), [width, keys, keys], width)?;
    let o = tensors.linear(&name("attn_output"), width, width)?;
    Ok(GptBlock {
        attention: Attention { norm, q, k, v, o, q_norm: None, k_norm: None },
        norm: tensors.layer_norm(&name("ffn_norm"), width)?,
        mlp: Mlp::Dense(Dense {
            fc_in: tensors.linear(&name("ffn_up"), mlp, width)?,
            fc_out: tensors.linear(&name("ffn_down"), width, mlp)?,
        }),
    })
}
