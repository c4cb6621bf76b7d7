//! GGUF: the container of llama.cpp, versions 2 and 3, little-endian.
//!
//! Of the architectures it can carry, the Llama family, Gemma 3 and GPT-2 run, a short file each.
//! Every key of theirs is either implemented, neutral, or refused by name; every tensor is used or
//! refused.

mod container;
mod gemma;
mod gpt2;
mod keys;
mod llama;
mod metadata;
mod rope;
mod tensors;
#[cfg(test)]
mod tests;
mod value;
mod vocabulary;

use self::container::Gguf;
pub(super) use self::container::MAGIC;
use self::keys::Keys;
use self::llama::{MEMBERS, Member};
use self::metadata::Metadata;
use self::tensors::Tensors;
use super::input::Input;
use super::{Checkpoint, Glimpse, LoadError, Packing, Vocabulary, Weights};

/// An architecture that runs.
#[derive(Clone, Copy)]
enum Architecture {
    Llama(&'static Member),
    Gemma3,
    Gpt2,
}

impl Architecture {
    fn named(name: &str) -> Result<Self, LoadError> {
        let member = MEMBERS.iter().find(|member| member.name == name);
        match (member, name) {
            (Some(member), _) => Ok(Self::Llama(member)),
            (None, "gemma3") => Ok(Self::Gemma3),
            (None, "gpt2") => Ok(Self::Gpt2),
            (None, other) => {
                let members = MEMBERS.iter().map(|member| member.name).collect::<Vec<_>>();
                let detail = format!("\"{other}\"; {}, gemma3 and gpt2 are", members.join(", "));
                Err(LoadError::Unsupported { what: "general.architecture".into(), detail })
            }
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Llama(member) => member.name,
            Self::Gemma3 => "gemma3",
            Self::Gpt2 => "gpt2",
        }
    }

    /// The weights; keys and tensors that are left over are errors.
    fn weights(
        self,
        keys: Keys<'_>,
        mut tensors: Tensors<'_>,
        vocab: usize,
    ) -> Result<Weights, LoadError> {
        Ok(match self {
            Self::Llama(member) => {
                let config = llama::config(member, &keys, &mut tensors, vocab)?;
                keys.finish()?;
                Weights::Llama(llama::weights(member, config, tensors)?)
            }
            Self::Gemma3 => {
                let config = gemma::config(&keys, &mut tensors, vocab)?;
                keys.finish()?;
                Weights::Gemma(gemma::weights(config, tensors)?)
            }
            Self::Gpt2 => {
                let config = gpt2::config(&keys, vocab)?;
                keys.finish()?;
                Weights::Gpt(gpt2::weights(config, tensors)?)
            }
        })
    }
}

/// Reads a file that begins with `head`.
pub(super) fn load(
    head: &[u8],
    input: Input<'_>,
    packing: &Packing<'_>,
) -> Result<Checkpoint, LoadError> {
    let Gguf { metadata, tensors } = Gguf::parse(head, input.len())?;
    let metadata = Metadata(metadata);
    refuse_parts(&metadata)?;
    let architecture = Architecture::named(metadata.text("general.architecture")?)?;
    let name = architecture.name();
    let vocabulary = vocabulary::read(&metadata, name)?;
    let tensors = Tensors::new(tensors, input, name, packing);
    let quantisation = tensors.commonest_type().to_owned();
    let keys = Keys::new(&metadata, name);
    Ok(Checkpoint {
        weights: architecture.weights(keys, tensors, vocabulary.tokens.len())?,
        tokenizer: vocabulary::canonical(&vocabulary).digest("tokenizer"),
        vocabulary: Vocabulary::Gguf(vocabulary),
        format: "gguf",
        architecture: name.into(),
        quantisation,
        chat_template: metadata.optional_text("tokenizer.chat_template")?.map(str::to_owned),
    })
}

/// What a file that begins with `head` says of itself.
pub(super) fn glimpse(head: &[u8], input: Input<'_>) -> Result<Glimpse, LoadError> {
    let Gguf { metadata, tensors } = Gguf::parse(head, input.len())?;
    let (metadata, packing) = (Metadata(metadata), Packing::outline());
    let architecture = metadata.text("general.architecture")?;
    let context = metadata.optional_size(&format!("{architecture}.context_length"))?;
    let tensors = Tensors::new(tensors, input, "", &packing);
    Ok(Glimpse {
        format: "gguf",
        architecture: architecture.into(),
        quantisation: tensors.commonest_type().into(),
        context: context.unwrap_or(0),
    })
}

/// A part of a model that lies in several files lacks the others' tensors.
fn refuse_parts(metadata: &Metadata<'_>) -> Result<(), LoadError> {
    const KEY: &str = "split.count";
    match metadata.optional_size(KEY)? {
        None | Some(0 | 1) => Ok(()),
        Some(parts) => Err(LoadError::Unsupported {
            what: format!("metadata key \"{KEY}\""),
            detail: format!("{parts} files; merge them with llama.cpp's gguf-split"),
        }),
    }
}
