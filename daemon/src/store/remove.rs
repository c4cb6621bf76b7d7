//! Forgetting on request: a chain end, what only it needs, and everything that descends from it.
//!
//! The end of a chain is its last whole block and the tail after it. What goes is
//!
//! * the record of that end, and records and blocks that begin with the same tail: its descendants;
//! * from the last block backwards, every block that then neither a record nor a block follows.
//!
//! A segment that loses its last blocks only is cut: its first blocks are written again.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use super::catalogue::{Catalogue, Farewell, FileId};
use super::contents::Contents;
use super::list::End;
use super::rewrite::Kind;
use super::shared::Shared;
use super::shelf::Shelf;
use crate::kv::key::{BlockKey, Fingerprint, RecordKey};

/// What is to be removed.
#[derive(Debug, Clone, Copy)]
pub(super) enum Target {
    Chain(Fingerprint, RecordKey),
    Family(Fingerprint),
    Everything,
}

/// What was removed from the disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Removed {
    /// Blocks.
    pub blocks: u64,
    /// Records.
    pub records: u64,
    /// Bytes of files that are gone, less those written again.
    pub bytes: u64,
}

impl Shared {
    /// Removes files; runs on the writer's thread.
    pub(super) fn remove(&self, target: Target) -> Removed {
        self.read_all_headers();
        let before = self.holdings();
        match target {
            Target::Chain(fingerprint, key) => self.remove_chain(&fingerprint, &key),
            Target::Family(fingerprint) => self.remove_family(&fingerprint),
            Target::Everything => self.remove_everything(),
        }
        before.less(self.holdings())
    }

    fn remove_chain(&self, fingerprint: &Fingerprint, key: &RecordKey) {
        let Some(end) = self.catalogue().end(fingerprint, key) else { return };
        let next = self.next_tokens(fingerprint, end.last);
        let extends = next.is_some_and(|next| next.starts_with(&end.tail));
        let doomed = {
            let catalogue = self.catalogue();
            let Some(shelf) = catalogue.shelf(fingerprint) else { return };
            let mut doom = Doom { catalogue: &catalogue, shelf, doomed: Doomed::default() };
            doom.descendants(&end, extends);
            doom.ancestors(end.last);
            doom.doomed
        };
        for (id, keep) in doomed.segments {
            match keep {
                0 => self.discard(id, Farewell::Removed),
                keep => self.cut(id, keep),
            }
        }
        doomed.records.into_iter().for_each(|id| self.discard(id, Farewell::Removed));
    }

    fn remove_family(&self, fingerprint: &Fingerprint) {
        let family = fingerprint.short();
        let files: Vec<_> = match self.catalogue().shelf(fingerprint) {
            Some(shelf) => shelf.files().collect(),
            None => return,
        };
        files.into_iter().for_each(|id| self.discard(id, Farewell::Removed));
        self.clean_dir(family, true);
        let mut catalogue = self.catalogue();
        catalogue.history.remove_family(family);
        if std::mem::take(&mut catalogue.shelf_mut(family).has_fields_file) {
            catalogue.fields_files -= 1;
            drop(catalogue);
            // The next start would only read it.
            let _ = fs::remove_file(self.fields_path(family));
        }
    }

    fn remove_everything(&self) {
        let files: Vec<_> = self.catalogue().entries().map(|(id, _)| id).collect();
        files.into_iter().for_each(|id| self.discard(id, Farewell::Removed));
        self.clean(true);
        let families: Vec<_> = self.catalogue().shelves().map(|(family, _)| family).collect();
        for family in families {
            // One that cannot be removed tells no more than a hash.
            let _ = fs::remove_file(self.fields_path(family));
            self.catalogue().shelf_mut(family).has_fields_file = false;
        }
        let mut catalogue = self.catalogue();
        catalogue.fields_files = 0;
        catalogue.history.clear();
    }

    /// The tokens of the block after `last` in the same segment.
    fn next_tokens(&self, fingerprint: &Fingerprint, last: BlockKey) -> Option<Vec<u32>> {
        let place = {
            let catalogue = self.catalogue();
            catalogue.place(catalogue.shelf(fingerprint)?, &last)?
        };
        let mapping = self.mapping(place.file).ok()?;
        mapping.header.blocks.get(place.index as usize + 1).map(|head| head.tokens.to_vec())
    }

    fn cut(&self, id: FileId, keep: usize) {
        let Ok(mapping) = self.mapping(id) else { return self.discard(id, Farewell::Removed) };
        let header = &mapping.header;
        let kind = Kind { fingerprint: header.fingerprint, layout: header.layout };
        let blocks: Vec<_> = self.blocks_of(id).into_iter().take(keep).collect();
        if let Err(error) = self.write_runs(kind, &blocks, false).1 {
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
        sum
    }
}

impl Removed {
    fn less(self, after: Self) -> Self {
        Self {
            blocks: self.blocks.saturating_sub(after.blocks),
            records: self.records.saturating_sub(after.records),
            bytes: self.bytes.saturating_sub(after.bytes),
        }
    }
}

/// Files that go, and how many of their first blocks stay.
#[derive(Debug, Default)]
struct Doomed {
    segments: BTreeMap<FileId, usize>,
    records: BTreeSet<FileId>,
}

struct Doom<'a> {
    catalogue: &'a Catalogue,
    shelf: &'a Shelf,
    doomed: Doomed,
}

impl<'a> Doom<'a> {
    /// Condemns an end and what goes on from it; `in_run`: also the block after it in its segment.
    fn descendants(&mut self, end: &End, in_run: bool) {
        let mut pending = Vec::new();
        if let Some(branches) = self.shelf.branches(end.last.short()) {
            let tails = branches.tails().filter(|(tail, _)| tail.starts_with(&end.tail));
            self.doomed.records.extend(tails.map(|(_, id)| *id));
            let blocks = branches.blocks().filter(|(head, _)| head.starts_with(&end.tail));
            pending.extend(blocks.map(|(_, id)| (*id, 0)));
        }
        if let Some(place) = self.catalogue.place(self.shelf, &end.last).filter(|_| in_run) {
            pending.push((place.file, place.index as usize + 1));
        }
        while let Some((id, keep)) = pending.pop() {
            let all = self.len(id);
            let until = self.doomed.segments.insert(id, keep).unwrap_or(all);
            let keep = keep.min(until);
            self.doomed.segments.insert(id, keep);
            let branches = |key: &BlockKey| self.shelf.branches(key.short());
            for branches in self.keys(id)[keep..until].iter().filter_map(branches) {
                self.doomed.records.extend(branches.tails().map(|(_, id)| *id));
                pending.extend(branches.blocks().map(|(_, id)| (*id, 0)));
            }
        }
    }

    /// Condemns blocks from `last` backwards until one is needed.
    fn ancestors(&mut self, last: BlockKey) {
        let mut next = last;
        while let Some(place) = self.catalogue.place(self.shelf, &next) {
            let (id, index) = (place.file, place.index as usize);
            if index + 1 < self.kept(id) || self.is_followed(next) {
                return;
            }
            self.doomed.segments.insert(id, index);
            next = match index {
                0 => self.contents(id).map_or(next, Contents::parent),
                index => self.keys(id)[index - 1],
            };
        }
    }

    fn is_followed(&self, key: BlockKey) -> bool {
        let Some(branches) = self.shelf.branches(key.short()) else { return false };
        branches.tails().any(|(_, id)| !self.doomed.records.contains(id))
            || branches.blocks().any(|(_, id)| self.kept(*id) > 0)
    }

    /// How many blocks of a segment stay.
    fn kept(&self, id: FileId) -> usize {
        self.doomed.segments.get(&id).copied().unwrap_or_else(|| self.len(id))
    }

    fn len(&self, id: FileId) -> usize {
        self.keys(id).len()
    }

    fn keys(&self, id: FileId) -> &'a [BlockKey] {
        self.contents(id).map_or(&[], Contents::keys)
    }

    fn contents(&self, id: FileId) -> Option<&'a Contents> {
        self.catalogue.entry(id)?.contents.as_ref()
    }
}
