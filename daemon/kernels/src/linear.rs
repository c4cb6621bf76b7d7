//! The matrix product: `y[T][N] = x[T][K] W^T (+ bias[N])`.
//!
//! Each output is one chain of fused multiply-adds from 0 over ascending `k`, then its bias is
//! added. The work is cut into tiles of sixteen outputs; inside a tile, weights of a run of `k` are
//! widened once into a panel that stays in the first-level cache while strips of up to six rows
//! pass over it, six by sixteen sums in registers. Between runs the sums rest in `y`, which rounds
//! nothing: they are f32 in registers too.

use std::ops::Range;

use crate::convert::{f32_from_bf16, f32_from_f16};
use crate::isa::{Isa, dispatched};
use crate::lanes::{LANES, Lanes, strip};
use crate::matrix::{Format, Matrix};
use crate::pool::{Disjoint, Pool};

/// The longest run of `k` in a panel: 16 KiB of widened weights. A multiple of every group.
const RUN: usize = 256;

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
    let product = Product { x, t, w, bias, y: Disjoint::new(y) };
    let tiles = w.n().div_ceil(LANES);
    let run = (TASK / (t * w.k().max(1) * LANES)).clamp(1, tiles.div_ceil(pool.threads()).max(1));
    pool.run(tiles.div_ceil(run), &|i| {
        tiles_on(isa, &product, i * run..tiles.min((i + 1) * run));
    });
}

/// One call of [`linear`].
struct Product<'a> {
    x: &'a [f32],
    t: usize,
    w: &'a Matrix,
    bias: Option<&'a [f32]>,
    y: Disjoint<'a, f32>,
}

dispatched! { fn tiles_on(product: &Product<'_>, tiles: Range<usize>) = all_tiles; }

#[inline(always)]
fn all_tiles(product: &Product<'_>, tiles: Range<usize>) {
    let mut scratch = [[0.0; LANES]; RUN];
    for tile in tiles {
        product.tile(tile, &mut scratch);
    }
}

impl Product<'_> {
    #[inline(always)]
    fn tile(&self, tile: usize, scratch: &mut [Lanes; RUN]) {
        let k = self.w.k();
        let mut start = 0;
        loop {
            let run = start..k.min(start + RUN);
            let last = run.end == k;
            let panel = panel(self.w, tile, run.clone(), scratch);
            for rows in even(self.t, STRIP) {
                match rows.len() {
                    6 => self.strip::<6>(tile, rows.start, start, panel, last),
                    5 => self.strip::<5>(tile, rows.start, start, panel, last),
                    4 => self.strip::<4>(tile, rows.start, start, panel, last),
                    3 => self.strip::<3>(tile, rows.start, start, panel, last),
                    2 => self.strip::<2>(tile, rows.start, start, panel, last),
                    _ => self.strip::<1>(tile, rows.start, start, panel, last),
                }
            }
            start = run.end;
            if last {
                return;
            }
        }
    }

    /// `R` rows from `row` on over one panel that begins at `k = start`.
    #[inline(always)]
    fn strip<const R: usize>(
        &self,
        tile: usize,
        row: usize,
        start: usize,
        panel: &[Lanes],
        last: bool,
    ) {
        let (n, k) = (self.w.n(), self.w.k());
        let outputs = tile * LANES..n.min((tile + 1) * LANES);
        let x: [&[f32]; R] = std::array::from_fn(|r| {
            let at = (row + r) * k + start;
            &self.x[at..at + panel.len()]
        });
        let mut sums = [[0.0; LANES]; R];
        for r in 0..R {
            let at = (row + r) * n;
            #[expect(unsafe_code, reason = "tiles do not overlap")]
            // SAFETY: this task alone works on the outputs of this tile, one row at a time.
            let y = unsafe { self.y.part(at + outputs.start..at + outputs.end) };
            if start > 0 {
                load(&mut sums[r], y);
            }
        }
        strip(&mut sums, panel, &x);
        for r in 0..R {
            if let (true, Some(bias)) = (last, self.bias) {
                for (sum, &bias) in sums[r].iter_mut().zip(&bias[outputs.clone()]) {
                    *sum += bias;
                }
            }
            let at = (row + r) * n;
            #[expect(unsafe_code, reason = "tiles do not overlap")]
            // SAFETY: as above.
            let y = unsafe { self.y.part(at + outputs.start..at + outputs.end) };
            y.copy_from_slice(&sums[r][..y.len()]);
        }
    }
}

#[inline(always)]
fn load(sums: &mut Lanes, y: &[f32]) {
    sums[..y.len()].copy_from_slice(y);
}

/// The weights of a tile for a run of `k`, widened into the scratch; f32 weights need none.
#[inline(always)]
fn panel<'a>(
    w: &'a Matrix,
    tile: usize,
    run: Range<usize>,
    scratch: &'a mut [Lanes; RUN],
) -> &'a [Lanes] {
    let panel = match w.format() {
        Format::F32 => return &w.tile::<Lanes>(tile)[run],
        _ => &mut scratch[..run.len()],
    };
    match w.format() {
        Format::BF16 => widen(&w.tile::<[u16; LANES]>(tile)[run], panel, f32_from_bf16),
        Format::Affine { group, .. } => dequantise(w, tile, group, run, panel),
        _ => widen(&w.tile::<[u16; LANES]>(tile)[run], panel, f32_from_f16),
    }
    panel
}

#[inline(always)]
fn widen(from: &[[u16; LANES]], panel: &mut [Lanes], value: impl Fn(u16) -> f32) {
    for (to, from) in panel.iter_mut().zip(from) {
        for i in 0..LANES {
            to[i] = value(from[i]);
        }
    }
}

#[inline(always)]
fn dequantise(w: &Matrix, tile: usize, group: usize, run: Range<usize>, panel: &mut [Lanes]) {
    let (scales, mins) = w.tile_groups(tile);
    let q = &w.tile::<[i8; LANES]>(tile)[run.clone()];
    for (i, (panel, q)) in panel.chunks_mut(group).zip(q.chunks(group)).enumerate() {
        let scale = &scales[run.start / group + i];
        let min = mins.get(run.start / group + i).unwrap_or(&[0.0; LANES]);
        for (to, q) in panel.iter_mut().zip(q) {
            for i in 0..LANES {
                to[i] = f32::from(q[i]).mul_add(scale[i], min[i]);
            }
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
            for isa in [Isa::Plain, Isa::best()] {
                linear_on(isa, &pool, &x, t, &w, Some(&bias), &mut got);
                assert_eq!(got, want, "{t} x {n} x {k} on {isa:?}");
            }
        }
    }
}
