//! GGUF: the container of llama.cpp, versions 2 and 3, little-endian.
//!
//! Of the architectures it can carry, `llama` runs. Every key of that architecture is either
//! implemented, neutral, or refused by name; every tensor is used or refused.

mod container;
mod llama;
mod metadata;
mod tensors;
#[cfg(test)]
mod tests;
mod value;
mod vocabulary;

use self::container::Gguf;
pub(super) use self::container::MAGIC;
use self::metadata::Metadata;
use self::tensors::Tensors;
use super::input::Input;
use super::{Checkpoint, LoadError, Packing, Vocabulary, Weights};

/// Reads a file that begins with `head`.
pub(super) fn load(
    head: &[u8],
    input: Input<'_>,
    packing: &Packing<'_>,
) -> Result<Checkpoint, LoadError> {
    let Gguf { metadata, tensors } = Gguf::parse(head, input.len())?;
    let metadata = Metadata(metadata);
    match metadata.text("general.architecture")? {
        "llama" => {}
        other => {
            let detail = format!("\"{other}\"; \"llama\" is");
            return Err(LoadError::Unsupported { what: "general.architecture".into(), detail });
        }
    }
    let vocabulary = vocabulary::read(&metadata)?;
    let mut tensors = Tensors::new(tensors, input, "llama", packing);
    let config = llama::config(&metadata, &mut tensors, vocabulary.tokens.len())?;
    let quantisation = tensors.commonest_type().to_owned();
    Ok(Checkpoint {
        vocabulary_digest_input: vocabulary::canonical(&vocabulary),
        weights: Weights::Llama(llama::weights(config, tensors)?),
        vocabulary: Vocabulary::Gguf(vocabulary),
        format: "gguf",
        architecture: "llama".into(),
        quantisation,
        chat_template: metadata.optional_text("tokenizer.chat_template")?.map(str::to_owned),
    })
}
