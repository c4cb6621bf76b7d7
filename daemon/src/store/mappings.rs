//! The segments that are mapped, each once per process and never more than a given number.
//!
//! A mapping lives as long as someone holds it. The store keeps the most recently used ones; the
//! blocks that it hands out keep theirs. Closing a mapping that is in use elsewhere would free
//! nothing, so only unused ones make room. When there are none, those who hold the oldest are asked
//! to let go, and if they do not, the newcomer is refused.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use lru::LruCache;

use super::catalogue::FileId;
use super::segment::Header;
use crate::sys::mmap::Map;

/// A mapped segment.
#[derive(Debug)]
pub(super) struct Mapping {
    pub(super) map: Arc<Map>,
    pub(super) header: Header,
    /// Blocks whose checksums were compared since the file was mapped.
    verified: Box<[AtomicBool]>,
}

impl Mapping {
    pub(super) fn new(map: Arc<Map>, header: Header) -> Self {
        let verified = header.blocks.iter().map(|_| AtomicBool::new(false)).collect();
        Self { map, header, verified }
    }

    pub(super) fn is_verified(&self, block: usize) -> bool {
        self.verified[block].load(Ordering::Acquire)
    }

    pub(super) fn set_verified(&self, block: usize) {
        self.verified[block].store(true, Ordering::Release);
    }
}

/// All mappings of the store.
#[derive(Debug)]
pub(super) struct Mappings {
    limit: usize,
    kept: LruCache<FileId, Arc<Mapping>>,
    /// Every mapping that may still be alive.
    live: HashMap<FileId, Weak<Map>>,
    /// Mappings of files that were unlinked, and their bytes, which the disk still holds.
    unlinked: Vec<(Weak<Map>, u64)>,
}

impl Mappings {
    pub(super) fn new(limit: usize) -> Self {
        let (live, unlinked) = (HashMap::new(), Vec::new());
        Self { limit, kept: LruCache::unbounded(), live, unlinked }
    }

    pub(super) fn find(&mut self, id: FileId) -> Option<Arc<Mapping>> {
        self.kept.get(&id).cloned()
    }

    /// A mapping that is kept, not counted as used.
    pub(super) fn peek(&self, id: FileId) -> Option<&Arc<Mapping>> {
        self.kept.peek(&id)
    }

    /// The map of a segment that only blocks still hold.
    pub(super) fn find_map(&self, id: FileId) -> Option<Arc<Map>> {
        self.live.get(&id)?.upgrade()
    }

    /// Keeps a mapping. `false` when there is no room and all others are in use.
    pub(super) fn keep(&mut self, id: FileId, mapping: Arc<Mapping>) -> bool {
        let known = self.find_map(id).is_some_and(|map| Arc::ptr_eq(&map, &mapping.map));
        let kept = known || self.make_room();
        if kept {
            self.live.insert(id, Arc::downgrade(&mapping.map));
            self.kept.put(id, mapping);
        }
        kept
    }

    /// The file is gone. Its bytes count until nobody maps it.
    pub(super) fn unlink(&mut self, id: FileId, bytes: u64) {
        self.kept.pop(&id);
        if let Some(map) = self.live.remove(&id).filter(|map| map.strong_count() > 0) {
            self.unlinked.push((map, bytes));
        }
    }

    /// Whether anyone but the store itself uses the mapping.
    pub(super) fn in_use(&self, id: FileId) -> bool {
        match self.kept.peek(&id) {
            Some(mapping) => used_elsewhere(mapping),
            None => self.live.get(&id).is_some_and(|map| map.strong_count() > 0),
        }
    }

    /// The mappings, least recently used first.
    pub(super) fn oldest(&self) -> impl Iterator<Item = FileId> {
        self.kept.iter().rev().map(|(id, _)| *id)
    }

    /// Mappings alive, and bytes of files that are unlinked and still mapped.
    pub(super) fn count(&mut self) -> (usize, u64) {
        self.live.retain(|_, map| map.strong_count() > 0);
        self.unlinked.retain(|(map, _)| map.strong_count() > 0);
        let bytes = self.unlinked.iter().map(|(_, bytes)| bytes).sum();
        (self.live.len() + self.unlinked.len(), bytes)
    }

    /// Bytes of everything that is mapped.
    pub(super) fn bytes(&self) -> u64 {
        let unlinked = self.unlinked.iter().map(|(map, _)| map);
        let maps = self.live.values().chain(unlinked).filter_map(Weak::upgrade);
        maps.map(|map| map.len() as u64).sum()
    }

    fn make_room(&mut self) -> bool {
        if self.live.len() + self.unlinked.len() < self.limit {
            return true;
        }
        let (mut alive, _) = self.count();
        while alive >= self.limit {
            let unused = self.kept.iter().rev().find(|(_, mapping)| !used_elsewhere(mapping));
            let Some(id) = unused.map(|(id, _)| *id) else { return false };
            self.kept.pop(&id);
            self.live.remove(&id);
            alive -= 1;
        }
        true
    }
}

fn used_elsewhere(mapping: &Arc<Mapping>) -> bool {
    Arc::strong_count(mapping) > 1 || Arc::strong_count(&mapping.map) > 1
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use super::*;
    use crate::kv::key::{Digest, Fingerprint};

    fn mapping(file: &File) -> Arc<Mapping> {
        let (fingerprint, layout) = (Fingerprint([0; 32]), Digest::default());
        let header = Header { fingerprint, layout, blocks: Vec::new(), file_len: 4 };
        Arc::new(Mapping::new(Arc::new(Map::open(file, 4).unwrap()), header))
    }

    fn file() -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"data").unwrap();
        file
    }

    #[test]
    fn the_least_recently_used_mapping_makes_room() {
        let (file, mut mappings) = (file(), Mappings::new(2));
        for id in 0..2 {
            assert!(mappings.keep(FileId(id), mapping(&file)));
        }
        assert!(mappings.find(FileId(0)).is_some());
        assert!(mappings.keep(FileId(2), mapping(&file)));
        assert!(mappings.find(FileId(1)).is_none());
        assert_eq!(mappings.count().0, 2);
    }

    #[test]
    fn a_mapping_in_use_is_not_closed_and_a_newcomer_is_refused_when_all_are() {
        let (file, mut mappings) = (file(), Mappings::new(1));
        assert!(mappings.keep(FileId(0), mapping(&file)));
        let user = Arc::clone(&mappings.find(FileId(0)).unwrap().map);
        assert!(mappings.in_use(FileId(0)));
        assert!(!mappings.keep(FileId(1), mapping(&file)));
        drop(user);
        assert!(!mappings.in_use(FileId(0)));
        assert!(mappings.keep(FileId(1), mapping(&file)));
    }

    #[test]
    fn an_unlinked_file_counts_until_nobody_maps_it() {
        let (file, mut mappings) = (file(), Mappings::new(1));
        assert!(mappings.keep(FileId(0), mapping(&file)));
        let user = Arc::clone(&mappings.find(FileId(0)).unwrap().map);
        mappings.unlink(FileId(0), 4);
        assert_eq!((mappings.count(), mappings.bytes()), ((1, 4), 4));
        assert!(!mappings.keep(FileId(1), mapping(&file)));
        drop(user);
        assert_eq!(mappings.count(), (0, 0));
    }
}
