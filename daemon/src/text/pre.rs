//! How text is cut before byte-pair encoding, by the name a GGUF file gives it.
//!
//! The name is all the file says, so an unknown one is an error: a guess would tokenise most texts
//! right and some wrong. Every row of the table is held against reference ids in a test.

use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior;

use super::bpe::TokenizerError;

/// Names that are known, for messages.
pub(super) const KNOWN: &str = "default, gpt-2, llama-bpe, llama3, llama-v3, smollm";

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// llama.cpp's own cut, for files that were converted without knowing the right one.
const DEFAULT: [&str; 4] = [
    r"[\p{P}\$\+<=>\^~\|]+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
    r"\p{N}+",
    r"[0-9][0-9][0-9]",
];

/// A way of cutting, and what comes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pre {
    /// Punctuation, then GPT-2's words, then runs of three digits.
    Default,
    /// GPT-2's words.
    Gpt2,
    /// GPT-2's words, every digit on its own.
    Smollm,
    /// Llama 3's words: up to three digits, case-insensitive contractions.
    Llama3,
}

impl Pre {
    pub(super) fn named(name: Option<&str>) -> Result<Self, TokenizerError> {
        match name {
            Some("default") => Ok(Self::Default),
            Some("gpt-2") => Ok(Self::Gpt2),
            Some("smollm") => Ok(Self::Smollm),
            Some("llama-bpe" | "llama3" | "llama-v3") => Ok(Self::Llama3),
            Some(found) => Err(TokenizerError::Pre { found: found.into(), known: KNOWN }),
            None => Err(TokenizerError::NoPre { known: KNOWN }),
        }
    }

    /// The cut, ending in the byte alphabet. No space is ever put in front of a text.
    pub(super) fn pre_tokenizer(self) -> Result<PreTokenizerWrapper, TokenizerError> {
        let bytes = |words: bool| PreTokenizerWrapper::from(ByteLevel::new(false, false, words));
        Ok(match self {
            Self::Default => {
                let cuts = DEFAULT.into_iter().map(split).chain([Ok(bytes(false))]);
                Sequence::new(cuts.collect::<Result<_, _>>()?).into()
            }
            Self::Gpt2 => bytes(true),
            Self::Smollm => Sequence::new(vec![Digits::new(true).into(), bytes(true)]).into(),
            Self::Llama3 => Sequence::new(vec![split(LLAMA3)?, bytes(false)]).into(),
        })
    }

    /// Whether a word that is itself a token is taken whole, before any merge.
    pub(super) fn whole_words(self) -> bool {
        self == Self::Llama3
    }

    /// Whether prompts begin with the beginning-of-sequence token if the file does not say.
    pub(super) fn adds_bos(self) -> bool {
        self == Self::Llama3
    }
}

fn split(pattern: &str) -> Result<PreTokenizerWrapper, TokenizerError> {
    let pattern = SplitPattern::Regex(pattern.into());
    let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false);
    Ok(split.map_err(|error| TokenizerError::Build { reason: error.to_string() })?.into())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn every_name_in_the_message_is_known() {
        for name in KNOWN.split(", ") {
            Pre::named(Some(name)).unwrap().pre_tokenizer().unwrap();
        }
    }

    #[test]
    fn an_unknown_or_missing_name_is_refused_with_the_known_ones() {
        let error = Pre::named(Some("tekken")).unwrap_err().to_string();
        assert!(error.contains("\"tekken\"") && error.contains("smollm"), "{error}");
        let error = Pre::named(None).unwrap_err().to_string();
        assert!(error.contains("tokenizer.ggml.pre") && error.contains("gpt-2"), "{error}");
    }
}
