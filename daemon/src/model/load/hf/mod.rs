//! Directories as Hugging Face's libraries save them: `config.json`, weights in `.safetensors`
//! files, `tokenizer.json`, and what says how to generate and to chat.
//!
//! There is a short file for each family. Every key of `config.json` is implemented, without
//! influence on the arithmetic, or refused by name; every tensor is used or refused.

mod chat;
mod config;
mod decoder;
mod directory;
mod families;
mod glimpse;
mod pieces;
mod quantised;
mod rope;
mod stand_in;
mod tensors;
#[cfg(test)]
mod tests;
mod vocabulary;

pub(super) use self::config::Config;
use self::directory::CONFIG;
pub(super) use self::directory::{Directory, survey, whole};
use self::families::Family;
pub(super) use self::glimpse::glimpse;
use self::tensors::Tensors;
use super::mlx::Quantization;
use super::{Checkpoint, LoadError, Packing, Vocabulary};

impl Directory {
    /// Reads the model.
    pub(super) fn load(&self, packing: &Packing<'_>) -> Result<Checkpoint, LoadError> {
        let config = self.json(CONFIG)?.unwrap_or_default();
        let config = Config::new(config).map_err(|error| error.within(CONFIG))?;
        let quantization = Quantization::of(|key| config.get(key));
        let quantization = quantization.map_err(|error| error.within(CONFIG))?;
        let plan = Family::plan(&config).map_err(|error| error.within(CONFIG))?;
        let vocabulary = self.vocabulary(&config, plan.vocab())?;
        let name = quantization.as_ref().map(Quantization::name);
        let tensors = Tensors::open(self, plan.family.name(), quantization, packing)?;
        let quantisation = name.unwrap_or_else(|| tensors.commonest_type().to_owned());
        Ok(Checkpoint {
            tokenizer: vocabulary.canonical().digest("tokenizer"),
            architecture: plan.family.name().into(),
            weights: plan.weights(tensors)?,
            vocabulary: Vocabulary::HuggingFace(vocabulary),
            format: "safetensors",
            quantisation,
            chat_template: self.chat_template()?,
        })
    }
}
