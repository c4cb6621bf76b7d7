//! The tokenizer's data in a GGUF file: read and checked for consistency, not interpreted.

use super::metadata::Metadata;
use crate::model::load::canon::Canon;
use crate::model::load::{GgufVocabulary, LoadError};

const TOKENS: &str = "tokenizer.ggml.tokens";

/// Keys whose tokens end a generation.
const ENDS: [&str; 3] =
    ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];

pub(super) fn read(metadata: &Metadata<'_>) -> Result<GgufVocabulary, LoadError> {
    refuse_unsupported(metadata)?;
    let tokens = metadata.texts(TOKENS)?;
    if tokens.is_empty() {
        return Err(LoadError::MissingKey { key: TOKENS.into() });
    }
    let id = |key: &str| token_id(metadata, key, tokens.len());
    let mut eos_ids = Vec::new();
    for key in ENDS {
        eos_ids.extend(id(key)?.filter(|id| !eos_ids.contains(id)));
    }
    Ok(GgufVocabulary {
        model: metadata.text("tokenizer.ggml.model")?.into(),
        pre: metadata.optional_text("tokenizer.ggml.pre")?.map(str::to_owned),
        token_types: one_per_token(
            "tokenizer.ggml.token_type",
            metadata.integers("tokenizer.ggml.token_type")?,
            tokens.len(),
        )?,
        scores: one_per_token(
            "tokenizer.ggml.scores",
            metadata.floats("tokenizer.ggml.scores")?,
            tokens.len(),
        )?,
        merges: metadata.texts("tokenizer.ggml.merges")?,
        bos: id("tokenizer.ggml.bos_token_id")?,
        eos: id("tokenizer.ggml.eos_token_id")?,
        unknown: id("tokenizer.ggml.unknown_token_id")?,
        add_bos: metadata.optional_bool("tokenizer.ggml.add_bos_token")?,
        eos_ids,
        tokens,
    })
}

/// Flags that would change the ids of every prompt.
fn refuse_unsupported(metadata: &Metadata<'_>) -> Result<(), LoadError> {
    for key in ["tokenizer.ggml.add_eos_token", "tokenizer.ggml.add_sep_token"] {
        if metadata.optional_bool(key)? == Some(true) {
            let what = format!("metadata key \"{key}\"");
            return Err(LoadError::Unsupported { what, detail: "true".into() });
        }
    }
    Ok(())
}

fn token_id(metadata: &Metadata<'_>, key: &str, tokens: usize) -> Result<Option<u32>, LoadError> {
    match metadata.optional_id(key)? {
        Some(id) if id as usize >= tokens => Err(LoadError::OutOfRange {
            what: format!("metadata key \"{key}\""),
            found: id.to_string(),
            expected: format!("one of the {tokens} tokens"),
        }),
        id => Ok(id),
    }
}

fn one_per_token<T>(key: &str, values: Vec<T>, tokens: usize) -> Result<Vec<T>, LoadError> {
    if values.is_empty() || values.len() == tokens {
        return Ok(values);
    }
    Err(LoadError::OutOfRange {
        what: format!("the length of metadata key \"{key}\""),
        found: values.len().to_string(),
        expected: format!("{tokens}, the number of tokens"),
    })
}

/// Everything that text becomes token ids by.
pub(super) fn canonical(vocabulary: &GgufVocabulary) -> Vec<u8> {
    let number = |canon: Canon, id: u32| canon.number("", id as usize);
    let types: Vec<u8> = vocabulary.token_types.iter().flat_map(|id| id.to_le_bytes()).collect();
    Canon::default()
        .text("vocabulary", "gguf")
        .text("model", &vocabulary.model)
        .option("pre", vocabulary.pre.as_deref(), |canon, pre| canon.text("", pre))
        .texts("tokens", &vocabulary.tokens)
        .bytes("token_types", &types)
        .floats("scores", &vocabulary.scores)
        .texts("merges", &vocabulary.merges)
        .option("bos", vocabulary.bos, number)
        .option("unknown", vocabulary.unknown, number)
        .option("add_bos", vocabulary.add_bos, |canon, add| canon.number("", add.into()))
        .finish()
}
