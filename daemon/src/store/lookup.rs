//! Questions to the catalogue about chains: pure looks, no file is touched.

use super::Restore;
use super::catalogue::{Catalogue, Entry, FileId};
use super::contents::Contents;
use super::name::Name;
use super::record;
use super::shelf::{Branches, Place, Shelf};
use crate::kv::block::Block;
use crate::kv::key::{BlockKey, Fingerprint, RecordKey, ShortKey};
use crate::kv::layout::BLOCK;

/// Files of a chain from its end to its beginning.
#[derive(Debug, Default)]
pub(super) struct Chain {
    /// Segments in the order of the chain, and how many of their first blocks belong to it.
    pub(super) segments: Vec<(FileId, usize)>,
    /// Whether nothing is missing.
    pub(super) whole: bool,
}

impl Catalogue {
    /// Whether a loader would find anything that helps, as far as names and headers already read
    /// tell; `record` is the key of the whole prompt's record.
    pub(super) fn may_have(&self, asked: &Restore, record: RecordKey) -> bool {
        let Some(shelf) = self.shelf(&asked.family.fingerprint) else { return false };
        let (last, rest) = (asked.parent(asked.from), asked.rest(asked.from));
        let lends = |branches: &Branches| {
            branches.unread().next().is_some()
                || branches.nearest_block(rest).is_some()
                || branches.nearest_tail(rest).is_some()
        };
        let name = Name::Record { last: last.short(), key: record.short() };
        let has_record = asked.from == asked.keys.len() && shelf.by_name(&name).is_some();
        self.may_have_next(shelf, asked)
            || shelf.branches(last.short()).is_some_and(lends)
            || self
                .place(&asked.family.fingerprint, &last)
                .is_some_and(|place| !self.is_last(place))
            || has_record
    }

    /// Whether the first block that the asker lacks is there, or was and is damaged.
    fn may_have_next(&self, shelf: &Shelf, asked: &Restore) -> bool {
        let Some(key) = asked.keys.get(asked.from) else { return false };
        self.place(&asked.family.fingerprint, key).is_some()
            || !self.promising(shelf, &asked.keys, asked.from).is_empty()
            || !self.damaged_at(&asked.family.fingerprint, &asked.keys, asked.from).is_empty()
    }

    /// Whether a block is the last of its segment.
    pub(super) fn is_last(&self, place: Place) -> bool {
        let contents = self.entry(place.file).and_then(|entry| entry.contents.as_ref());
        contents.is_some_and(|contents| place.index as usize + 1 == contents.keys().len())
    }

    /// The segments from the chain's root to the block `last`.
    pub(super) fn chain(&self, fingerprint: &Fingerprint, last: BlockKey) -> Chain {
        let mut chain = Chain::default();
        let root = BlockKey::root(fingerprint);
        let mut next = last;
        while next != root {
            let Some(place) = self.place(fingerprint, &next) else { break };
            let Some(contents) = self.entry(place.file).and_then(|entry| entry.contents.as_ref())
            else {
                break;
            };
            chain.segments.push((place.file, place.index as usize + 1));
            next = contents.parent();
        }
        chain.whole = next == root;
        chain.segments.reverse();
        chain
    }

    /// The record called `key` behind the block `last`, and what its head says.
    pub(super) fn record(
        &self,
        fingerprint: &Fingerprint,
        last: BlockKey,
        key: RecordKey,
    ) -> Option<(FileId, &record::Head)> {
        let name = Name::Record { last: last.short(), key: key.short() };
        let id = self.shelf(fingerprint)?.by_name(&name)?;
        match &self.entry(id)?.contents {
            Some(Contents::Record(head)) if head.key == key => Some((id, head)),
            _ => None,
        }
    }

    /// Records without a hidden state, and not pinned, whose tail `block` begins with.
    pub(super) fn covered(&self, fingerprint: &Fingerprint, block: &Block) -> Vec<FileId> {
        let branches = self.shelf(fingerprint).and_then(|s| s.branches(block.parent.short()));
        let tails = branches.into_iter().flat_map(Branches::tails);
        let covered = tails.filter(|(tail, id)| {
            let contents = self.entry(*id).and_then(|entry| entry.contents.as_ref());
            let plain = matches!(contents, Some(Contents::Record(head))
                if !head.complete && self.pins.book.find(&head.key).is_none());
            plain && block.tokens.starts_with(tail)
        });
        covered.map(|(_, id)| *id).collect()
    }

    /// Files whose names say that they hold block `at` of a chain, though nobody has looked yet.
    pub(super) fn promising(&self, shelf: &Shelf, chain: &[BlockKey], at: usize) -> Vec<FileId> {
        let covers = |id: &FileId, start: usize| match self.entry(*id) {
            Some(Entry { name: Name::Segment { blocks, .. }, contents: None, .. }) => {
                start + *blocks as usize > at
            }
            _ => false,
        };
        let starting_at = |start: usize| {
            let files = shelf.starts(chain[start].short()).iter();
            files.copied().filter(move |id| covers(id, start))
        };
        (0..=at).rev().flat_map(starting_at).collect()
    }

    /// Quarantined files that held block `at` of a chain, by their names, and that no prompt was
    /// told of.
    pub(super) fn damaged_at(
        &self,
        fingerprint: &Fingerprint,
        chain: &[BlockKey],
        at: usize,
    ) -> Vec<(ShortKey, Name)> {
        let held = |(family, name): &&(ShortKey, Name)| {
            let Name::Segment { first, blocks, .. } = *name else { return false };
            let start = chain.iter().take(at + 1).position(|key| key.short() == first);
            let covers = start.is_some_and(|start| start + blocks as usize > at);
            *family == fingerprint.short() && at < chain.len() && covers
        };
        self.damaged().filter(held).copied().collect()
    }
}

impl Restore {
    /// The block before block `at`.
    pub(super) fn parent(&self, at: usize) -> BlockKey {
        match at.checked_sub(1) {
            Some(before) => self.keys[before],
            None => BlockKey::root(&self.family.fingerprint),
        }
    }

    /// The tokens from block `at` on.
    pub(super) fn rest(&self, at: usize) -> &[u32] {
        &self.tokens[at * BLOCK..]
    }
}
