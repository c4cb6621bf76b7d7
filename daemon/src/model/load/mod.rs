//! Model files, read as untrusted input and handed on as plain data.
//!
//! A file is a byte slice, usually a mapping. Its readers allocate nothing that is not bounded by
//! the file's own size, and answer every lie a file can tell with its own [`LoadError`].
//! What they give is a [`Checkpoint`]: packed matrices, plain vectors, numbers, a vocabulary. No
//! file format survives in it, and it borrows nothing from the file, which may be overwritten
//! afterwards without harm.
//!
//! A file that asks for arithmetic that is not implemented is refused by the name of the key that
//! asks for it: running it anyway would give plausible, wrong text.

mod canon;
mod checkpoint;
mod cursor;
mod error;
mod ggml;
mod gguf;
mod tinygpt;

use tinygpt_kernels::Pool;

pub use self::checkpoint::{
    Checkpoint, GgufVocabulary, GptBlock, GptConfig, GptWeights, Linear, LlamaBlock, LlamaConfig,
    LlamaWeights, Norm, RopeLayout, Vocabulary, Weights,
};
pub use self::error::LoadError;

/// The model that serves when no other is named: a small byte-level Shakespeare GPT.
pub const BUILTIN: &[u8] = include_bytes!("../../../assets/builtin.tinygpt");

/// Reads a model file of any known format, told by its first four bytes.
///
/// # Errors
/// Every way in which the file is not a model that can run: see [`LoadError`].
pub fn load(bytes: &[u8], pool: &Pool) -> Result<Checkpoint, LoadError> {
    match bytes.first_chunk() {
        Some(tinygpt::MAGIC) => tinygpt::load(bytes, pool),
        Some(gguf::MAGIC) => gguf::load(bytes, pool),
        _ => Err(LoadError::Magic { found: first_bytes(bytes) }),
    }
}

/// The name of a model file's format, told by its first four bytes; empty for an unknown one.
pub fn format(bytes: &[u8]) -> &'static str {
    match bytes.first_chunk() {
        Some(tinygpt::MAGIC) => "tinygpt",
        Some(gguf::MAGIC) => "gguf",
        _ => "",
    }
}

fn first_bytes(bytes: &[u8]) -> String {
    match bytes {
        [] => "nothing".into(),
        _ => format!("\"{}\"", bytes[..bytes.len().min(4)].escape_ascii()),
    }
}
