//! Chain ends: what `cache ls` shows and `cache rm` takes.
//!
//! A chain ends where a record says so, or at the last block of a segment that nothing follows.
//! The second kind has no record, and its key is that of the record it would have.

use std::fs::File;

use super::Entry;
use super::catalogue::{Catalogue, FileId};
use super::contents::Contents;
use super::damage::Fault;
use super::segment::Header;
use super::shared::Shared;
use crate::kv::key::{BlockKey, Fingerprint, RecordKey};
use crate::kv::layout::BLOCK;

/// The end of a chain.
#[derive(Debug, Clone)]
pub(super) struct End {
    pub(super) key: RecordKey,
    pub(super) last: BlockKey,
    pub(super) tail: Vec<u32>,
    /// Its record, or the segment that it ends.
    file: FileId,
}

impl Shared {
    /// All chain ends that are whole. Reads headers that nobody has read yet.
    pub(super) fn list(&self) -> Vec<Entry> {
        self.read_all_headers();
        let ids: Vec<_> = self.catalogue().entries().map(|(id, _)| id).collect();
        // The lock is let go between entries: a long list must not hold up an engine.
        ids.into_iter().filter_map(|id| self.catalogue().describe(id)).collect()
    }

    /// The token ids of a chain. Reads headers.
    pub(super) fn tokens(&self, fingerprint: &Fingerprint, key: &RecordKey) -> Option<Vec<u32>> {
        self.read_all_headers();
        let end = self.catalogue().end(fingerprint, key)?;
        let chain = self.catalogue().chain(fingerprint, end.last);
        let mut tokens = Vec::new();
        for (id, blocks) in chain.segments.iter().filter(|_| chain.whole) {
            let header = self.header(*id).inspect_err(|fault| self.report(*id, fault)).ok()?;
            tokens.extend(header.blocks.iter().take(*blocks).flat_map(|head| head.tokens));
        }
        tokens.extend(end.tail);
        chain.whole.then_some(tokens)
    }

    fn header(&self, id: FileId) -> Result<Header, Fault> {
        let (.., path) = self.locate(id).ok_or(Fault::Gone)?;
        Header::read(&File::open(path)?)
    }
}

impl Catalogue {
    /// The chain end called `key`.
    pub(super) fn end(&self, fingerprint: &Fingerprint, key: &RecordKey) -> Option<End> {
        let mut ends = self.shelf(fingerprint)?.files().filter_map(|id| self.end_of(id));
        ends.find(|end| end.key == *key)
    }

    /// What the list says of the chain that the file ends; `None` when it ends none.
    fn describe(&self, id: FileId) -> Option<Entry> {
        let end = self.end_of(id)?;
        let contents = self.entry(id)?.contents.as_ref()?;
        let fingerprint = contents.fingerprint();
        let chain = self.chain(&fingerprint, end.last);
        if !chain.whole {
            return None;
        }
        let blocks: usize = chain.segments.iter().map(|(_, blocks)| blocks).sum();
        let entry = self.entry(end.file)?;
        let (own, complete) = match contents {
            Contents::Record(head) => (entry.bytes, head.complete),
            Contents::Segment(_) => (0, false),
        };
        let shares = chain.segments.iter().map(|(id, blocks)| self.share(*id, *blocks));
        Some(Entry {
            key: end.key,
            fingerprint,
            tokens: u32::try_from(blocks * BLOCK + end.tail.len()).unwrap_or(u32::MAX),
            bytes: shares.sum::<u64>() + own,
            complete,
            used_ms: entry.used / 1_000_000,
        })
    }

    fn end_of(&self, id: FileId) -> Option<End> {
        let contents = self.entry(id)?.contents.as_ref()?;
        match contents {
            Contents::Record(head) => {
                let (key, last, tail) = (head.key, head.last, head.tail.clone());
                Some(End { key, last, tail, file: id })
            }
            Contents::Segment(run) => {
                let last = *run.keys.last()?;
                let followed = self.shelf(&run.fingerprint)?.has_children(&[last]);
                let key = RecordKey::new(&run.fingerprint, &last, &[]);
                (!followed).then_some(End { key, last, tail: Vec::new(), file: id })
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
