//! What a loader would find for a prompt, as far as names and headers tell: nothing is mapped,
//! verified or counted as used.
//!
//! A block whose bytes are damaged shows only when it is read, so a glimpse may promise too much.
//! A damaged header is set aside at once, as everywhere.

use super::Restore;
use super::catalogue::{Catalogue, FileId};
use super::contents::Contents;
use super::damage::Fault;
use super::loader::Walk;
use super::segment::Header;
use super::shared::Shared;
use crate::kv::key::{BlockKey, BlockTokens, Fingerprint, RecordKey, common};
use crate::sys::file;

/// What the disk seems to have of a prompt.
#[derive(Debug, Default)]
pub struct Glimpse {
    /// How many blocks of the prompt there are behind those that the asker has.
    pub blocks: usize,
    /// The block behind them that begins most like the rest of the prompt.
    pub partial: Option<(BlockKey, BlockTokens)>,
    /// The record of the whole prompt, else the one with the longest tail in common.
    pub record: Option<Glimpsed>,
    /// The ids of what follows the blocks and goes on most like the prompt, even if nothing of it
    /// does.
    pub next: Option<Vec<u32>>,
    /// A file that should help is damaged.
    pub corrupt: bool,
    /// A file that should help cannot be read.
    pub io_error: bool,
}

/// A record as its head tells it.
#[derive(Debug)]
pub struct Glimpsed {
    /// Its name.
    pub key: RecordKey,
    /// The ids behind the last block.
    pub tail: Vec<u32>,
    /// Whether it holds a final hidden state.
    pub complete: bool,
}

impl Shared {
    /// Looks for everything that helps with a prompt.
    pub(super) fn glimpse(&self, asked: &Restore) -> Glimpse {
        let mut walk = Walk::new(self, asked);
        while asked.keys.get(walk.at).is_some_and(|key| walk.find(*key).is_some()) {
            walk.at += 1;
        }
        let head = |(id, index)| self.head(id, index).ok()?;
        let (parent, rest) = (asked.parent(walk.at), asked.rest(walk.at));
        let partial = walk.nearest_block().and_then(head);
        let in_run = walk.behind(parent).and_then(head).map(|(_, tokens)| tokens.to_vec());
        let record = walk.nearest_record();
        let catalogue = self.catalogue();
        let follows = catalogue.follows(&asked.family.fingerprint, parent, rest);
        let damaged = catalogue.damaged_at(&asked.family.fingerprint, &asked.keys, walk.at);
        Glimpse {
            blocks: walk.at - asked.from,
            partial,
            record: record.and_then(|id| catalogue.glimpsed(id)),
            next: in_run.into_iter().chain(follows).max_by_key(|ids| nearness(ids, rest)),
            corrupt: walk.found.corrupt || !damaged.is_empty(),
            io_error: walk.found.io_error,
        }
    }

    /// Key and tokens of a block, from the header of its segment; `None` behind the last.
    pub(super) fn head(
        &self,
        id: FileId,
        index: usize,
    ) -> Result<Option<(BlockKey, BlockTokens)>, Fault> {
        let pick =
            |header: &Header| Some((header.blocks.get(index)?.key, header.blocks[index].tokens));
        if let Some(mapping) = self.catalogue().mappings.peek(id) {
            return Ok(pick(&mapping.header));
        }
        let (.., path) = self.locate(id).ok_or(Fault::Gone)?;
        Ok(pick(&Header::read(&file::open(&path)?)?))
    }
}

impl Catalogue {
    /// The ids of what follows the block `last` and goes on most like `rest`, even if nothing of
    /// it does. Blocks inside of segments that are not mapped are not known.
    pub(super) fn follows(
        &self,
        fingerprint: &Fingerprint,
        last: BlockKey,
        rest: &[u32],
    ) -> Option<Vec<u32>> {
        let shelf = self.shelf(fingerprint)?;
        let place = self.place(fingerprint, &last);
        let mapping = place.and_then(|place| Some((place, self.mappings.peek(place.file)?)));
        let in_run = mapping.and_then(|(place, mapping)| {
            Some(mapping.header.blocks.get(place.index as usize + 1)?.tokens.to_vec())
        });
        let branch = shelf.branches(last.short()).and_then(|branches| branches.nearest(rest));
        in_run.into_iter().chain(branch).max_by_key(|ids| nearness(ids, rest))
    }

    fn glimpsed(&self, id: FileId) -> Option<Glimpsed> {
        match self.entry(id)?.contents.as_ref()? {
            Contents::Record(head) => {
                Some(Glimpsed { key: head.key, tail: head.tail.clone(), complete: head.complete })
            }
            Contents::Segment(_) => None,
        }
    }
}

/// How near a continuation is: by the tokens in common, and of equals the one that ends there.
/// The ids decide between the rest.
pub(super) fn nearness(theirs: &[u32], ours: &[u32]) -> (usize, bool, Vec<u32>) {
    let common = common(theirs, ours);
    (common, common == theirs.len(), theirs.to_vec())
}
