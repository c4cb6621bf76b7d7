//! What adapters add to products.
//!
//! It is one order of sums, whatever the layer's weights are kept in and however many rows there
//! are: two products in f32, of the rows as they are under every numerics, then the sum with the
//! row that the layer gave.

use tinygpt_kernels::{linear, norm};

use super::{Buffer, Host};
use crate::model::executor::Executor;
use crate::model::load::{Delta, Linear};

impl Host {
    /// Whether an adapter that a row of the pass carries changes the layer.
    pub(super) fn is_adapted(&self, layer: &Linear) -> bool {
        self.carried.borrow().deltas(&layer.deltas).next().is_some()
    }

    /// `y += up (down x)` in some rows, `x [T][K]` and `y [T][N]`.
    pub(super) fn add_delta<'h>(
        &'h self,
        y: &mut Buffer<'h>,
        x: &Buffer<'h>,
        rows: &[usize],
        Delta { down, up }: &Delta,
    ) {
        let (count, width) = (rows.len(), y.width);
        let x = self.gather(x, rows);
        let mut low = self.buffer(count, down.n());
        linear(&self.pool, &x, count, down, None, &mut low);
        let mut out = self.buffer(count, width);
        linear(&self.pool, &low, count, up, None, &mut out);
        for (row, out) in rows.iter().zip(out.chunks_exact(width)) {
            norm::add(&mut y[row * width..][..width], out);
        }
    }
}
