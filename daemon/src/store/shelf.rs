//! One family's files, found by every name that someone may ask with.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};

use super::catalogue::FileId;
use super::contents::Contents;
use super::glimpse::nearness;
use super::name::Name;
use crate::kv::key::{BlockKey, BlockTokens, Fields, Fingerprint, ShortKey, common};
use crate::kv::layout::BLOCK;

/// The files of one family.
#[derive(Debug, Default)]
pub(super) struct Shelf {
    /// Known once a header was read or the family declared.
    pub(super) fingerprint: Option<Fingerprint>,
    /// Known once the digest file was read or the family declared.
    pub(super) fields: Option<Fields>,
    /// Whether the digest file exists.
    pub(super) has_fields_file: bool,
    names: HashMap<Name, FileId>,
    /// Segments by their first block.
    starts: HashMap<ShortKey, Vec<FileId>>,
    /// Files by the block that they follow.
    branches: HashMap<ShortKey, Branches>,
    /// Blocks of segments whose header was read.
    blocks: HashMap<ShortKey, Place>,
}

/// Where a block lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) file: FileId,
    pub(super) index: u32,
    /// Blocks of the file.
    run: u32,
}

/// Which of two files a block is looked for in when both hold it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Precedence {
    /// The new one: it was written to replace the other.
    Newest,
    /// The one with more blocks: it was merged from the other, and a crash left both.
    Longest,
}

/// What follows one block, in the order of tokens, so that the nearest neighbours of a prompt in
/// that order are the files with most tokens in common.
#[derive(Debug, Default)]
pub(super) struct Branches {
    unread: BTreeSet<FileId>,
    blocks: BTreeSet<(BlockTokens, FileId)>,
    tails: BTreeSet<(Vec<u32>, FileId)>,
}

impl Shelf {
    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    pub(super) fn files(&self) -> impl Iterator<Item = FileId> {
        self.names.values().copied()
    }

    pub(super) fn by_name(&self, name: &Name) -> Option<FileId> {
        self.names.get(name).copied()
    }

    /// Segments whose names begin with the block `first`.
    pub(super) fn starts(&self, first: ShortKey) -> &[FileId] {
        self.starts.get(&first).map_or(&[], Vec::as_slice)
    }

    pub(super) fn place(&self, key: ShortKey) -> Option<Place> {
        self.blocks.get(&key).copied()
    }

    pub(super) fn branches(&self, parent: ShortKey) -> Option<&Branches> {
        self.branches.get(&parent)
    }

    /// Files a name whose contents are not known yet.
    pub(super) fn add(&mut self, name: Name, id: FileId) {
        self.names.insert(name, id);
        if let Name::Segment { first, .. } = name {
            self.starts.entry(first).or_default().push(id);
        }
        self.branches.entry(name.parent()).or_default().unread.insert(id);
    }

    /// Files what a file holds. Returns the other files that hold some of the same blocks.
    pub(super) fn learn(
        &mut self,
        id: FileId,
        contents: &Contents,
        precedence: Precedence,
    ) -> BTreeSet<FileId> {
        let branches = self.branches.entry(contents.parent().short()).or_default();
        branches.learn(id, contents);
        let run = contents.keys().len() as u32;
        let mut others = BTreeSet::new();
        for (key, index) in contents.keys().iter().zip(0..) {
            let place = Place { file: id, index, run };
            let kept = self.blocks.entry(key.short()).or_insert(place);
            if kept.file != id {
                others.insert(kept.file);
                if precedence == Precedence::Newest || run > kept.run {
                    *kept = place;
                }
            }
        }
        others
    }

    /// Takes a file away.
    pub(super) fn remove(&mut self, name: Name, id: FileId, contents: Option<&Contents>) {
        self.names.remove(&name);
        if let Name::Segment { first, .. } = name
            && let Entry::Occupied(mut starts) = self.starts.entry(first)
        {
            starts.get_mut().retain(|other| *other != id);
            if starts.get().is_empty() {
                starts.remove();
            }
        }
        if let Entry::Occupied(mut branches) = self.branches.entry(name.parent()) {
            branches.get_mut().remove(id, contents);
            if branches.get().is_empty() {
                branches.remove();
            }
        }
        for key in contents.map_or(&[][..], Contents::keys) {
            if self.place(key.short()).is_some_and(|place| place.file == id) {
                self.blocks.remove(&key.short());
            }
        }
    }

    /// Whether `id` is where its blocks are looked for; `false` when later files hold all of them.
    pub(super) fn uses(&self, id: FileId, keys: &[BlockKey]) -> bool {
        keys.iter().any(|key| self.place(key.short()).is_some_and(|place| place.file == id))
    }

    /// Whether something follows one of `keys`.
    pub(super) fn has_children(&self, keys: &[BlockKey]) -> bool {
        keys.iter().any(|key| self.branches.contains_key(&key.short()))
    }
}

impl Branches {
    pub(super) fn unread(&self) -> impl Iterator<Item = FileId> {
        self.unread.iter().copied()
    }

    pub(super) fn blocks(&self) -> impl Iterator<Item = &(BlockTokens, FileId)> {
        self.blocks.iter()
    }

    pub(super) fn tails(&self) -> impl Iterator<Item = &(Vec<u32>, FileId)> {
        self.tails.iter()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.unread.is_empty() && self.blocks.is_empty() && self.tails.is_empty()
    }

    /// The segment whose first block has most leading tokens in common with `rest`, and how many.
    pub(super) fn nearest_block(&self, rest: &[u32]) -> Option<(usize, FileId)> {
        let mut probe = [0; BLOCK];
        let len = rest.len().min(BLOCK);
        probe[..len].copy_from_slice(&rest[..len]);
        nearest(&self.blocks, &probe, rest)
    }

    /// The record whose tail has most leading tokens in common with `rest`, and how many.
    pub(super) fn nearest_tail(&self, rest: &[u32]) -> Option<(usize, FileId)> {
        nearest(&self.tails, &rest[..rest.len().min(BLOCK)].to_vec(), rest)
    }

    /// The ids of the block or tail that goes on most like `rest`, even if nothing of it does.
    pub(super) fn nearest(&self, rest: &[u32]) -> Option<Vec<u32>> {
        let rest = &rest[..rest.len().min(BLOCK)];
        let mut probe = [0; BLOCK];
        probe[..rest.len()].copy_from_slice(rest);
        let blocks = neighbours(&self.blocks, &probe).map(|(block, _)| block.to_vec());
        let tails = neighbours(&self.tails, &rest.to_vec()).map(|(tail, _)| tail.clone());
        blocks.chain(tails).chain(self.covered(rest)).max_by_key(|ids| nearness(ids, rest))
    }

    /// The longest tail that `rest` begins with.
    fn covered(&self, rest: &[u32]) -> Option<Vec<u32>> {
        let is_there = |tail: &&[u32]| {
            let at = (tail.to_vec(), FileId::FIRST);
            self.tails.range(at..).next().is_some_and(|(found, _)| found == tail)
        };
        (0..=rest.len()).rev().map(|len| &rest[..len]).find(is_there).map(<[u32]>::to_vec)
    }

    fn learn(&mut self, id: FileId, contents: &Contents) {
        self.unread.remove(&id);
        match contents {
            Contents::Segment(run) => _ = self.blocks.insert((run.first, id)),
            Contents::Record(head) => _ = self.tails.insert((head.tail.clone(), id)),
        }
    }

    fn remove(&mut self, id: FileId, contents: Option<&Contents>) {
        match contents {
            Some(Contents::Segment(run)) => _ = self.blocks.remove(&(run.first, id)),
            Some(Contents::Record(head)) => _ = self.tails.remove(&(head.tail.clone(), id)),
            None => _ = self.unread.remove(&id),
        }
    }
}

fn nearest<T: AsRef<[u32]> + Ord + Clone>(
    sorted: &BTreeSet<(T, FileId)>,
    probe: &T,
    rest: &[u32],
) -> Option<(usize, FileId)> {
    let measured = neighbours(sorted, probe).map(|(of, id)| (common(of.as_ref(), rest), *id));
    measured.max_by_key(|(common, _)| *common).filter(|(common, _)| *common > 0)
}

/// What stands before and behind `probe`.
fn neighbours<'a, T: Ord + Clone>(
    sorted: &'a BTreeSet<(T, FileId)>,
    probe: &T,
) -> impl Iterator<Item = &'a (T, FileId)> + use<'a, T> {
    let at = (probe.clone(), FileId::FIRST);
    let found = [sorted.range(..&at).next_back(), sorted.range(&at..).next()];
    found.into_iter().flatten()
}
