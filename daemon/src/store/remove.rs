//! Forgetting on request, by the rule of [`crate::kv::remove`].
//!
//! A segment that loses its last blocks only is cut: its first blocks are written again.

use std::collections::{BTreeMap, HashSet};

use super::catalogue::{Catalogue, Farewell, FileId};
use super::contents::Contents;
use super::rewrite::Kind;
use super::shared::Shared;
use super::shelf::{Branches, Shelf};
use crate::kv::key::{BlockKey, End, Fingerprint};
use crate::kv::remove::{Chains, Pieces, doomed};

/// What is to be removed.
#[derive(Debug)]
pub(super) enum Target {
    Chain(Fingerprint, End),
    Everything,
}

/// What was removed from the disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Removed {
    /// Blocks.
    pub blocks: u64,
    /// Records.
    pub records: u64,
    /// Pins, which went with their prompts.
    pub pins: u64,
    /// Bytes of files that are gone, less those written again.
    pub bytes: u64,
    /// Files that could not be removed: they are still on the disk, and a restart finds them.
    pub kept: u64,
    /// The directory is no longer the one that was locked: what is in it was left alone.
    pub moved: bool,
}

impl Shared {
    /// Removes files; runs on the writer's thread.
    pub(super) fn remove(&self, target: Target) -> Removed {
        self.read_all_headers();
        let before = self.holdings();
        let kept = match target {
            Target::Chain(fingerprint, end) => {
                let kept = self.tally.kept.count();
                self.remove_chain(&fingerprint, &end);
                self.tally.kept.count() - kept
            }
            Target::Everything => self.remove_everything(),
        };
        let moved = self.expect_home().is_err();
        Removed { kept, moved, ..before.less(self.holdings()) }
    }

    fn remove_chain(&self, fingerprint: &Fingerprint, end: &End) {
        let next = self.tokens_after(fingerprint, end.last).unwrap_or_default();
        let (segments, records, pins) = {
            let catalogue = self.catalogue();
            let Some(shelf) = catalogue.shelf(fingerprint) else { return };
            let on_disk = OnDisk { catalogue: &catalogue, shelf, fingerprint, next };
            let Pieces { blocks, records } = doomed(&on_disk, end);
            (on_disk.cuts(&blocks), records, catalogue.pins.book.doomed(end, &blocks))
        };
        pins.iter().for_each(|key| _ = self.catalogue().unpin(key));
        for (id, keep) in segments {
            match keep {
                0 => self.discard(id, Farewell::Removed),
                keep => self.cut(id, keep),
            }
        }
        records.into_iter().for_each(|id| self.discard(id, Farewell::Removed));
        if !pins.is_empty() {
            self.keep_pins();
        }
    }

    /// How many files stay. Every file that was left the first time is tried again.
    fn remove_everything(&self) -> u64 {
        let files: Vec<_> = self.catalogue().entries().map(|(id, _)| id).collect();
        files.into_iter().for_each(|id| self.discard(id, Farewell::Removed));
        let kept = self.clean(true).kept + self.drop_sides();
        let families = self.catalogue().digested();
        families.into_iter().for_each(|family| self.drop_fields(family));
        self.drop_pins();
        self.catalogue().history.clear();
        kept
    }

    /// The tokens of the block after `last` in the same segment.
    fn tokens_after(&self, fingerprint: &Fingerprint, last: BlockKey) -> Option<Vec<u32>> {
        let place = self.catalogue().place(fingerprint, &last)?;
        let header = self.header(place.file).ok()?;
        header.blocks.get(place.index as usize + 1).map(|block| block.tokens.to_vec())
    }

    fn cut(&self, id: FileId, keep: usize) {
        let Ok(mapping) = self.mapping(id) else { return self.discard(id, Farewell::Removed) };
        let header = &mapping.header;
        let kind = Kind { fingerprint: header.fingerprint, layout: header.layout };
        let blocks: Vec<_> = self.blocks_of(id).into_iter().take(keep).collect();
        // One file as before, whatever is pinned in it: two would be larger than pins expect.
        let written = (!blocks.is_empty()).then(|| self.write_run(kind, &blocks, false));
        if let Some(Err(error)) = written {
            tracing::debug!(%error, "dropped the blocks before removed ones");
        }
        self.discard(id, Farewell::Gone);
    }

    fn holdings(&self) -> Removed {
        let catalogue = self.catalogue();
        let mut sum = Removed::default();
        for (_, entry) in catalogue.entries() {
            match &entry.contents {
                Some(Contents::Segment(run)) => sum.blocks += run.keys.len() as u64,
                Some(Contents::Record(_)) => sum.records += 1,
                None => {}
            }
            sum.bytes += entry.bytes;
        }
        sum.bytes += catalogue.sides.named_bytes();
        sum.pins = catalogue.pins.book.iter().count() as u64;
        sum
    }
}

impl Removed {
    fn less(self, after: Self) -> Self {
        Self {
            blocks: self.blocks.saturating_sub(after.blocks),
            records: self.records.saturating_sub(after.records),
            pins: self.pins.saturating_sub(after.pins),
            bytes: self.bytes.saturating_sub(after.bytes),
            ..Self::default()
        }
    }
}

/// The chains of a family, as far as the catalogue knows them.
struct OnDisk<'a> {
    catalogue: &'a Catalogue,
    shelf: &'a Shelf,
    fingerprint: &'a Fingerprint,
    /// The tokens of the block after the removed end in the same segment: the catalogue only
    /// knows those of first blocks.
    next: Vec<u32>,
}

impl Chains for OnDisk<'_> {
    type Record = FileId;

    fn parent(&self, key: &BlockKey) -> Option<BlockKey> {
        let place = self.catalogue.place(self.fingerprint, key)?;
        match place.index.checked_sub(1) {
            Some(before) => self.keys(place.file).get(before as usize).copied(),
            None => self.contents(place.file).map(Contents::parent),
        }
    }

    fn is_pinned(&self, key: &BlockKey, removed: &End) -> bool {
        self.catalogue.pins.book.outlasts(key, removed)
    }

    fn after(&self, key: &BlockKey, tail: &[u32]) -> Pieces<FileId> {
        let in_run = self.catalogue.place(self.fingerprint, key).and_then(|place| {
            let next = self.keys(place.file).get(place.index as usize + 1)?;
            self.next.starts_with(tail).then_some(*next)
        });
        let branches = self.shelf.branches(key.short());
        let blocks = branches.into_iter().flat_map(Branches::blocks);
        let blocks = blocks.filter(|(first, _)| first.starts_with(tail));
        let firsts = blocks.filter_map(|(_, id)| self.keys(*id).first().copied());
        let tails = branches.into_iter().flat_map(Branches::tails);
        let records = tails.filter(|(other, _)| other.starts_with(tail)).map(|(_, id)| *id);
        Pieces { blocks: in_run.into_iter().chain(firsts).collect(), records: records.collect() }
    }
}

impl OnDisk<'_> {
    /// The segments that hold some of `blocks`, and how many of their first blocks stay.
    fn cuts(&self, blocks: &HashSet<BlockKey>) -> BTreeMap<FileId, usize> {
        let mut cuts = BTreeMap::new();
        for key in blocks {
            let place = self.catalogue.place(self.fingerprint, key);
            let place = place.map(|place| (place.file, place.index as usize));
            // A crash can leave a block in two files.
            let starts = self.shelf.starts(key.short()).iter();
            let starts =
                starts.filter(|id| self.keys(**id).first() == Some(key)).map(|id| (*id, 0));
            for (id, index) in starts.chain(place) {
                cuts.entry(id)
                    .and_modify(|keep: &mut usize| *keep = index.min(*keep))
                    .or_insert(index);
            }
        }
        cuts
    }

    fn keys(&self, id: FileId) -> &[BlockKey] {
        self.contents(id).map_or(&[], Contents::keys)
    }

    fn contents(&self, id: FileId) -> Option<&Contents> {
        self.catalogue.entry(id)?.contents.as_ref()
    }
}
