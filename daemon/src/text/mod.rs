//! Text and token ids.
//!
//! A [`Tokenizer`] is built from the plain [`Vocabulary`](crate::model::load::Vocabulary) of a
//! model file and knows nothing of the file. It is the one owner of the beginning-of-sequence
//! token: [`Tokenizer::encode_prompt`] puts it in front when the model says so, and nothing else
//! ever does.
//!
//! Ids become text in three steps, each usable alone: bytes of a token, whole UTF-8 characters
//! ([`Detokenizer`]), text that cannot begin a stop string any more ([`StopStrings`]). A
//! [`Transcript`] is all three.
//! Whatever the split into tokens or pushes, the concatenation of the pieces is the text of the
//! whole.

mod alphabet;
pub mod bpe;
pub mod detokenize;
mod error;
mod literals;
mod merge;
mod merges;
mod pieces;
pub mod pipeline;
mod pre;
pub mod sentencepiece;
pub mod stop;
pub mod tokenizer;
mod tokens;
pub mod transcript;

pub use self::detokenize::Detokenizer;
pub use self::error::TokenizerError;
pub use self::stop::{StopConstraint, StopStrings, Stopped};
pub use self::tokenizer::Tokenizer;
pub use self::transcript::Transcript;
