//! Several texts for one prompt: they share its blocks, and part where it ends.

use std::io;
use std::sync::Arc;

use super::Engine;
use super::admit::blocks_of;
use super::sequence::{Phase, SeqId, Sequence};
use crate::kv::seq::{KvSeq, Slabs};

impl Engine {
    /// Begins the other texts of a request whose prompt is complete. Returns the places of all.
    ///
    /// # Errors
    /// When the system refuses memory for the rows in which they part.
    pub(super) fn fork(&mut self, at: usize) -> io::Result<std::ops::Range<usize>> {
        let first = self.sequences.len();
        for choice in 1..=self.sequences[at].to_fork {
            self.next += 1;
            let parent = &self.sequences[at];
            let slabs = self.slabs.entry(parent.job.codec);
            let slabs = slabs.or_insert_with(|| Slabs::new(&parent.family.layout));
            let sequence = parent.sibling(SeqId(self.next), choice, parent.kv.fork(slabs)?);
            self.sequences.push(sequence);
        }
        let parent = &mut self.sequences[at];
        parent.reserved =
            parent.reserved.saturating_sub(parent.to_fork as usize * parent.text_bytes());
        parent.to_fork = 0;
        Ok(first..self.sequences.len())
    }
}

impl Sequence {
    /// One more text behind the same prompt, whose rows are `kv`.
    fn sibling(&self, id: SeqId, choice: u32, kv: KvSeq) -> Self {
        Self {
            phase: Phase::Decode,
            choice,
            choices: self.choices,
            saved: kv.sealed().len(),
            cached: kv.len(),
            relieved: vec![true; kv.sealed().len()],
            kv,
            reuse: self.reuse.clone(),
            times: self.times,
            announced: true,
            ..Self::new(id, self.job.another(), Arc::clone(&self.family), self.text_bytes())
        }
    }

    /// Bytes that a text may come to own behind the blocks of its prompt.
    fn text_bytes(&self) -> usize {
        blocks_of(self.text_left()) * self.family.layout.block_bytes()
    }
}
