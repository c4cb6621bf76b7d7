//! Model files, read as untrusted input and handed on as plain data.
//!
//! A file is read piece by piece, never mapped. Its readers allocate nothing that is not bounded by
//! the file's own size, and answer every lie a file can tell with its own [`LoadError`].
//! What they give is a [`Checkpoint`]: packed matrices, plain vectors, numbers, a vocabulary. No
//! file format survives in it, and it borrows nothing from the file, which may be overwritten
//! afterwards without harm.
//!
//! A file that asks for arithmetic that is not implemented is refused by the name of the key that
//! asks for it: running it anyway would give plausible, wrong text.

mod adapter;
mod canon;
mod checkpoint;
mod config;
mod cursor;
mod error;
mod files;
mod finite;
#[cfg(fuzzing)]
pub mod fuzz;
mod ggml;
mod gguf;
mod glimpse;
mod hf;
mod input;
mod mlx;
mod pack;
mod safetensors;
mod tinygpt;

use std::fs::File;

pub use tinygpt_kernels::Gelu;
use tinygpt_kernels::Pool;

pub use self::adapter::{Adapter, AdapterFiles};
pub use self::checkpoint::{
    Attention, Checkpoint, Delta, Dense, Experts, GemmaBlock, GemmaWeights, GgufVocabulary,
    GptBlock, GptWeights, HfVocabulary, Linear, LlamaBlock, LlamaWeights, Mlp, Norm, Vocabulary,
    Weights,
};
pub use self::config::{
    ExpertsConfig, GemmaConfig, GptConfig, LayerPlan, LlamaConfig, RopeConfig, Shorter,
};
pub use self::error::LoadError;
pub use self::files::{Files, ModelFile, OpenError};
pub use self::glimpse::Glimpse;
use self::input::Input;
pub use self::pack::{Pack, PackError, Packing, Unkept};

/// The model that serves when no other is named: a small byte-level Shakespeare GPT.
pub const BUILTIN: &[u8] = include_bytes!("../../../assets/builtin.tinygpt");

/// Reads a model of any known format, told by its first four bytes.
///
/// # Errors
/// Every way in which the bytes are not a model that can run: see [`LoadError`].
pub fn load(bytes: &[u8], pool: &Pool) -> Result<Checkpoint, LoadError> {
    read(Input::Memory(bytes), &Packing::new(pool))
}

/// Reads a model file of any known format, with the matrices that `packing` gives.
///
/// # Errors
/// Every way in which the file is not a model that can run, or cannot be read: see [`LoadError`].
pub fn load_file(file: &File, packing: &Packing<'_>) -> Result<Checkpoint, LoadError> {
    read(Input::file(file)?, packing)
}

fn read(input: Input<'_>, packing: &Packing<'_>) -> Result<Checkpoint, LoadError> {
    input.with_head(|head| match head.first_chunk() {
        Some(tinygpt::MAGIC) => tinygpt::load(head, input, packing),
        Some(gguf::MAGIC) => gguf::load(head, input, packing),
        _ => Err(LoadError::Magic { found: first_bytes(head) }),
    })
}

fn first_bytes(bytes: &[u8]) -> String {
    match bytes {
        [] => "nothing".into(),
        _ => format!("\"{}\"", bytes[..bytes.len().min(4)].escape_ascii()),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::num::NonZeroUsize;
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn a_model_that_is_cut_short_after_it_was_opened_is_an_error_with_its_place() {
        let pool = Pool::new(NonZeroUsize::MIN);
        for part in [1, 5, 9] {
            let file = tempfile::tempfile().unwrap();
            file.write_all_at(BUILTIN, 0).unwrap();
            let input = Input::file(&file).unwrap();
            let left = BUILTIN.len() as u64 * part / 10;
            file.set_len(left).unwrap();
            match read(input, &Packing::new(&pool)).unwrap_err() {
                LoadError::Cut { at, need, have } => {
                    assert!(have == left && (at + need) as u64 > left, "{at} {need} {have}");
                }
                error => panic!("{error}"),
            }
        }
    }

    #[test]
    fn an_outline_is_refused_in_the_words_in_which_a_model_is() {
        let pool = Pool::new(NonZeroUsize::MIN);
        let words = |bytes: &[u8], packing: &Packing<'_>| {
            read(Input::Memory(bytes), packing).map(|_| ()).map_err(|error| error.to_string())
        };
        let mut refused = 0;
        for at in (0..6000).step_by(97) {
            let mut odd = BUILTIN.to_vec();
            odd[at] ^= 1 << (at % 8);
            let outline = words(&odd, &Packing::outline());
            refused += usize::from(outline.is_err());
            if outline.is_err() || at == 97 {
                assert_eq!(outline, words(&odd, &Packing::new(&pool)), "byte {at}");
            }
        }
        assert!(refused > 5, "{refused}");
        let cut = &BUILTIN[..BUILTIN.len() / 2];
        assert_eq!(words(cut, &Packing::outline()), words(cut, &Packing::new(&pool)));
    }

    #[test]
    fn the_built_in_model_is_the_same_from_a_file() {
        let pool = Pool::new(NonZeroUsize::MIN);
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(BUILTIN, 0).unwrap();
        let [ours, theirs] =
            [load_file(&file, &Packing::new(&pool)), load(BUILTIN, &pool)].map(|read| {
                let Weights::Gpt(weights) = read.unwrap().weights else {
                    panic!("a .tinygpt file")
                };
                weights
            });
        assert_eq!(ours.position_embedding, theirs.position_embedding);
        assert_eq!(ours.blocks[5].norm, theirs.blocks[5].norm);
    }
}
