//! Mistral: a Llama whose queries may see a window of the tokens before them.

use super::Body;
use crate::kv::layout::Window;
use crate::model::load::LoadError;
use crate::model::load::hf::config::Config;
use crate::model::load::hf::decoder::{self, Parts};
use crate::model::load::hf::rope;

pub(super) fn plan(config: &Config) -> Result<Body, LoadError> {
    let mut numbers = decoder::numbers(config)?;
    numbers.ropes = vec![rope::read(config, numbers.head_dim, numbers.context)?];
    let window = config.size("sliding_window")?;
    let windows = decoder::windows(config, &numbers, window, |_| window.is_some())?;
    for (plan, window) in numbers.plan.iter_mut().zip(windows) {
        plan.window = window.map_or(Window::Full, Window::Sliding);
    }
    let tied = config.flag("tie_word_embeddings", false)?;
    Ok(Body::Llama(numbers, Parts { tied, ..Parts::default() }))
}
