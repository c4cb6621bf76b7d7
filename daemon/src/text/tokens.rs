//! What every vocabulary has, however it makes ids of a text.

use std::fmt;

use super::pieces::Pieces;

/// The tokens, and which of them stand around a text.
pub(super) struct Tokens {
    pub(super) pieces: Pieces,
    /// The beginning-of-sequence token, if there is one.
    pub(super) bos: Option<u32>,
    /// Whether prompts begin with it.
    pub(super) adds_bos: bool,
    /// The tokens that end a generation.
    pub(super) ends: Vec<u32>,
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens")
            .field("vocab", &self.pieces.len())
            .field("bos", &self.bos)
            .field("adds_bos", &self.adds_bos)
            .field("ends", &self.ends)
            .finish()
    }
}
