//! Gemma 3: its windows, its two kinds of turns, its scales.

use tinygpt_kernels::Convention;

use super::keys::Keys;
use super::llama::{self, Member};
use super::rope;
use super::tensors::Tensors;
use super::value::Value;
use crate::model::load::{
    GemmaBlock, GemmaConfig, GemmaWeights, LayerPlan, LlamaConfig, LoadError, RopeConfig,
};

/// Of so many layers the last sees everything, in files that do not say.
const PATTERN: usize = 6;

/// Layers of the one size of Gemma 3 whose queries are scaled by its width and not by its heads;
/// no key says so.
const LARGEST: usize = 62;

/// The dimensions; `vocab` is the number of tokens in the file.
pub(super) fn config(
    keys: &Keys<'_>,
    tensors: &mut Tensors<'_>,
    vocab: usize,
) -> Result<GemmaConfig, LoadError> {
    let mut llama = llama::config(&Member::GEMMA3, keys, tensors, vocab)?;
    if keys.size_or_zero("attention.sliding_window")?.is_some() {
        look_back(keys, &mut llama)?;
    }
    let scaled = match llama.layers {
        LARGEST => llama.width / llama.heads,
        _ => llama.head_dim,
    };
    Ok(GemmaConfig {
        query_scale: 1.0 / (scaled as f32).sqrt(),
        embedding_scale: (llama.width as f32).sqrt(),
        attention_softcap: cap(keys, "attn_logit_softcapping")?,
        final_softcap: cap(keys, "final_logit_softcapping")?,
        llama,
    })
}

/// Gives the layers of the pattern a window, and turns of their own, which are never scaled.
fn look_back(keys: &Keys<'_>, llama: &mut LlamaConfig) -> Result<(), LoadError> {
    let window = llama::window(keys, llama.context)?;
    let base = keys.optional_positive("rope.freq_base_swa")?.unwrap_or(rope::BASE);
    llama.ropes.push(RopeConfig {
        base: base.into(),
        convention: Convention::HalfSplit,
        dims: llama.head_dim,
        factors: None,
        attention_factor: 1.0,
        shorter: None,
    });
    let windowed = pattern(keys, llama.layers)?;
    for plan in llama.plan.iter_mut().zip(windowed).filter(|(_, windowed)| *windowed) {
        *plan.0 = LayerPlan { rope: Some(1), window };
    }
    Ok(())
}

/// Which layers have a window: all but the last of so many, or as a list says.
fn pattern(keys: &Keys<'_>, layers: usize) -> Result<Vec<bool>, LoadError> {
    const KEY: &str = "attention.sliding_window_pattern";
    if let Some(Value::Array(_)) = keys.get(KEY) {
        let flags = keys.flags(KEY)?;
        keys.expect(flags.len() == layers, KEY, flags.len(), || {
            format!("one flag for each of the {layers} layers")
        })?;
        return Ok(flags);
    }
    let every = keys.optional_size(KEY)?.unwrap_or(PATTERN);
    Ok((1..=layers).map(|layer| !layer.is_multiple_of(every)).collect())
}

/// A cap; 0 is none.
fn cap(keys: &Keys<'_>, part: &str) -> Result<Option<f32>, LoadError> {
    match keys.optional_float(part)? {
        Some(cap) if cap < 0.0 => Err(keys.unsupported(part, cap.to_string())),
        cap => Ok(cap.filter(|&cap| cap > 0.0)),
    }
}

/// The weights, the gains of whose norms files hold as they are used.
pub(super) fn weights(
    config: GemmaConfig,
    mut tensors: Tensors<'_>,
) -> Result<GemmaWeights, LoadError> {
    let LlamaConfig { layers, vocab, width, .. } = config.llama;
    let token_embedding = tensors.matrix("token_embd.weight", vocab, width)?;
    let final_norm = tensors.norm("output_norm", width)?;
    let head = tensors.optional_matrix("output.weight", vocab, width)?;
    let blocks = (0..layers).map(|layer| block(&config.llama, &mut tensors, layer));
    let blocks = blocks.collect::<Result<_, _>>()?;
    tensors.finish()?;
    Ok(GemmaWeights { config, token_embedding, final_norm, head, blocks })
}

fn block(
    config: &LlamaConfig,
    tensors: &mut Tensors<'_>,
    layer: usize,
) -> Result<GemmaBlock, LoadError> {
    let attention = llama::attention(&Member::GEMMA3, config, tensors, layer)?;
    let mut norm = |part: &str| tensors.norm(&format!("blk.{layer}.{part}"), config.width);
    let post_attention_norm = norm("post_attention_norm")?;
    let (before, post_mlp_norm) = (norm("ffn_norm")?, norm("post_ffw_norm")?);
    let [gate, up, down] = llama::mlp(config, tensors, layer)?;
    Ok(GemmaBlock { attention, post_attention_norm, norm: before, gate, up, down, post_mlp_norm })
}
