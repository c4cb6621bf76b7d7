//! What a vocabulary can lack, and what can go wrong with a text.

use thiserror::Error;

use super::merges::Repeated;

/// Why a vocabulary makes no tokenizer, or a text no ids.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// `tokenizer.ggml.model` names a kind that is not implemented.
    #[error("tokenizer.ggml.model \"{found}\" is not supported: \"gpt2\" and \"llama\" are")]
    Model {
        /// The name in the file.
        found: String,
    },
    /// `tokenizer.ggml.pre` names a way of cutting words that is not known.
    #[error("tokenizer.ggml.pre \"{found}\" is not known: {known} are")]
    Pre {
        /// The name in the file.
        found: String,
        /// The names that are known.
        known: String,
    },
    /// `tokenizer.ggml.pre` is absent, and guessing it would give wrong ids.
    #[error("tokenizer.ggml.pre is missing, and cannot be guessed ({known} are known)")]
    NoPre {
        /// The names that are known.
        known: String,
    },
    /// A SentencePiece vocabulary without a score for each token.
    #[error("tokenizer.ggml.scores has {found} scores for {tokens} tokens")]
    Scores {
        /// Scores.
        found: usize,
        /// Tokens.
        tokens: usize,
    },
    /// A merge that is not two tokens, or does not make a token.
    #[error("merge {index} (\"{merge}\") {fault}")]
    Merge {
        /// Position in `tokenizer.ggml.merges`.
        index: usize,
        /// Its text.
        merge: String,
        /// What is wrong with it.
        fault: &'static str,
    },
    /// A file that repeats its merges.
    #[error(transparent)]
    Repeated(#[from] Repeated),
    /// The parts do not make a tokenizer.
    #[error("building the tokenizer: {reason}")]
    Build {
        /// What the library said.
        reason: String,
    },
    /// The library failed on a word.
    #[error("encoding a word of {bytes} bytes: {reason}")]
    Encode {
        /// Length of the word.
        bytes: usize,
        /// What the library said.
        reason: String,
    },
    /// Whoever wanted the ids has gone.
    #[error("nobody wants the ids any more")]
    Unwanted,
    /// A part of a `tokenizer.json` that is not implemented.
    #[error("tokenizer.json: {what} is not supported: {detail}")]
    Unsupported {
        /// Its name.
        what: String,
        /// What it says.
        detail: String,
    },
    /// Two files of a directory have different tokens.
    #[error("token {id} is {text:?} in tokenizer_config.json and {found:?} in tokenizer.json")]
    Added {
        /// Its id.
        id: u32,
        /// Its text in the one.
        text: String,
        /// Its text in the other, if it is there.
        found: Option<String>,
    },
    /// The text holds a token that the tokenizer has and the model has not.
    #[error("the text has the token {id}, the model knows {vocab} ids")]
    Outside {
        /// The token.
        id: u32,
        /// V.
        vocab: usize,
    },
    /// The text holds a byte for which the vocabulary has neither a token nor an unknown token.
    #[error("the vocabulary has no token for the byte 0x{byte:02x}, at position {at} of the text")]
    NoToken {
        /// The byte.
        byte: u8,
        /// Where it is in the text.
        at: usize,
    },
}
