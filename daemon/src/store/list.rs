//! Chain ends: what `cache ls` shows and `cache rm` takes.
//!
//! A chain ends where a record says so, or at the last block of a segment that nothing follows.
//! The second kind has no record, and its key is that of the record it would have.

use super::ChainEnd;
use std::collections::HashSet;

use super::catalogue::{Catalogue, Entry, FileId};
use super::contents::Contents;
use super::damage::Fault;
use super::segment::Header;
use super::shared::Shared;
use crate::kv::key::{End, Fingerprint, RecordKey};
use crate::kv::layout::BLOCK;
use crate::sys::file;

impl Shared {
    /// All chain ends that are whole. Reads headers that nobody has read yet.
    pub(super) fn list(&self) -> Vec<ChainEnd> {
        self.read_all_headers();
        let ids: Vec<_> = self.catalogue().entries().map(|(id, _)| id).collect();
        // The lock is let go between entries: a long list must not hold up an engine.
        let mut ends: Vec<_> =
            ids.into_iter().filter_map(|id| self.catalogue().describe(id)).collect();
        ends.extend(self.catalogue().pinned_ends(&ends));
        ends
    }

    /// The token ids of a chain. Reads headers.
    pub(super) fn tokens(&self, fingerprint: &Fingerprint, key: &RecordKey) -> Option<Vec<u32>> {
        self.read_all_headers();
        let end = self.catalogue().end(fingerprint, key)?;
        let chain = self.catalogue().chain(fingerprint, end.last);
        let mut tokens = Vec::new();
        for (id, blocks) in chain.segments.iter().filter(|_| chain.whole) {
            let header = self.header(*id).inspect_err(|fault| self.report(*id, fault)).ok()?;
            tokens.extend(header.blocks.iter().take(*blocks).flat_map(|block| block.tokens));
        }
        tokens.extend(end.tail);
        chain.whole.then_some(tokens)
    }

    pub(super) fn header(&self, id: FileId) -> Result<Header, Fault> {
        let (.., path) = self.locate(id).ok_or(Fault::Gone)?;
        Header::read(&file::open(&path)?)
    }
}

impl Catalogue {
    /// The chain end called `key`.
    fn end(&self, fingerprint: &Fingerprint, key: &RecordKey) -> Option<End> {
        let mut ends = self.shelf(fingerprint)?.files().filter_map(|id| self.end_of(id));
        let found = ends.find_map(|(found, end)| (found == *key).then_some(end));
        found.or_else(|| Some(self.pins.book.find(key)?.end.clone()))
    }

    /// The ends of pinned chains, other than `known`, that no file ends: each lost its record, or
    /// had none, and goes on.
    fn pinned_ends(&self, known: &[ChainEnd]) -> Vec<ChainEnd> {
        let known: HashSet<_> = known.iter().map(|end| end.key).collect();
        let others = self.pins.book.iter().filter(|lease| !known.contains(&lease.key()));
        let ends = others.filter_map(|lease| {
            let place = self.place(&lease.fingerprint, &lease.end.last)?;
            let file = self.entry(place.file)?;
            self.describe_end(lease.fingerprint, lease.end.clone(), file, (0, false))
        });
        ends.collect()
    }

    /// What the list says of the chain that the file ends; `None` when it ends none.
    fn describe(&self, id: FileId) -> Option<ChainEnd> {
        let (_, end) = self.end_of(id)?;
        let entry = self.entry(id)?;
        let contents = entry.contents.as_ref()?;
        let own = match contents {
            Contents::Record(head) => (entry.bytes, head.complete),
            Contents::Segment(_) => (0, false),
        };
        self.describe_end(contents.fingerprint(), end, entry, own)
    }

    /// What the list says of a whole chain; `file` was used with its end, whose record has so many
    /// bytes and maybe a hidden state.
    fn describe_end(
        &self,
        fingerprint: Fingerprint,
        end: End,
        file: &Entry,
        (own, complete): (u64, bool),
    ) -> Option<ChainEnd> {
        let chain = self.chain(&fingerprint, end.last);
        if !chain.whole {
            return None;
        }
        let blocks: usize = chain.segments.iter().map(|(_, blocks)| blocks).sum();
        let key = end.key(&fingerprint);
        let shares = chain.segments.iter().map(|(id, blocks)| self.share(*id, *blocks));
        Some(ChainEnd {
            key,
            fingerprint,
            tokens: u32::try_from(blocks * BLOCK + end.tail.len()).unwrap_or(u32::MAX),
            bytes: shares.sum::<u64>() + own,
            complete,
            created_ms: file.born.map(|born| born / 1_000_000),
            used_ms: file.used / 1_000_000,
            pinned_ms: self.pins.book.until(&key),
            end,
        })
    }

    /// The end that the record `id` stands for, or at which nothing follows the segment `id`.
    fn end_of(&self, id: FileId) -> Option<(RecordKey, End)> {
        match self.entry(id)?.contents.as_ref()? {
            Contents::Record(head) => {
                Some((head.key, End { last: head.last, tail: head.tail.clone() }))
            }
            Contents::Segment(run) => {
                let end = End { last: *run.keys.last()?, tail: Vec::new() };
                let followed = self.shelf(&run.fingerprint)?.has_children(&[end.last]);
                (!followed).then(|| (end.key(&run.fingerprint), end))
            }
        }
    }

    /// Bytes of the first `blocks` blocks of a segment, with their share of its header.
    fn share(&self, id: FileId, blocks: usize) -> u64 {
        let Some(entry) = self.entry(id) else { return 0 };
        let all = entry.contents.as_ref().map_or(1, |contents| contents.keys().len().max(1));
        entry.bytes * blocks as u64 / all as u64
    }
}
