//! What may restrict a sequence's tokens without the engine knowing text.

use std::fmt;

/// Which tokens may come next: a bit for each id, all set at first.
#[derive(Debug, Clone)]
pub struct Mask {
    words: Vec<u64>,
}

impl Mask {
    /// A mask over `vocab` ids that allows all.
    pub fn all(vocab: usize) -> Self {
        Self { words: vec![u64::MAX; vocab.div_ceil(64)] }
    }

    /// Forbids `token`.
    pub fn forbid(&mut self, token: u32) {
        let (word, bit) = (token as usize / 64, token % 64);
        if let Some(word) = self.words.get_mut(word) {
            *word &= !(1 << bit);
        }
    }

    /// Whether `token` is allowed.
    pub fn allows(&self, token: u32) -> bool {
        let (word, bit) = (token as usize / 64, token % 64);
        self.words.get(word).is_some_and(|word| word >> bit & 1 == 1)
    }
}

/// Whether a sequence goes on after a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Sample the next one.
    Continue,
    /// The token was the last.
    Stop,
}

/// Watches a sequence's tokens, forbids some, and ends it.
pub trait Constraint: Send + fmt::Debug {
    /// Forbids tokens that may not come next. Most constraints forbid nothing.
    fn mask(&self, mask: &mut Mask);

    /// Whether [`mask`](Self::mask) ever forbids anything, so that the engine can skip it.
    fn masks(&self) -> bool {
        false
    }

    /// The same constraint on a text that has not begun.
    fn afresh(&self) -> Box<dyn Constraint>;

    /// Sees the token that was sampled.
    fn accept(&mut self, token: u32) -> Verdict;
}
