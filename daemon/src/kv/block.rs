//! Blocks: 32 tokens of a chain, all layers, immutable once sealed.

use std::ops::Range;
use std::sync::Arc;

use super::key::{BlockKey, BlockTokens};
use crate::sys::memory::Slot;
use crate::sys::mmap::Map;

/// The bytes of one window class of one block.
#[derive(Debug)]
pub enum Part {
    /// In a slab of this process.
    Heap(Slot, usize),
    /// In a mapped, verified segment.
    Mapped(Arc<Map>, Range<usize>),
}

impl Part {
    /// The bytes, arranged as the chain's layout says; 64-byte aligned.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Heap(slot, len) => &slot.bytes()[..*len],
            Self::Mapped(map, range) => &map[range.clone()],
        }
    }

    /// Bytes that this part has in a mapped file.
    pub fn mapped_bytes(&self) -> usize {
        match self {
            Self::Heap(..) => 0,
            Self::Mapped(_, range) => range.len(),
        }
    }

    /// Bytes that this part occupies on the heap.
    pub fn heap_bytes(&self) -> usize {
        match self {
            Self::Heap(slot, _) => slot.bytes().len(),
            Self::Mapped(..) => 0,
        }
    }
}

/// A sealed block.
#[derive(Debug)]
pub struct Block {
    /// The block's name.
    pub key: BlockKey,
    /// The name of the block before it; the chain's root for the first.
    pub parent: BlockKey,
    /// The block's 32 tokens, compared with the request's on every hit.
    pub tokens: BlockTokens,
    /// One part for each window class of the layout.
    pub parts: Box<[Arc<Part>]>,
}

impl Block {
    /// Bytes of all parts.
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.bytes().len()).sum()
    }

    /// Bytes of the parts that are mapped from a file.
    pub fn mapped_bytes(&self) -> usize {
        self.parts.iter().map(|part| part.mapped_bytes()).sum()
    }

    /// The bytes of each part.
    pub(super) fn part_bytes(&self) -> Vec<&[u8]> {
        self.parts.iter().map(|part| part.bytes()).collect()
    }

    /// Bytes of the parts that live on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.parts.iter().map(|part| part.heap_bytes()).sum()
    }
}
