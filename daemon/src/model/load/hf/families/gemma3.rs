//! Gemma 3's text models: two kinds of layers, each with its window and its rope.

use super::Body;
use crate::kv::layout::Window;
use crate::model::load::hf::config::Config;
use crate::model::load::hf::decoder::{self, Parts};
use crate::model::load::hf::rope;
use crate::model::load::hf::tensors::Tensors;
use crate::model::load::{
    GemmaBlock, GemmaConfig, GemmaWeights, LayerPlan, LlamaConfig, LoadError,
};

/// What files that do not say mean.
const HEAD_DIM: usize = 256;
const QUERY_SCALAR: f64 = 256.0;
const PATTERN: usize = 6;
const WINDOW: usize = 4096;

/// The ropes of layers that see everything, and of those that do not.
const GLOBAL: usize = 0;
const LOCAL: usize = 1;

pub(super) fn plan(config: &Config) -> Result<Body, LoadError> {
    let mut llama = decoder::numbers_with(config, Some(HEAD_DIM))?;
    llama.ropes = rope::global_and_local(config, llama.head_dim, llama.context)?;
    llama.plan = layers(config, &llama)?;
    let scalar = config.positive("query_pre_attn_scalar")?.unwrap_or(QUERY_SCALAR);
    let cap = |key| Ok::<_, LoadError>(config.positive(key)?.map(|cap| cap as f32));
    let numbers = GemmaConfig {
        query_scale: (1.0 / scalar.sqrt()) as f32,
        embedding_scale: (llama.width as f32).sqrt(),
        attention_softcap: cap("attn_logit_softcapping")?,
        final_softcap: cap("final_logit_softcapping")?,
        llama,
    };
    let bias = config.flag("attention_bias", false)?;
    let tied = config.flag("tie_word_embeddings", true)?;
    let parts = Parts {
        tied,
        qkv_bias: bias,
        o_bias: bias,
        head_norms: true,
        gains_from_one: true,
        ..Parts::default()
    };
    Ok(Body::Gemma(numbers, parts))
}

fn layers(config: &Config, numbers: &LlamaConfig) -> Result<Vec<LayerPlan>, LoadError> {
    let pattern = config.size("sliding_window_pattern")?;
    let pattern = pattern.or(config.size("_sliding_window_pattern")?).unwrap_or(PATTERN);
    let window = Some(config.size("sliding_window")?.unwrap_or(WINDOW));
    let windows =
        decoder::windows(config, numbers, window, |layer| !(layer + 1).is_multiple_of(pattern))?;
    let plan = |window: Option<usize>| match window {
        None => LayerPlan { rope: Some(GLOBAL), window: Window::Full },
        Some(window) => LayerPlan { rope: Some(LOCAL), window: Window::Sliding(window) },
    };
    Ok(windows.into_iter().map(plan).collect())
}

/// The weights, once all numbers are known.
pub(super) fn weights(
    config: GemmaConfig,
    parts: Parts,
    tensors: &mut Tensors<'_>,
) -> Result<GemmaWeights, LoadError> {
    let token_embedding = parts.embedding(&config.llama, tensors)?;
    let final_norm = parts.norm(tensors, "model.norm", config.llama.width)?;
    let head = parts.head([config.llama.vocab, config.llama.width], tensors)?;
    let blocks = (0..config.llama.layers).map(|layer| block(&config.llama, parts, tensors, layer));
    let blocks = blocks.collect::<Result<_, _>>()?;
    Ok(GemmaWeights { token_embedding, final_norm, head, blocks, config })
}

fn block(
    config: &LlamaConfig,
    parts: Parts,
    tensors: &mut Tensors<'_>,
    layer: usize,
) -> Result<GemmaBlock, LoadError> {
    let attention = parts.attention(config, tensors, layer)?;
    let mut norm =
        |name: &str| parts.norm(tensors, &format!("model.layers.{layer}.{name}"), config.width);
    let post_attention_norm = norm("post_attention_layernorm")?;
    let before = norm("pre_feedforward_layernorm")?;
    let post_mlp_norm = norm("post_feedforward_layernorm")?;
    let [gate, up, down] = parts.mlp(config, tensors, layer)?;
    Ok(GemmaBlock { attention, post_attention_norm, norm: before, gate, up, down, post_mlp_norm })
}
