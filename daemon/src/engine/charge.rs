//! Who is charged for which block in memory, so that what requests read is within the active budget.
//!
//! What a request reads cannot be evicted. A job is admitted with room for all of its prompt and
//! text; what it then finds in mapped files costs nothing, and what another sequence is charged for
//! is not charged twice. When that one ends, whoever reads its blocks on is charged for them.
//!
//! Invariant: every block on the heap that sequences read is charged to one of them at least, and
//! to one only when all have found what there is.

use std::sync::Arc;

use super::Engine;
use super::sequence::{Phase, Sequence};
use crate::kv::block::Block;

impl Engine {
    /// Takes off a sequence what lies in files, and what others are charged for.
    pub(super) fn relieve(&mut self, at: usize) {
        let sequence = &self.sequences[at];
        let others = || self.sequences.iter().filter(|other| other.id != sequence.id);
        let found = sequence.kv.sealed().iter().enumerate();
        let elsewhere = found.map(|(nth, block)| {
            block.heap_bytes() == 0 || others().any(|other| other.is_charged(nth, block))
        });
        let relieved: Vec<bool> = elsewhere.collect();
        let sequence = &mut self.sequences[at];
        let blocks = relieved.iter().filter(|relieved| **relieved).count();
        sequence.reserved = sequence.reserved.saturating_sub(blocks * sequence.block_bytes());
        sequence.relieved = relieved;
    }

    /// Charges others for what a sequence that gives its blocks up was charged for and they read.
    /// They were admitted with room for it.
    pub(super) fn pass_on(&mut self, at: usize) {
        let charged: Vec<_> = self.sequences[at].charged().collect();
        for (nth, block) in charged {
            let stays = |other: usize| other != at && self.sequences[other].phase != Phase::Ended;
            let Some(heir) = self.heir(nth, &block, stays) else { continue };
            let heir = &mut self.sequences[heir];
            heir.relieved[nth] = false;
            heir.reserved += heir.block_bytes();
        }
    }

    /// Bytes that are free when the sequences at `leaving` give their blocks up.
    pub(super) fn gain(&self, leaving: &[usize]) -> usize {
        let stays = |other: usize| !leaving.contains(&other);
        let gain = |at: &usize| {
            let sequence = &self.sequences[*at];
            let kept =
                sequence.charged().filter(|(nth, block)| self.heir(*nth, block, stays).is_some());
            sequence.reserved.saturating_sub(kept.count() * sequence.block_bytes())
        };
        leaving.iter().map(gain).sum()
    }

    /// Who of those that stay is to be charged for a block; nobody when somebody is, or none reads
    /// it.
    fn heir(&self, nth: usize, block: &Arc<Block>, stays: impl Fn(usize) -> bool) -> Option<usize> {
        let readers = (0..self.sequences.len()).filter(|at| stays(*at));
        let mut readers = readers.filter(|at| self.sequences[*at].reads(nth, block)).peekable();
        let first = readers.peek().copied();
        let charged = readers.any(|at| self.sequences[at].is_charged(nth, block));
        first.filter(|_| !charged)
    }
}

impl Sequence {
    fn reads(&self, nth: usize, block: &Arc<Block>) -> bool {
        self.kv.sealed().get(nth).is_some_and(|held| Arc::ptr_eq(held, block))
    }

    fn is_charged(&self, nth: usize, block: &Arc<Block>) -> bool {
        self.reads(nth, block) && !self.is_relieved(nth)
    }

    fn is_relieved(&self, nth: usize) -> bool {
        self.relieved.get(nth).copied().unwrap_or(false)
    }

    /// The blocks on the heap that it is charged for, by their places.
    fn charged(&self) -> impl Iterator<Item = (usize, Arc<Block>)> {
        let sealed = self.kv.sealed().iter().enumerate();
        let charged =
            sealed.filter(|(nth, block)| !self.is_relieved(*nth) && block.heap_bytes() > 0);
        charged.map(|(nth, block)| (nth, Arc::clone(block)))
    }

    fn block_bytes(&self) -> usize {
        self.family.layout.block_bytes()
    }
}
