//! Segments made from segments: small neighbours merged, recomputed blocks put in the place of
//! old ones, removed blocks cut off.
//!
//! A published file never changes, so all of these publish a new file and then unlink the old.
//! A crash in between leaves blocks in two files, which the next start notices and cleans up.

use std::collections::HashSet;
use std::sync::Arc;

use super::catalogue::{Catalogue, FileId};
use super::contents::Contents;
use super::loader::verified;
use super::publish::{Published, Unwritten};
use super::segment::{Header, MOST_BLOCKS};
use super::shared::Shared;
use crate::kv::block::Block;
use crate::kv::key::{BlockKey, Digest, Fingerprint};

/// What all blocks of a file have in common.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kind {
    pub(super) fingerprint: Fingerprint,
    pub(super) layout: Digest,
}

impl Shared {
    /// Writes blocks as few segments as possible: each a run that is not too large, and that goes on
    /// behind the end of no pinned chain.
    /// Stops at the first that cannot be written, and returns the rest's reason with what was.
    pub(super) fn write_runs(
        &self,
        kind: Kind,
        blocks: &[Arc<Block>],
        sync: bool,
    ) -> (Vec<Published>, Result<(), Unwritten>) {
        let mut published = Vec::new();
        let ends = self.catalogue().pinned_lasts();
        for run in runs(blocks, self.tuning.segment, &ends) {
            match self.write_run(kind, run, sync) {
                Ok(segment) => published.push(segment),
                Err(unwritten) => return (published, Err(unwritten)),
            }
        }
        (published, Ok(()))
    }

    pub(super) fn write_run(
        &self,
        kind: Kind,
        run: &[Arc<Block>],
        sync: bool,
    ) -> Result<Published, Unwritten> {
        let borrowed: Vec<_> = run.iter().map(|block| &**block).collect();
        let header = Header::of(kind.fingerprint, kind.layout, &borrowed);
        let reserved = self.reserve(header.file_len)?;
        if !self.has_parent(&kind.fingerprint, run[0].parent) {
            return Err(Unwritten::Orphan);
        }
        self.publish_segment(header, run, sync, reserved)
    }

    /// Whether a block may be written after `parent`: making room may have evicted it.
    fn has_parent(&self, fingerprint: &Fingerprint, parent: BlockKey) -> bool {
        parent == BlockKey::root(fingerprint)
            || self.catalogue().place(fingerprint, &parent).is_some()
    }

    /// The blocks to write so that `blocks` take the place of their namesakes: these, and the
    /// namesakes' neighbours, whose files become superfluous so.
    pub(super) fn replacement(&self, kind: Kind, blocks: Vec<Arc<Block>>) -> Vec<Arc<Block>> {
        let new: HashSet<BlockKey> = blocks.iter().map(|block| block.key).collect();
        let (mut before, mut after) = (Vec::new(), Vec::new());
        for id in self.holders(&kind.fingerprint, &blocks) {
            let mut passed = false;
            for block in self.blocks_of(id) {
                passed |= new.contains(&block.key);
                match (new.contains(&block.key), passed) {
                    (true, _) => {}
                    (false, true) => after.push(block),
                    (false, false) => before.push(block),
                }
            }
        }
        before.extend(blocks);
        before.extend(after);
        before
    }

    /// Rewrites the segment `last` and the small ones before it into one, when there are many.
    pub(super) fn merge(&self, kind: Kind, last: FileId) -> Option<(Published, Vec<FileId>)> {
        let small = {
            let catalogue = self.catalogue();
            small_neighbours(&catalogue, &kind.fingerprint, last, self.tuning.small)
        };
        if small.len() <= self.tuning.neighbours {
            return None;
        }
        let blocks: Vec<_> = small.iter().flat_map(|id| self.blocks_of(*id)).collect();
        let whole =
            runs(&blocks, self.tuning.segment, &self.catalogue().pinned_lasts()).next()?.len()
                == blocks.len();
        // The new file must be on the disk before the old ones go, or a power cut takes both.
        let published = whole.then(|| self.write_run(kind, &blocks, true))?;
        let published =
            published.inspect_err(|error| tracing::debug!(%error, "not merged")).ok()?;
        Some((published, small))
    }

    /// The verified blocks of a segment up to the first that is damaged.
    pub(super) fn blocks_of(&self, id: FileId) -> Vec<Arc<Block>> {
        let mut blocks = Vec::new();
        let read = self.mapping(id).and_then(|mapping| {
            for index in 0..mapping.header.blocks.len() {
                blocks.push(verified(&mapping, index)?);
            }
            Ok(())
        });
        if let Err(fault) = read {
            self.report(id, &fault);
        }
        blocks
    }

    fn holders(&self, fingerprint: &Fingerprint, blocks: &[Arc<Block>]) -> Vec<FileId> {
        let catalogue = self.catalogue();
        let places = blocks.iter().filter_map(|block| catalogue.place(fingerprint, &block.key));
        let mut files: Vec<_> = places.map(|place| place.file).collect();
        files.dedup();
        files
    }
}

/// Cuts blocks into runs that follow one another, are at most `most` bytes long, and hold none of
/// `ends` but as their last.
fn runs<'a>(
    blocks: &'a [Arc<Block>],
    most: u64,
    ends: &HashSet<BlockKey>,
) -> impl Iterator<Item = &'a [Arc<Block>]> {
    let mut bytes = 0;
    let mut count = 0;
    blocks.chunk_by(move |a, b| {
        let follows = a.key == b.parent && !ends.contains(&a.key);
        (bytes, count) = if follows { (bytes + a.bytes() as u64, count + 1) } else { (0, 0) };
        let fits = bytes + b.bytes() as u64 <= most && count < MOST_BLOCKS as usize;
        if !fits {
            (bytes, count) = (0, 0);
        }
        follows && fits
    })
}

/// Small segments of one chain, ending with `last`, each of which ends where the next begins.
fn small_neighbours(
    catalogue: &Catalogue,
    fingerprint: &Fingerprint,
    last: FileId,
    small: u64,
) -> Vec<FileId> {
    let ends = catalogue.pinned_lasts();
    let is_small = |id: FileId| catalogue.entry(id).is_some_and(|entry| entry.bytes < small);
    let before = |id: FileId| {
        let parent = catalogue.entry(id)?.contents.as_ref().map(Contents::parent)?;
        let parent = Some(parent).filter(|parent| !ends.contains(parent))?;
        let place = catalogue.place(fingerprint, &parent)?;
        (catalogue.is_last(place) && is_small(place.file)).then_some(place.file)
    };
    let first = Some(last).filter(|id| is_small(*id));
    let mut neighbours: Vec<_> = std::iter::successors(first, |id| before(*id)).collect();
    neighbours.reverse();
    neighbours
}
