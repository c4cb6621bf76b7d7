//! Anonymous memory, 64-byte aligned and in huge pages where the system gives them: slabs of equal
//! slots, and pieces of any size.
//!
//! KV blocks of one layout all have one size, are written in place for a while and then shared
//! read-only, so a slab hands out [`Slot`]s: exclusively owned byte ranges that give themselves
//! back when dropped, on whatever thread that happens.
//! A chunk holds 64 slots, so one atomic word is its free list and no lock is needed.
//! Memory is touched lazily by the system, zeroed before reuse, and a chunk without slots in use
//! is unmapped by [`Slab::trim`].
//!
//! Packed weights are of many sizes and go together, so an [`Arena`] lays [`Piece`]s one behind the
//! other.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};

use super::huge;

const SLOTS: usize = 64;
const ALIGN: usize = 64;

/// Hands out slots of one size. Owned by one thread; its slots may travel.
#[derive(Debug)]
pub struct Slab {
    slot: usize,
    chunks: Vec<Arc<Chunk>>,
}

impl Slab {
    /// A slab of slots of at least `bytes` bytes. Allocates nothing yet.
    pub fn new(bytes: usize) -> Self {
        Self { slot: bytes.next_multiple_of(ALIGN).max(ALIGN), chunks: Vec::new() }
    }

    /// Takes a zeroed slot.
    ///
    /// # Errors
    /// When the system refuses memory for another chunk.
    pub fn take(&mut self) -> io::Result<Slot> {
        if let Some(slot) = self.chunks.iter().find_map(|chunk| chunk.take(self.slot)) {
            return Ok(slot);
        }
        let chunk = Arc::new(Chunk::map(self.slot)?);
        self.chunks.push(Arc::clone(&chunk));
        chunk.take(self.slot).ok_or_else(|| io::Error::other("a fresh chunk has no free slot"))
    }

    #[cfg(test)]
    fn used(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.in_use() * self.slot).sum()
    }

    /// Gives chunks without a slot in use back to the system.
    pub fn trim(&mut self) {
        self.chunks.retain(|chunk| chunk.in_use() > 0);
    }
}

/// 64 slots in one anonymous mapping.
struct Chunk {
    memory: MmapRaw,
    /// Bit i set: slot i is free.
    free: AtomicU64,
    /// Bit i set: slot i was handed out before and may hold old bytes.
    dirty: AtomicU64,
}

impl Chunk {
    fn map(slot: usize) -> io::Result<Self> {
        let memory = anonymous(slot * SLOTS)?;
        Ok(Self { memory, free: AtomicU64::new(u64::MAX), dirty: AtomicU64::new(0) })
    }

    fn in_use(&self) -> usize {
        self.free.load(Ordering::Acquire).count_zeros() as usize
    }

    fn take(self: &Arc<Self>, bytes: usize) -> Option<Slot> {
        let free = self.free.load(Ordering::Acquire);
        if free == 0 {
            return None;
        }
        let index = free.trailing_zeros() as usize;
        let bit = 1 << index;
        // Only the slab's owner takes, others only give back: the bit cannot be lost in between.
        self.free.fetch_and(!bit, Ordering::AcqRel);
        let mut slot = Slot { chunk: Arc::clone(self), index, bytes };
        if self.dirty.fetch_or(bit, Ordering::Relaxed) & bit != 0 {
            slot.bytes_mut().fill(0);
        }
        Some(slot)
    }
}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chunk({} of {SLOTS} in use)", self.in_use())
    }
}

/// Exclusive ownership of one slot; dropping it gives the slot back.
#[derive(Debug)]
pub struct Slot {
    chunk: Arc<Chunk>,
    index: usize,
    bytes: usize,
}

impl Slot {
    /// The slot's bytes, 64-byte aligned.
    pub fn bytes(&self) -> &[u8] {
        let start = self.index * self.bytes;
        // SAFETY: the range lies inside the chunk's mapping, which lives as long as `self.chunk`;
        // a set bit is handed out once, so this slot is the range's only owner.
        unsafe { std::slice::from_raw_parts(self.chunk.memory.as_ptr().add(start), self.bytes) }
    }

    /// The slot's bytes, 64-byte aligned, for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let start = self.index * self.bytes;
        let base = self.chunk.memory.as_mut_ptr();
        // SAFETY: as in `bytes`; `&mut self` makes the only owner exclusive, and the mapping is
        // private writable memory that nothing else refers to as a whole.
        unsafe { std::slice::from_raw_parts_mut(base.add(start), self.bytes) }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.chunk.free.fetch_or(1 << self.index, Ordering::AcqRel);
    }
}

fn anonymous(bytes: usize) -> io::Result<MmapRaw> {
    let memory = MmapOptions::new().len(bytes).map_anon()?;
    huge::advise(&memory);
    Ok(memory.into())
}

/// Bytes that an arena asks the system for at a time: nothing of them is touched before it is used.
const REGION: usize = 32 << 20;

/// Lays pieces one behind the other. Owned by one thread; its pieces may travel.
#[derive(Debug, Default)]
pub struct Arena {
    /// What pieces are cut from, and how much of it is.
    region: RefCell<Option<(Arc<MmapRaw>, usize)>>,
}

impl Arena {
    /// Takes a zeroed piece of `bytes` bytes.
    ///
    /// # Errors
    /// When the system refuses memory.
    pub fn take(&self, bytes: usize) -> io::Result<Piece> {
        if bytes >= REGION {
            let region = Arc::new(anonymous(bytes)?);
            return Ok(Piece { region, start: 0, bytes });
        }
        let mut current = self.region.borrow_mut();
        let fits = current.take().filter(|(region, used)| used + bytes <= region.len());
        let (region, used) = match fits {
            Some(fits) => fits,
            None => (Arc::new(anonymous(REGION)?), 0),
        };
        let piece = Piece { region: Arc::clone(&region), start: used, bytes };
        *current = Some((region, (used + bytes).next_multiple_of(ALIGN)));
        Ok(piece)
    }
}

/// Exclusive ownership of a part of a region, which the system has back when its last piece is gone.
#[derive(Debug)]
pub struct Piece {
    region: Arc<MmapRaw>,
    start: usize,
    bytes: usize,
}

impl AsRef<[u8]> for Piece {
    /// The piece's bytes, 64-byte aligned.
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the range lies inside the region, which lives as long as `self.region`; an arena
        // gives no range out twice, so this piece is its only owner.
        unsafe { std::slice::from_raw_parts(self.region.as_ptr().add(self.start), self.bytes) }
    }
}

impl AsMut<[u8]> for Piece {
    /// The piece's bytes, 64-byte aligned, for writing.
    fn as_mut(&mut self) -> &mut [u8] {
        let base = self.region.as_mut_ptr();
        // SAFETY: as in `as_ref`; `&mut self` makes the only owner exclusive, and the mapping is
        // private writable memory that nothing else refers to as a whole.
        unsafe { std::slice::from_raw_parts_mut(base.add(self.start), self.bytes) }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_reused_slot_is_zeroed() {
        let mut slab = Slab::new(100);
        let mut slot = slab.take().unwrap();
        slot.bytes_mut().fill(7);
        drop(slot);
        assert!(slab.take().unwrap().bytes().iter().all(|byte| *byte == 0));
    }

    #[test]
    fn slots_do_not_overlap_and_are_aligned() {
        let mut slab = Slab::new(65);
        let mut slots: Vec<_> = (0..130).map(|_| slab.take().unwrap()).collect();
        for (i, slot) in slots.iter_mut().enumerate() {
            slot.bytes_mut().fill(u8::try_from(i).unwrap());
        }
        for (i, slot) in slots.iter().enumerate() {
            assert_eq!(slot.bytes().as_ptr() as usize % ALIGN, 0);
            assert!(slot.bytes().iter().all(|byte| usize::from(*byte) == i));
        }
        assert_eq!(slab.used(), 130 * 128);
    }

    #[test]
    fn a_chunk_without_slots_in_use_is_given_back() {
        let mut slab = Slab::new(64);
        let slots: Vec<_> = (0..65).map(|_| slab.take().unwrap()).collect();
        assert_eq!(slab.chunks.len(), 2);
        drop(slots);
        slab.trim();
        assert_eq!((slab.chunks.len(), slab.used()), (0, 0));
    }

    #[test]
    fn slots_given_back_on_other_threads_are_found_again() {
        let mut slab = Slab::new(64);
        let slots: Vec<_> = (0..64).map(|_| slab.take().unwrap()).collect();
        std::thread::spawn(move || drop(slots)).join().unwrap();
        assert_eq!(slab.used(), 0);
        let _again: Vec<_> = (0..64).map(|_| slab.take().unwrap()).collect();
        assert_eq!(slab.chunks.len(), 1);
    }

    #[test]
    fn pieces_are_zeroed_aligned_and_apart_and_may_be_larger_than_a_region() {
        let arena = Arena::default();
        let sizes = [1, 0, 65, 4096, 20 << 20, 20 << 20, REGION + 1, 7];
        let mut pieces: Vec<_> = sizes.map(|bytes| arena.take(bytes).unwrap()).into();
        drop(arena);
        for (piece, bytes) in pieces.iter_mut().zip(sizes) {
            assert_eq!(
                (piece.as_ref().len(), piece.as_ref().as_ptr() as usize % ALIGN),
                (bytes, 0)
            );
            assert!(piece.as_ref().iter().all(|byte| *byte == 0));
            piece.as_mut().fill(1);
        }
        assert!(pieces.iter().all(|piece| piece.as_ref().iter().all(|byte| *byte == 1)));
    }
}
