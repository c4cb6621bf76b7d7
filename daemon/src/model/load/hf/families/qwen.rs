//! Qwen 2, 2.5 and 3: the later layers may have a window, and Qwen 3 normalises each head.

use super::Body;
use crate::kv::layout::Window;
use crate::model::load::hf::config::Config;
use crate::model::load::hf::decoder::{self, Parts};
use crate::model::load::hf::rope;
use crate::model::load::{LlamaConfig, LoadError};

pub(super) fn plan2(config: &Config) -> Result<Body, LoadError> {
    let parts = Parts { tied: tied(config)?, qkv_bias: true, ..Parts::default() };
    Ok(Body::Llama(numbers(config, None)?, parts))
}

pub(super) fn plan3(config: &Config) -> Result<Body, LoadError> {
    /// Of files that do not say; the width is not divided among the heads.
    const HEAD_DIM: usize = 128;
    let bias = config.flag("attention_bias", false)?;
    let parts = Parts {
        tied: tied(config)?,
        qkv_bias: bias,
        o_bias: bias,
        head_norms: true,
        ..Parts::default()
    };
    Ok(Body::Llama(numbers(config, Some(HEAD_DIM))?, parts))
}

fn tied(config: &Config) -> Result<bool, LoadError> {
    config.flag("tie_word_embeddings", false)
}

fn numbers(config: &Config, head_dim: Option<usize>) -> Result<LlamaConfig, LoadError> {
    let mut numbers = decoder::numbers_with(config, head_dim)?;
    numbers.ropes = vec![rope::read(config, numbers.head_dim, numbers.context)?];
    let used = config.flag("use_sliding_window", false)?;
    // It is there, and says nothing, where no window is used.
    let window = config.get("sliding_window").filter(|_| used);
    let window = window.map(|_| config.needed_size("sliding_window")).transpose()?;
    let full = config.count("max_window_layers")?.unwrap_or(0);
    let windows =
        decoder::windows(config, &numbers, window, |layer| window.is_some() && layer >= full)?;
    for (plan, window) in numbers.plan.iter_mut().zip(windows) {
        plan.window = window.map_or(Window::Full, Window::Sliding);
    }
    Ok(numbers)
}
