//! A sequence's cache: shared sealed blocks, then open blocks of its own.
//!
//! ```text
//! positions   0        32       64       96   len
//!             | sealed | sealed | open   | open..    |
//!               Arc      Arc      owned    owned
//! ```
//!
//! New rows are written in place into open blocks; nothing is ever concatenated or moved.
//! A full open block is sealed by giving it a name: under plain codecs its bytes are final
//! already.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use tinygpt_kernels::attend;

use super::block::{Block, Part};
use super::device::Resident;
use super::key::{BlockKey, BlockTokens};
use super::layout::{BLOCK, Layout};
use crate::sys::memory::{Slab, Slot};

/// Where the open blocks of one layout come from: a slab for each window class.
#[derive(Debug)]
pub struct Slabs(Vec<Slab>);

impl Slabs {
    /// Empty slabs for blocks of `layout`.
    pub fn new(layout: &Layout) -> Self {
        Self(layout.parts().iter().map(|bytes| Slab::new(*bytes)).collect())
    }

    /// Gives memory without a block in use back to the system.
    pub fn trim(&mut self) {
        self.0.iter_mut().for_each(Slab::trim);
    }

    fn take(&mut self) -> io::Result<Box<[Slot]>> {
        self.0.iter_mut().map(Slab::take).collect()
    }
}

/// The cache of one sequence.
#[derive(Debug)]
pub struct KvSeq {
    layout: Arc<Layout>,
    sealed: Vec<Arc<Block>>,
    open: VecDeque<Box<[Slot]>>,
    len: usize,
    saturated: u64,
    /// Its rows on a device, if it runs on one.
    pub(super) resident: Option<Resident>,
}

impl KvSeq {
    /// An empty cache.
    pub fn new(layout: Arc<Layout>) -> Self {
        let (sealed, open) = (Vec::new(), VecDeque::new());
        Self { layout, sealed, open, len: 0, saturated: 0, resident: None }
    }

    /// Tokens whose rows are there in every layer.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The arrangement of its blocks.
    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// The sealed blocks, in order.
    pub fn sealed(&self) -> &[Arc<Block>] {
        &self.sealed
    }

    /// Tokens in open blocks.
    pub fn tail_len(&self) -> usize {
        self.len - self.sealed.len() * BLOCK
    }

    /// Goes on after a sealed block that someone else computed.
    ///
    /// # Panics
    /// When open rows exist: they would be skipped.
    pub fn attach(&mut self, block: Arc<Block>) {
        assert_eq!(self.tail_len(), 0, "attaching a block behind open rows");
        self.open.clear();
        self.sealed.push(block);
        self.len += BLOCK;
    }

    /// Makes room for rows up to position `end`, exclusive.
    ///
    /// # Errors
    /// When the system refuses memory; the rows there are stay.
    pub fn reserve(&mut self, end: usize, slabs: &mut Slabs) -> io::Result<()> {
        while (self.sealed.len() + self.open.len()) * BLOCK < end {
            self.open.push_back(slabs.take()?);
        }
        Ok(())
    }

    /// Writes `layer`'s rows of the positions from `len` on: `k [T][G*k_dim]`, `v [T][G*v_dim]`.
    /// [`advance`](Self::advance) makes them count.
    ///
    /// # Panics
    /// When the room was not reserved.
    pub fn write(&mut self, layer: usize, k: &[f32], v: &[f32]) {
        let shape = self.layout.shape(layer);
        let (k_row, v_row) = (shape.kv_heads * shape.k_dim, shape.kv_heads * shape.v_dim);
        let rows = k.chunks_exact(k_row).zip(v.chunks_exact(v_row));
        for (t, (k, v)) in rows.enumerate() {
            self.saturated += self.write_row(layer, self.len + t, k, v);
        }
    }

    /// How many written values were too large for the codec and saturated.
    pub fn saturated(&self) -> u64 {
        self.saturated
    }

    fn write_row(&mut self, layer: usize, position: usize, k: &[f32], v: &[f32]) -> u64 {
        let Self { layout, sealed, open, .. } = self;
        let (shape, codec, row) = (layout.shape(layer), layout.codec(), position % BLOCK);
        let part = open[position / BLOCK - sealed.len()][layout.class(layer)].bytes_mut();
        let mut saturated = 0;
        for (head, k) in k.chunks_exact(shape.k_dim).enumerate() {
            let start = head * shape.k_dim * BLOCK + row;
            saturated += codec.store(k, &mut part[layout.k(layer)], start, BLOCK);
        }
        for (head, v) in v.chunks_exact(shape.v_dim).enumerate() {
            let start = (head * BLOCK + row) * shape.v_dim;
            saturated += codec.store(v, &mut part[layout.v(layer)], start, 1);
        }
        saturated
    }

    /// Counts `rows` rows that every layer has written.
    pub fn advance(&mut self, rows: usize) {
        self.len += rows;
        debug_assert!(self.len <= (self.sealed.len() + self.open.len()) * BLOCK);
    }

    /// `layer`'s bytes of the blocks that hold positions `0..end`, where they lie.
    pub fn views(&self, layer: usize, end: usize) -> impl Iterator<Item = attend::Block<'_>> {
        let class = self.layout.class(layer);
        let sealed = self.sealed.iter().map(move |block| block.parts[class].bytes());
        let open = self.open.iter().map(move |parts| parts[class].bytes());
        let view = move |bytes| self.view(layer, bytes);
        sealed.chain(open).take(end.div_ceil(BLOCK)).map(view)
    }

    fn view<'a>(&self, layer: usize, part: &'a [u8]) -> attend::Block<'a> {
        attend::Block { k: &part[self.layout.k(layer)], v: &part[self.layout.v(layer)] }
    }

    /// Seals the first open block when all its rows are there.
    pub fn seal(&mut self, key: BlockKey, parent: BlockKey, tokens: BlockTokens) -> Arc<Block> {
        assert!(self.tail_len() >= BLOCK, "sealing a block with rows missing");
        let slots = self.open.pop_front().expect("rows lie in open blocks").into_iter();
        let parts = slots.zip(self.layout.parts()).map(|(slot, len)| Part::Heap(slot, *len));
        let parts = parts.map(Arc::new).collect();
        let block = Arc::new(Block { key, parent, tokens, parts });
        self.sealed.push(Arc::clone(&block));
        block
    }

    /// Uses `block`, which has the same name and is everyone's, in the place of the last sealed
    /// one.
    pub fn swap_last(&mut self, block: Arc<Block>) {
        let index = self.sealed.len().saturating_sub(1);
        if let Some(resident) = &self.resident {
            resident.keep(index, block.key);
        }
        if let Some(last) = self.sealed.last_mut() {
            debug_assert_eq!(last.key, block.key);
            *last = block;
        }
    }

    /// The parts of the blocks that hold the rows behind the sealed blocks.
    pub(super) fn open_bytes(&self) -> Vec<Vec<&[u8]>> {
        let blocks = self.open.iter().take(self.tail_len().div_ceil(BLOCK));
        blocks.map(|parts| parts.iter().map(Slot::bytes).collect()).collect()
    }

    /// Copies the first `rows` rows of `block` behind the sealed blocks.
    ///
    /// # Errors
    /// When the system refuses memory.
    pub fn lend(&mut self, block: &Block, rows: usize, slabs: &mut Slabs) -> io::Result<()> {
        assert!(rows < BLOCK, "only part of a block is copied");
        let part = |class: usize| Rows { bytes: block.parts[class].bytes(), capacity: BLOCK };
        self.copy(part, rows, slabs)
    }

    /// A cache that goes on from the same rows: it shares the sealed blocks, and has copies of the
    /// rows behind them.
    ///
    /// # Errors
    /// When the system refuses memory.
    pub fn fork(&self, slabs: &mut Slabs) -> io::Result<Self> {
        let mut fork = Self::new(Arc::clone(&self.layout));
        self.sealed.iter().for_each(|block| fork.attach(Arc::clone(block)));
        let part = |class: usize| Rows { bytes: self.open[0][class].bytes(), capacity: BLOCK };
        fork.copy(part, self.tail_len(), slabs)?;
        Ok(fork)
    }

    /// The rows behind the sealed blocks, packed: as a part that has room for just them, class
    /// after class.
    pub fn tail_rows(&self) -> Vec<u8> {
        let rows = self.tail_len();
        if rows == 0 {
            return Vec::new();
        }
        let mut packed = vec![0; tail_bytes(&self.layout, rows)];
        for layer in 0..self.layout.layers() {
            let class = self.layout.class(layer);
            let range = tail_part(&self.layout, class, rows);
            let from = Rows { bytes: self.open[0][class].bytes(), capacity: BLOCK };
            let to = Rows { bytes: &mut packed[range], capacity: rows };
            copy_rows(&self.layout, layer, from, to, rows);
        }
        packed
    }

    /// Copies the first `rows` of the `capacity` rows packed by [`tail_rows`](Self::tail_rows)
    /// behind the sealed blocks.
    ///
    /// # Errors
    /// When the system refuses memory.
    pub fn restore_tail(
        &mut self,
        packed: &[u8],
        capacity: usize,
        rows: usize,
        slabs: &mut Slabs,
    ) -> io::Result<()> {
        assert!(rows <= capacity, "no more rows than there are");
        let layout = Arc::clone(&self.layout);
        let part = |class| Rows { bytes: &packed[tail_part(&layout, class, capacity)], capacity };
        self.copy(part, rows, slabs)
    }

    /// Copies the first `rows` rows of every class's part behind the sealed blocks.
    fn copy<'a>(
        &mut self,
        part: impl Fn(usize) -> Rows<&'a [u8]>,
        rows: usize,
        slabs: &mut Slabs,
    ) -> io::Result<()> {
        assert_eq!(self.tail_len(), 0, "copied rows follow sealed blocks");
        if rows == 0 {
            return Ok(());
        }
        self.reserve(self.len + rows, slabs)?;
        for layer in 0..self.layout.layers() {
            let class = self.layout.class(layer);
            let to = Rows { bytes: self.open[0][class].bytes_mut(), capacity: BLOCK };
            copy_rows(&self.layout, layer, part(class), to, rows);
        }
        self.advance(rows);
        Ok(())
    }
}

/// Bytes of `rows` packed rows under `layout`.
pub fn tail_bytes(layout: &Layout, rows: usize) -> usize {
    layout.token_bytes() * rows
}

fn tail_part(layout: &Layout, class: usize, rows: usize) -> std::ops::Range<usize> {
    let start: usize = layout.parts()[..class].iter().map(|bytes| bytes / BLOCK * rows).sum();
    start..start + layout.parts()[class] / BLOCK * rows
}

/// A part, or a part with room for `capacity` rows instead of 32.
struct Rows<B> {
    bytes: B,
    capacity: usize,
}

/// Copies `layer`'s first `rows` rows. A key's element is a line of rows, a value's row lies in
/// one piece.
fn copy_rows(layout: &Layout, layer: usize, from: Rows<&[u8]>, to: Rows<&mut [u8]>, rows: usize) {
    let (shape, element) = (layout.shape(layer), layout.codec().bytes());
    let v_row = shape.v_dim * element;
    let k = (layout.k(layer).start, shape.kv_heads * shape.k_dim, element);
    let v = (layout.v(layer).start, shape.kv_heads, v_row);
    for (start, lines, width) in [k, v] {
        for line in 0..lines {
            let source = start / BLOCK * from.capacity + line * width * from.capacity;
            let target = start / BLOCK * to.capacity + line * width * to.capacity;
            to.bytes[target..target + rows * width]
                .copy_from_slice(&from.bytes[source..source + rows * width]);
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::kv::codec::Codec;
    use crate::kv::layout::{LayerShape, Window};

    const SHAPE: LayerShape = LayerShape { kv_heads: 2, k_dim: 3, v_dim: 4 };

    fn layout() -> Arc<Layout> {
        let windows = [Window::Full, Window::Sliding(8)];
        Arc::new(Layout::new(Codec::F32, &windows.map(|window| (SHAPE, window))))
    }

    /// A cache of `len` rows whose numbers name their layer, position and place.
    fn filled(len: usize, slabs: &mut Slabs) -> KvSeq {
        let mut seq = KvSeq::new(layout());
        extend(&mut seq, len, slabs);
        seq
    }

    fn extend(seq: &mut KvSeq, rows: usize, slabs: &mut Slabs) {
        seq.reserve(seq.len() + rows, slabs).unwrap();
        for layer in 0..2 {
            let value = |i: usize, width: usize| {
                (layer * 100_000 + (seq.len() + i / width) * 100 + i % width) as f32
            };
            let k: Vec<f32> = (0..rows * 6).map(|i| value(i, 6)).collect();
            let v: Vec<f32> = (0..rows * 8).map(|i| -value(i, 8)).collect();
            seq.write(layer, &k, &v);
        }
        seq.advance(rows);
    }

    fn key(n: u8) -> BlockKey {
        BlockKey([n; 32])
    }

    /// Every number of positions `0..seq.len()`, layer by layer.
    fn numbers(seq: &KvSeq) -> Vec<f32> {
        let mut numbers = Vec::new();
        for layer in 0..2 {
            let views: Vec<_> = seq.views(layer, seq.len()).collect();
            for position in 0..seq.len() {
                let view = &views[position / BLOCK];
                let (k, v): (&[f32], &[f32]) =
                    (bytemuck::cast_slice(view.k), bytemuck::cast_slice(view.v));
                let row = position % BLOCK;
                numbers.extend((0..6).map(|d| k[d * BLOCK + row]));
                numbers.extend((0..8).map(|i| v[(i / 4 * BLOCK + row) * 4 + i % 4]));
            }
        }
        numbers
    }

    #[test]
    fn rows_are_found_where_the_layout_says_whatever_the_slices() {
        let mut slabs = Slabs::new(&layout());
        let whole = filled(70, &mut slabs);
        let mut sliced = filled(1, &mut slabs);
        for rows in [30, 1, 1, 31, 6] {
            extend(&mut sliced, rows, &mut slabs);
        }
        assert_eq!(numbers(&whole), numbers(&sliced));
        assert_eq!(numbers(&whole)[6 + 8], 100.0);
    }

    #[test]
    fn sealing_changes_no_number() {
        let mut slabs = Slabs::new(&layout());
        let mut seq = filled(70, &mut slabs);
        let before = numbers(&seq);
        seq.seal(key(1), key(0), [1; BLOCK]);
        seq.seal(key(2), key(1), [2; BLOCK]);
        assert_eq!((seq.sealed().len(), seq.tail_len()), (2, 6));
        assert_eq!(numbers(&seq), before);
    }

    #[test]
    fn a_fork_shares_what_is_sealed_and_goes_on_by_itself() {
        let mut slabs = Slabs::new(&layout());
        for len in [0, 1, 31] {
            let mut seq = filled(BLOCK + len, &mut slabs);
            seq.seal(key(1), key(0), [1; BLOCK]);
            let before = numbers(&seq);
            let mut fork = seq.fork(&mut slabs).unwrap();
            assert!(Arc::ptr_eq(&fork.sealed()[0], &seq.sealed()[0]));
            extend(&mut fork, 40, &mut slabs);
            assert_eq!(numbers(&seq), before);
            let whole = filled(BLOCK + len + 40, &mut slabs);
            assert_eq!(numbers(&fork), numbers(&whole));
        }
    }

    #[test]
    fn lent_rows_and_restored_tails_equal_computed_ones() {
        let mut slabs = Slabs::new(&layout());
        for len in [0, 1, 31] {
            let mut computed = filled(BLOCK + len, &mut slabs);
            computed.seal(key(1), key(0), [1; BLOCK]);
            let packed = computed.tail_rows();
            assert_eq!(packed.len(), tail_bytes(&layout(), len));
            for rows in 0..=len {
                let mut restored = KvSeq::new(layout());
                restored.attach(Arc::clone(&computed.sealed()[0]));
                restored.restore_tail(&packed, len, rows, &mut slabs).unwrap();
                let mut shorter = filled(BLOCK + rows, &mut slabs);
                assert_eq!(numbers(&restored), numbers(&shorter));
                extend(&mut restored, 3, &mut slabs);
                extend(&mut shorter, 3, &mut slabs);
                assert_eq!(numbers(&restored), numbers(&shorter));
            }
        }
    }

    #[test]
    fn a_block_lends_its_first_rows() {
        let mut slabs = Slabs::new(&layout());
        let mut whole = filled(64, &mut slabs);
        let block = whole.seal(key(1), key(0), [1; BLOCK]);
        for rows in 1..BLOCK {
            let mut borrower = KvSeq::new(layout());
            borrower.lend(&block, rows, &mut slabs).unwrap();
            assert_eq!(numbers(&borrower), numbers(&filled(rows, &mut slabs)));
        }
    }
}
