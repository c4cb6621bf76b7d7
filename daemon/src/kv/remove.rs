//! Forgetting on request: one rule, for memory and for disk.
//!
//! A chain ends with its last whole block and the tail after it. When an end is removed, what goes
//! is
//!
//! * its descendants: records and blocks behind the last block that begin with the tail, and
//!   whatever follows those;
//! * what only it needed: from the last block backwards, every block that then neither a record
//!   nor a block follows and at which no pinned prompt ends.
//!
//! A tier applies the rule to what it holds, whether or not the end's own record is among that:
//! so a prompt is gone from both tiers even if each of them held another part of it.

use std::collections::HashSet;
use std::hash::Hash;

use super::key::{BlockKey, End};

/// A tier's chains, as far as the rule asks.
pub trait Chains {
    /// What the tier calls a record.
    type Record: Copy + Eq + Hash;

    /// The block before `key`, or the chain's root; `None` when the block is not here.
    fn parent(&self, key: &BlockKey) -> Option<BlockKey>;

    /// Whether a pinned prompt ends with the block `key` and does not go when `removed` does.
    fn is_pinned(&self, key: &BlockKey, removed: &End) -> bool;

    /// Whatever comes right after the block `key` and begins with `tail`.
    fn after(&self, key: &BlockKey, tail: &[u32]) -> Pieces<Self::Record>;
}

/// Blocks and records of a tier.
#[derive(Debug)]
pub struct Pieces<R> {
    /// Blocks by name.
    pub blocks: HashSet<BlockKey>,
    /// Records by the tier's name for them.
    pub records: HashSet<R>,
}

/// What goes when `end` is removed.
pub fn doomed<C: Chains>(chains: &C, end: &End) -> Pieces<C::Record> {
    let mut doomed = chains.after(&end.last, &end.tail);
    let mut pending: Vec<BlockKey> = doomed.blocks.iter().copied().collect();
    while let Some(key) = pending.pop() {
        let after = chains.after(&key, &[]);
        doomed.records.extend(after.records);
        pending.extend(after.blocks.into_iter().filter(|key| doomed.blocks.insert(*key)));
    }
    let mut last = end.last;
    while let Some(parent) = chains.parent(&last)
        && !chains.is_pinned(&last, end)
        && chains.after(&last, &[]).is_within(&doomed)
    {
        doomed.blocks.insert(last);
        last = parent;
    }
    doomed
}

impl<R: Copy + Eq + Hash> Pieces<R> {
    fn is_within(&self, other: &Self) -> bool {
        self.blocks.is_subset(&other.blocks) && self.records.is_subset(&other.records)
    }
}
