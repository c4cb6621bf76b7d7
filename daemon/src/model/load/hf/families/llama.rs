//! Llama 1, 2 and 3, and whatever calls itself one: SmolLM2, distillates.

use super::Body;
use crate::model::load::LoadError;
use crate::model::load::hf::config::Config;
use crate::model::load::hf::decoder::{self, Parts};
use crate::model::load::hf::rope;

pub(super) fn plan(config: &Config) -> Result<Body, LoadError> {
    let mut numbers = decoder::numbers(config)?;
    numbers.ropes = vec![rope::read(config, numbers.head_dim, numbers.context)?];
    let bias = config.flag("attention_bias", false)?;
    let parts = Parts {
        tied: config.flag("tie_word_embeddings", false)?,
        qkv_bias: bias,
        o_bias: bias,
        mlp_bias: config.flag("mlp_bias", false)?,
        ..Parts::default()
    };
    Ok(Body::Llama(numbers, parts))
}
