//! What a model's files say of it, whether it can be loaded or not.

use std::path::Path;

use super::files::ModelFile;
use super::input::Input;
use super::{OpenError, gguf, hf, tinygpt};

/// What is said of a model, unchecked. Empty or 0 is what nobody says, or nobody understands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Glimpse {
    /// Name of the file format: `gguf`, `safetensors` or `tinygpt`.
    pub format: &'static str,
    /// Name of the architecture, as the file has it.
    pub architecture: String,
    /// The element type that most weights are stored in.
    pub quantisation: String,
    /// Most tokens of one sequence.
    pub context: usize,
}

impl Glimpse {
    /// Of the file or directory at `path`.
    pub fn of(path: &Path) -> Self {
        let glimpse = match path.is_dir() {
            true => hf::glimpse(path),
            false => of_file(path),
        };
        glimpse.unwrap_or_default()
    }
}

fn of_file(path: &Path) -> Result<Glimpse, OpenError> {
    let file = ModelFile::open(path)?;
    let input: Input<'_> = file.input()?;
    let glimpse = input.with_head(|head| match head.first_chunk() {
        Some(tinygpt::MAGIC) => tinygpt::glimpse(head, input.len()),
        Some(gguf::MAGIC) => gguf::glimpse(head, input),
        _ => Ok(Glimpse::default()),
    });
    Ok(glimpse?)
}
