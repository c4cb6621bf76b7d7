//! The matrix product: `y[T][N] = x[T][K] W^T (+ bias[N])`.
//!
//! Each output is one chain of fused multiply-adds from 0 over ascending `k`, then its bias is
//! added. The work is cut into tiles of sixteen outputs; inside a tile, weights of a run of `k` are
//! widened once into a panel that stays in the first-level cache while strips of up to six rows
//! pass over it, six by sixteen sums in registers. Between runs the sums rest in `y`, which rounds
//! nothing: they are f32 in registers too.

use std::ops::Range;

use crate::convert::{BF16, F16};
use crate::isa::Isa;
use crate::lanes::{LANES, Lanes};
use crate::matrix::{Format, Matrix};
use crate::panel::{Affine, Packed, Plain, RUN, multiply_on};
use crate::pool::{Disjoint, Pool};

/// Rows that pass over a panel together.
const STRIP: usize = 6;

/// Multiply-adds worth a task of their own.
const TASK: usize = 64 * 1024;

/// `y[T][N] = x[T][K] W^T (+ bias[N])`, bit for bit the same for any `T` and number of threads.
///
/// # Panics
/// When a length does not fit `t`, `w.n()` and `w.k()`.
pub fn linear(pool: &Pool, x: &[f32], t: usize, w: &Matrix, bias: Option<&[f32]>, y: &mut [f32]) {
    linear_on(Isa::best(), pool, x, t, w, bias, y);
}

pub(crate) fn linear_on(
    isa: Isa,
    pool: &Pool,
    x: &[f32],
    t: usize,
    w: &Matrix,
    bias: Option<&[f32]>,
    y: &mut [f32],
) {
    assert_eq!(x.len(), t * w.k(), "x is [T][K]");
    assert_eq!(y.len(), t * w.n(), "y is [T][N]");
    assert!(bias.is_none_or(|bias| bias.len() == w.n()), "one bias for each output");
    if t == 0 {
        return;
    }
    let product = Product { isa, x, t, w, bias, y: Disjoint::new(y) };
    let tiles = w.n().div_ceil(LANES);
    let run = (TASK / (t * w.k().max(1) * LANES)).clamp(1, tiles.div_ceil(pool.threads()).max(1));
    pool.run(tiles.div_ceil(run), &|i| {
        (i * run..tiles.min((i + 1) * run)).for_each(|tile| product.any_tile(tile));
    });
}

/// One call of [`linear`].
struct Product<'a> {
    isa: Isa,
    x: &'a [f32],
    t: usize,
    w: &'a Matrix,
    bias: Option<&'a [f32]>,
    y: Disjoint<'a, f32>,
}

impl<'a> Product<'a> {
    fn any_tile(&self, tile: usize) {
        match self.w.format() {
            Format::F32 => self.tile::<Plain<'_, f32>>(tile),
            Format::F16 => self.tile::<Plain<'_, F16>>(tile),
            Format::BF16 => self.tile::<Plain<'_, BF16>>(tile),
            Format::Affine { .. } => self.tile::<Affine<'_>>(tile),
        }
    }

    /// All rows over one tile, in runs of `k`.
    fn tile<P: Packed<'a>>(&self, tile: usize) {
        let mut scratch = [[0.0; LANES]; RUN];
        for start in (0..self.w.k().max(1)).step_by(RUN) {
            let run = start..self.w.k().min(start + RUN);
            let packed = P::new(self.w, tile, run.clone());
            match self.t {
                1 => self.strip::<1>(tile, 0, &run, |sums, x| packed.multiply(self.isa, sums, x)),
                2 => self.strip::<2>(tile, 0, &run, |sums, x| packed.multiply(self.isa, sums, x)),
                _ => self.strips(tile, &run, packed.panel(self.isa, &mut scratch)),
            }
        }
    }

    /// All rows over one panel.
    fn strips(&self, tile: usize, run: &Range<usize>, panel: &[Lanes]) {
        for rows in even(self.t, STRIP) {
            match rows.len() {
                6 => self
                    .strip::<6>(tile, rows.start, run, |s, x| multiply_on(self.isa, s, &panel, x)),
                5 => self
                    .strip::<5>(tile, rows.start, run, |s, x| multiply_on(self.isa, s, &panel, x)),
                4 => self
                    .strip::<4>(tile, rows.start, run, |s, x| multiply_on(self.isa, s, &panel, x)),
                3 => self
                    .strip::<3>(tile, rows.start, run, |s, x| multiply_on(self.isa, s, &panel, x)),
                2 => self
                    .strip::<2>(tile, rows.start, run, |s, x| multiply_on(self.isa, s, &panel, x)),
                _ => self
                    .strip::<1>(tile, rows.start, run, |s, x| multiply_on(self.isa, s, &panel, x)),
            }
        }
    }

    /// `R` rows from `row` on: takes up their sums, lets `add` go over the run, puts them down.
    fn strip<const R: usize>(
        &self,
        tile: usize,
        row: usize,
        run: &Range<usize>,
        add: impl Fn(&mut [Lanes; R], &[&[f32]; R]),
    ) {
        let (n, k) = (self.w.n(), self.w.k());
        let outputs = tile * LANES..n.min((tile + 1) * LANES);
        let mut x: [&[f32]; R] = [&[]; R];
        for r in 0..R {
            x[r] = &self.x[(row + r) * k..][run.clone()];
        }
        let mut sums = [[0.0; LANES]; R];
        for r in 0..R {
            if run.start > 0 {
                sums[r][..outputs.len()].copy_from_slice(self.outputs((row + r) * n, &outputs));
            }
        }
        add(&mut sums, &x);
        for r in 0..R {
            if let (true, Some(bias)) = (run.end == k, self.bias) {
                for (sum, &bias) in sums[r].iter_mut().zip(&bias[outputs.clone()]) {
                    *sum += bias;
                }
            }
            self.outputs((row + r) * n, &outputs).copy_from_slice(&sums[r][..outputs.len()]);
        }
    }

    /// The outputs of a tile in the row of `y` that starts at `row`.
    #[expect(clippy::mut_from_ref, reason = "each task has tiles of its own")]
    fn outputs(&self, row: usize, outputs: &Range<usize>) -> &mut [f32] {
        // SAFETY: the task of a tile alone works on its outputs, one strip of rows at a time.
        #[expect(unsafe_code, reason = "tiles do not overlap")]
        unsafe {
            self.y.part(row + outputs.start..row + outputs.end)
        }
    }
}

/// Cuts `0..len` into as few ranges of at most `most` as possible, of nearly equal lengths.
#[inline(always)]
pub(crate) fn even(len: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    let parts = len.div_ceil(most);
    (0..parts).map(move |i| len * i / parts..len * (i + 1) / parts)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;
    use crate::reference;

    /// Numbers in -1..1 that differ for each seed.
    fn noise(seed: u64, len: usize) -> Vec<f32> {
        (0..len).map(|i| 2.0 * crate::sample::uniform(seed, 0, i as u64) - 1.0).collect()
    }

    #[test]
    fn a_product_equals_its_reference() {
        let pool = Pool::new(NonZeroUsize::new(2).unwrap());
        for (t, n, k) in [(1, 1, 1), (3, 17, 5), (7, 33, 300), (65, 16, 513)] {
            let w = Matrix::from_f32(n, k, &noise(1, n * k));
            let (x, bias) = (noise(2, t * k), noise(3, n));
            let (mut want, mut got) = (vec![0.0; t * n], vec![f32::NAN; t * n]);
            reference::linear(&x, t, &w, Some(&bias), &mut want);
            for isa in [Isa::PLAIN, Isa::best()] {
                linear_on(isa, &pool, &x, t, &w, Some(&bias), &mut got);
                assert_eq!(got, want, "{t} x {n} x {k} on {isa:?}");
            }
        }
    }
}
