//! Room for rows of one chain, in all layers.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use candle_core::{Device, Result, Tensor};

use crate::kv::codec::Codec;
use crate::kv::layout::{BLOCK, Layout};

/// Names a run for as long as its tier lives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct RunId(pub(super) u64);

/// Rows `0..capacity` of every layer: `K [G][capacity][k_dim]` and `V [G][capacity][v_dim]`.
#[derive(Debug)]
pub struct Run {
    pub(super) id: RunId,
    layers: Vec<[Tensor; 2]>,
    capacity: usize,
    bytes: usize,
    used: Rc<Cell<usize>>,
}

impl Run {
    /// Zeroed room for `capacity` rows, whose bytes count in `used` until it is dropped.
    pub(super) fn new(
        id: RunId,
        layout: &Layout,
        capacity: usize,
        device: &Device,
        used: &Rc<Cell<usize>>,
    ) -> Result<Self> {
        let dtype = layout.codec().dtype();
        let layer = |layer| {
            let shape = layout.shape(layer);
            let rows = |dim| Tensor::zeros((shape.kv_heads, capacity, dim), dtype, device);
            Ok([rows(shape.k_dim)?, rows(shape.v_dim)?])
        };
        let layers = (0..layout.layers()).map(layer).collect::<Result<_>>()?;
        let bytes = layout.token_bytes() * capacity;
        used.set(used.get() + bytes);
        Ok(Self { id, layers, capacity, bytes, used: Rc::clone(used) })
    }

    /// Rows there is room for.
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// The keys and values `[G][rows][dim]` of some rows of a layer, where they lie.
    pub(super) fn rows(&self, layer: usize, rows: Range<usize>) -> Result<[Tensor; 2]> {
        let [k, v] = &self.layers[layer];
        Ok([k.narrow(1, rows.start, rows.len())?, v.narrow(1, rows.start, rows.len())?])
    }

    /// Writes keys and values `[G][rows][dim]`, of the run's element type, from row `start` on.
    pub(super) fn write(&self, layer: usize, start: usize, kv: &[Tensor; 2]) -> Result<()> {
        for (room, rows) in self.layers[layer].iter().zip(kv) {
            room.slice_set(rows, 1, start)?;
        }
        Ok(())
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.used.set(self.used.get() - self.bytes);
    }
}

/// A layer's keys or values of whole blocks as the host has them, arranged as a run has them:
/// `[G][rows][dim]`, the first `rows` of them.
pub(super) fn arrange(
    blocks: &[&[u8]],
    by_token: bool,
    (heads, dim): (usize, usize),
    rows: usize,
    codec: Codec,
) -> Vec<u8> {
    let size = codec.bytes();
    let mut arranged = Vec::with_capacity(heads * rows * dim * size);
    for head in 0..heads {
        for row in 0..rows {
            let block = &blocks[row / BLOCK][head * BLOCK * dim * size..][..BLOCK * dim * size];
            let row = row % BLOCK;
            if by_token {
                arranged.extend_from_slice(&block[row * dim * size..][..dim * size]);
            } else {
                let element = |d: usize| &block[(d * BLOCK + row) * size..][..size];
                (0..dim).for_each(|d| arranged.extend_from_slice(element(d)));
            }
        }
    }
    arranged
}
