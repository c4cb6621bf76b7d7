//! SmolLM3: a Llama of which some layers are not told positions.

use super::Body;
use crate::kv::layout::Window;
use crate::model::load::LoadError;
use crate::model::load::hf::config::Config;
use crate::model::load::hf::decoder::{self, Parts};
use crate::model::load::hf::rope;

/// Every so many layers one has no rope, in files that do not say.
const INTERVAL: usize = 4;

pub(super) fn plan(config: &Config) -> Result<Body, LoadError> {
    let mut numbers = decoder::numbers(config)?;
    numbers.ropes = vec![rope::read(config, numbers.head_dim, numbers.context)?];
    let turned = turned(config, numbers.layers)?;
    let used = config.flag("use_sliding_window", false)?;
    let window = config.get("sliding_window").filter(|_| used);
    let window = window.map(|_| config.needed_size("sliding_window")).transpose()?;
    let windows =
        decoder::windows(config, &numbers, window, |layer| window.is_some() && !turned[layer])?;
    for ((plan, window), turned) in numbers.plan.iter_mut().zip(windows).zip(turned) {
        plan.window = window.map_or(Window::Full, Window::Sliding);
        plan.rope = turned.then_some(0);
    }
    let bias = config.flag("attention_bias", false)?;
    let parts = Parts {
        tied: config.flag("tie_word_embeddings", true)?,
        qkv_bias: bias,
        o_bias: bias,
        mlp_bias: config.flag("mlp_bias", false)?,
        ..Parts::default()
    };
    Ok(Body::Llama(numbers, parts))
}

/// Which layers turn; 0 in the list stands for those that do not.
fn turned(config: &Config, layers: usize) -> Result<Vec<bool>, LoadError> {
    const KEY: &str = "no_rope_layers";
    let interval = config.size("no_rope_layer_interval")?.unwrap_or(INTERVAL);
    let flag = |value: &serde_json::Value| match value.as_u64() {
        Some(flag @ (0 | 1)) => Some(flag == 1),
        _ => None,
    };
    let listed = config.list(KEY, "a list of 0 and 1", flag)?;
    let turned = listed.unwrap_or_else(|| {
        (0..layers).map(|layer| !(layer + 1).is_multiple_of(interval)).collect()
    });
    if turned.len() == layers {
        return Ok(turned);
    }
    let found = format!("{} long", turned.len());
    Err(config.out_of_range(KEY, &found, &format!("one for each of {layers} layers")))
}
