//! What is on a device: runs by the blocks in them, under a budget of bytes.
//!
//! A run that some sequence reads cannot go; among the others the one that was used least recently
//! goes first. Forgetting costs an upload and nothing else.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use candle_core::Device;
use lru::LruCache;

use super::DeviceError;
use super::run::{Run, RunId};
use crate::kv::key::BlockKey;
use crate::kv::layout::Layout;

/// A handle of the tier of one model; its thread's alone.
#[derive(Clone, Debug)]
pub struct Tier(Rc<Shared>);

#[derive(Debug)]
struct Shared {
    device: Device,
    budget: usize,
    used: Rc<Cell<usize>>,
    /// Rows that were uploaded, and downloaded.
    moved: Cell<[u64; 2]>,
    kept: RefCell<Kept>,
}

#[derive(Debug)]
struct Kept {
    runs: LruCache<RunId, Entry>,
    /// Where each block begins.
    blocks: HashMap<BlockKey, (RunId, usize)>,
    next: u64,
}

#[derive(Debug)]
struct Entry {
    run: Rc<Run>,
    keys: Vec<BlockKey>,
}

/// What is on a device, and what crossed between it and the host so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of all runs: those that are kept and those that sequences read.
    pub bytes: u64,
    /// Rows that the host had.
    pub uploaded: u64,
    /// Rows that the device computed.
    pub downloaded: u64,
}

impl Usage {
    /// The usage of two tiers.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            bytes: self.bytes + other.bytes,
            uploaded: self.uploaded + other.uploaded,
            downloaded: self.downloaded + other.downloaded,
        }
    }
}

impl Tier {
    /// An empty tier of at most `budget` bytes on `device`.
    pub fn new(device: Device, budget: usize) -> Self {
        let kept = Kept { runs: LruCache::unbounded(), blocks: HashMap::new(), next: 0 };
        Self(Rc::new(Shared {
            device,
            budget,
            used: Rc::default(),
            moved: Cell::default(),
            kept: RefCell::new(kept),
        }))
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// What it holds and what was moved.
    pub fn usage(&self) -> Usage {
        let [uploaded, downloaded] = self.0.moved.get();
        Usage { bytes: self.0.used.get() as u64, uploaded, downloaded }
    }

    /// Counts rows that the host had.
    pub(super) fn count_uploaded(&self, rows: usize) {
        let [uploaded, downloaded] = self.0.moved.get();
        self.0.moved.set([uploaded + rows as u64, downloaded]);
    }

    /// Counts rows that the device computed.
    pub fn count_downloaded(&self, rows: usize) {
        let [uploaded, downloaded] = self.0.moved.get();
        self.0.moved.set([uploaded, downloaded + rows as u64]);
    }

    /// Room for `rows` rows, for which runs that nobody reads may have to go.
    ///
    /// # Errors
    /// When running sequences leave no room, or the device refuses memory.
    pub(super) fn room(&self, layout: &Layout, rows: usize) -> Result<Rc<Run>, DeviceError> {
        let needed = layout.token_bytes() * rows;
        let Shared { device, budget, used, kept, .. } = &*self.0;
        let mut kept = kept.borrow_mut();
        while used.get() + needed > *budget {
            if !kept.evict() {
                return Err(DeviceError::Full { needed, used: used.get(), budget: *budget });
            }
        }
        kept.next += 1;
        Ok(Rc::new(Run::new(RunId(kept.next), layout, rows, device, used)?))
    }

    /// The run that holds a block, and the block's first row in it.
    pub(super) fn find(&self, key: &BlockKey) -> Option<(Rc<Run>, usize)> {
        let kept = self.0.kept.borrow();
        let (id, row) = kept.blocks.get(key)?;
        kept.runs.peek(id).map(|entry| (Rc::clone(&entry.run), *row))
    }

    /// Keeps a block for others, in the place of one of that name.
    pub(super) fn keep(&self, key: BlockKey, run: &Rc<Run>, row: usize) {
        let mut kept = self.0.kept.borrow_mut();
        kept.blocks.insert(key, (run.id, row));
        let entry = || Entry { run: Rc::clone(run), keys: Vec::new() };
        kept.runs.get_or_insert_mut(run.id, entry).keys.push(key);
    }

    /// Notes that a run is used.
    pub(super) fn touch(&self, run: &Run) {
        self.0.kept.borrow_mut().runs.promote(&run.id);
    }

    /// Keeps nothing for anyone any more; sequences go on reading what they read.
    pub fn clear(&self) {
        let mut kept = self.0.kept.borrow_mut();
        kept.runs.clear();
        kept.blocks.clear();
    }
}

impl Kept {
    /// Forgets the run that was used least recently and that no sequence reads. Whether there was
    /// one.
    fn evict(&mut self) -> bool {
        let mut oldest_first = self.runs.iter().rev();
        let unread = oldest_first.find(|(_, entry)| Rc::strong_count(&entry.run) == 1);
        let Some(id) = unread.map(|(id, _)| *id) else { return false };
        let keys = self.runs.pop(&id).map(|entry| entry.keys).unwrap_or_default();
        for key in keys {
            // One that was kept again is in a later run.
            if self.blocks.get(&key).is_some_and(|(run, _)| *run == id) {
                self.blocks.remove(&key);
            }
        }
        true
    }
}
