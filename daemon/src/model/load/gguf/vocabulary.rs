//! The tokenizer's data in a GGUF file: read and checked for consistency, not interpreted.

use super::metadata::Metadata;
use crate::model::load::canon::Canon;
use crate::model::load::{GgufVocabulary, LoadError};

const TOKENS: &str = "tokenizer.ggml.tokens";

/// Keys whose tokens end a generation.
const ENDS: [&str; 3] =
    ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];

/// Names of tokens that end a turn or a text. Files name one end at most and models use several:
/// Phi-3's says `<|endoftext|>` and its turns end in `<|end|>`.
const END_NAMES: [&str; 9] = [
    "<|end_of_text|>",
    "<|end|>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|im_end|>",
    "<end_of_turn>",
    "<eos>",
    "</s>",
];

/// ggml's type of tokens that are not text.
const CONTROL: i32 = 3;

/// The vocabulary of a file of this architecture.
pub(super) fn read(
    metadata: &Metadata<'_>,
    architecture: &str,
) -> Result<GgufVocabulary, LoadError> {
    refuse_unsupported(metadata)?;
    let tokens = metadata.texts(TOKENS)?;
    if tokens.is_empty() {
        return Err(LoadError::MissingKey { key: TOKENS.into() });
    }
    let model: String = metadata.text("tokenizer.ggml.model")?.into();
    let scored = model == "llama";
    let id = |key: &str| token_id(metadata, key, tokens.len());
    // What SentencePiece numbers its special tokens.
    let usual = |id: u32| Some(id).filter(|&id| scored && (id as usize) < tokens.len());
    let token_types = one_per_token(
        "tokenizer.ggml.token_type",
        metadata.integers("tokenizer.ggml.token_type")?,
        tokens.len(),
    )?;
    let eos = id("tokenizer.ggml.eos_token_id")?.or(usual(2));
    Ok(GgufVocabulary {
        eos,
        eos_ids: ends(metadata, eos, &tokens, &token_types)?,
        swallow: if scored && architecture == "phi3" {
            swallow(&tokens, &token_types)
        } else {
            vec![]
        },
        add_space_prefix: metadata.optional_bool("tokenizer.ggml.add_space_prefix")?,
        model,
        pre: metadata.optional_text("tokenizer.ggml.pre")?.map(str::to_owned),
        token_types,
        scores: one_per_token(
            "tokenizer.ggml.scores",
            metadata.floats("tokenizer.ggml.scores")?,
            tokens.len(),
        )?,
        merges: metadata.texts("tokenizer.ggml.merges")?,
        bos: id("tokenizer.ggml.bos_token_id")?.or(usual(1)),
        unknown: id("tokenizer.ggml.unknown_token_id")?,
        add_bos: metadata.optional_bool("tokenizer.ggml.add_bos_token")?,
        tokens,
    })
}

/// Every token that ends a generation, each once.
fn ends(
    metadata: &Metadata<'_>,
    eos: Option<u32>,
    tokens: &[String],
    token_types: &[i32],
) -> Result<Vec<u32>, LoadError> {
    let mut ends: Vec<u32> = eos.into_iter().collect();
    for key in ENDS {
        let id = token_id(metadata, key, tokens.len())?;
        ends.extend(id.filter(|id| !ends.contains(id)));
    }
    let said = ends.clone();
    let named = (0..).zip(tokens.iter().zip(token_types)).filter(|(id, (text, kind))| {
        **kind == CONTROL && END_NAMES.contains(&&***text) && !said.contains(id)
    });
    ends.extend(named.map(|(id, _)| id));
    Ok(ends)
}

/// Phi-3's tokens for turns swallow the newline behind them; its others, which are SentencePiece's,
/// do not. The file does not say so, the model's `tokenizer.json` does.
fn swallow(tokens: &[String], token_types: &[i32]) -> Vec<u32> {
    let swallows = |(_, (text, kind)): &(u32, (&String, &i32))| {
        **kind == CONTROL && !["<unk>", "<s>", "<|endoftext|>"].contains(&&***text)
    };
    (0..).zip(tokens.iter().zip(token_types)).filter(swallows).map(|(id, _)| id).collect()
}

/// Flags that would change the ids of every prompt.
fn refuse_unsupported(metadata: &Metadata<'_>) -> Result<(), LoadError> {
    for key in [
        "tokenizer.ggml.add_eos_token",
        "tokenizer.ggml.add_sep_token",
        "tokenizer.ggml.remove_extra_whitespaces",
    ] {
        if metadata.optional_bool(key)? == Some(true) {
            let what = format!("metadata key \"{key}\"");
            return Err(LoadError::Unsupported { what, detail: "true".into() });
        }
    }
    let key = "tokenizer.ggml.precompiled_charsmap";
    match metadata.get(key) {
        None => Ok(()),
        Some(value) => {
            let what = format!("metadata key \"{key}\"");
            Err(LoadError::Unsupported { what, detail: value.describe() })
        }
    }
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
pub(super) fn canonical(vocabulary: &GgufVocabulary) -> Canon {
    let number = |canon: Canon, id: u32| canon.number("", id as usize);
    let types: Vec<u8> = vocabulary.token_types.iter().flat_map(|id| id.to_le_bytes()).collect();
    let swallow: Vec<u8> = vocabulary.swallow.iter().flat_map(|id| id.to_le_bytes()).collect();
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
        .option("add_space_prefix", vocabulary.add_space_prefix, |canon, add| {
            canon.number("", add.into())
        })
        .bytes("swallow", &swallow)
}
