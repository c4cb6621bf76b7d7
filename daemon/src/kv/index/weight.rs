//! What blocks weigh: bytes on the heap, and the segments that are mapped for them.

use std::collections::HashMap;
use std::sync::Arc;

use crate::kv::block::{Block, Part};

/// The weight of some blocks.
#[derive(Debug, Default)]
pub(super) struct Weight {
    /// Heap bytes.
    pub(super) heap: usize,
    /// Their parts in each mapping, by its address: only compared, never followed.
    mappings: HashMap<usize, usize>,
}

impl Weight {
    /// Mappings that hold a part of a block.
    pub(super) fn mappings(&self) -> usize {
        self.mappings.len()
    }

    /// Adds a block.
    pub(super) fn put(&mut self, block: &Block) {
        self.heap += block.heap_bytes();
        for address in mappings(block) {
            *self.mappings.entry(address).or_default() += 1;
        }
    }

    /// Takes a block away that was put.
    pub(super) fn take(&mut self, block: &Block) {
        self.heap -= block.heap_bytes();
        for address in mappings(block) {
            let parts = self.mappings.entry(address).or_default();
            *parts -= 1;
            if *parts == 0 {
                self.mappings.remove(&address);
            }
        }
    }

    /// What `blocks` would add: heap bytes, and mappings.
    pub(super) fn growth<'a>(&self, blocks: impl Iterator<Item = &'a Arc<Block>>) -> Self {
        let mut growth = Self::default();
        blocks.for_each(|block| growth.put(block));
        growth.mappings.retain(|address, _| !self.mappings.contains_key(address));
        growth
    }
}

fn mappings(block: &Block) -> impl Iterator<Item = usize> {
    block.parts.iter().filter_map(|part| match &**part {
        Part::Mapped(map, _) => Some(Arc::as_ptr(map).addr()),
        Part::Heap(..) => None,
    })
}
