//! The `fast` numerics' product: `y[T][N] = x[T][K] W^T (+ bias[N])` over 8-bit activations.
//!
//! For each output, in ascending order of the pieces of `k` that share a scale on both sides (32,
//! or 16 where the weights' groups are that small):
//!
//! ```text
//! y = fma(sum of (u - zero) * q, an exact integer; scale of the weights * scale of the row; y)
//! y = fma(minimum of the weights, scaled sum of the row's integers, y)      where there are minima
//! ```
//!
//! starting at 0; the bias is added last. Integer sums have no order, so that every processor may
//! use the instruction it has ([`dot`]) and still give the bits of [`crate::reference`].
//!
//! The codes of a tile are taken apart once, into scratch that stays near the processor, while
//! strips of up to four rows pass over it.

mod dot;

use std::cell::RefCell;

use crate::code::{BLOCK, Code, STEPS, Step, unpack_nibbles};
use crate::disjoint::Disjoint;
use crate::isa::{Isa, dispatched};
use crate::lanes::{LANES, Lanes};
use crate::linear::even;
use crate::matrix::{Format, Matrix};
use crate::pool::Pool;
use crate::quantized::{Quantized, Row};

/// Rows that pass over a tile together.
const STRIP: usize = 4;

/// Multiply-adds worth a task of their own.
const TASK: usize = 256 * 1024;

thread_local! {
    static SCRATCH: RefCell<Vec<Step>> = const { RefCell::new(Vec::new()) };
}

/// `y[T][N] = x[T][K] W^T (+ bias[N])`, bit for bit the same for any `T` and number of threads.
///
/// # Panics
/// When a length does not fit, or the weights are not quantised.
pub fn linear_fast(pool: &Pool, x: &Quantized, w: &Matrix, bias: Option<&[f32]>, y: &mut [f32]) {
    linear_fast_on(Isa::best(), pool, x, w, bias, y);
}

pub(crate) fn linear_fast_on(
    isa: Isa,
    pool: &Pool,
    x: &Quantized,
    w: &Matrix,
    bias: Option<&[f32]>,
    y: &mut [f32],
) {
    let t = x.rows();
    assert_eq!(x.k(), w.k(), "x is [T][K]");
    assert_eq!(y.len(), t * w.n(), "y is [T][N]");
    assert!(bias.is_none_or(|bias| bias.len() == w.n()), "one bias for each output");
    if t == 0 {
        return;
    }
    let product = Product { isa, x, w, bias, y: Disjoint::new(y) };
    let tiles = w.n().div_ceil(LANES);
    let run = (TASK / (t * w.k().max(1) * LANES)).clamp(1, tiles.div_ceil(pool.threads()).max(1));
    pool.run(tiles.div_ceil(run), &|i| {
        SCRATCH.with_borrow_mut(|scratch| {
            (i * run..tiles.min((i + 1) * run)).for_each(|tile| product.tile(tile, scratch));
        });
    });
}

/// One call of [`linear_fast`].
struct Product<'a> {
    isa: Isa,
    x: &'a Quantized,
    w: &'a Matrix,
    bias: Option<&'a [f32]>,
    y: Disjoint<'a, f32>,
}

impl Product<'_> {
    fn tile(&self, tile: usize, scratch: &mut Vec<Step>) {
        let weights = Weights::of(self.isa, self.w, tile, scratch);
        for rows in even(self.x.rows(), STRIP) {
            match rows.len() {
                4 => self.strip::<4>(tile, rows.start, &weights),
                3 => self.strip::<3>(tile, rows.start, &weights),
                2 => self.strip::<2>(tile, rows.start, &weights),
                _ => self.strip::<1>(tile, rows.start, &weights),
            }
        }
    }

    /// `R` rows from `row` on.
    fn strip<const R: usize>(&self, tile: usize, row: usize, weights: &Weights<'_>) {
        let n = self.w.n();
        let outputs = tile * LANES..n.min((tile + 1) * LANES);
        let x: [Row<'_>; R] = std::array::from_fn(|r| self.x.row(row + r));
        let mut sums = [[0.0; LANES]; R];
        weights.multiply(self.isa, &mut sums, &x);
        for (r, sums) in sums.iter_mut().enumerate() {
            let bias = self.bias.map_or(&[][..], |bias| &bias[outputs.clone()]);
            sums.iter_mut().zip(bias).for_each(|(sum, bias)| *sum += bias);
            let at = (row + r) * n;
            // SAFETY: the task of a tile alone works on its outputs, one strip of rows at a time.
            #[expect(unsafe_code, reason = "tiles do not overlap")]
            let y = unsafe { self.y.part(at + outputs.start..at + outputs.end) };
            y.copy_from_slice(&sums[..outputs.len()]);
        }
    }
}

/// A tile, its codes one to a byte.
struct Weights<'a> {
    code: Code,
    group: usize,
    steps: &'a [Step],
    scales: &'a [Lanes],
    mins: &'a [Lanes],
}

impl<'a> Weights<'a> {
    fn of(isa: Isa, matrix: &'a Matrix, tile: usize, scratch: &'a mut Vec<Step>) -> Weights<'a> {
        let Format::Affine { code, group, .. } = matrix.format() else {
            panic!("the integer product of {matrix:?}");
        };
        let (scales, mins) = matrix.tile_groups(tile);
        let codes = matrix.tile_codes(tile, code);
        let steps = if code.is_nibbles() {
            scratch.resize(matrix.k() / BLOCK * STEPS, [0; 64]);
            unpack_on(isa, codes, scratch);
            scratch
        } else {
            codes.as_chunks().0
        };
        Weights { code, group, steps, scales, mins }
    }

    fn multiply<const R: usize>(&self, isa: Isa, sums: &mut [Lanes; R], x: &[Row<'_>; R]) {
        match (self.code.bits, self.group) {
            (4, 16) => strip_on::<R, 4, 2>(isa, sums, self, x),
            (4, _) => strip_on::<R, 4, 1>(isa, sums, self, x),
            (5, 16) => strip_on::<R, 5, 2>(isa, sums, self, x),
            (5, _) => strip_on::<R, 5, 1>(isa, sums, self, x),
            (6, 16) => strip_on::<R, 6, 2>(isa, sums, self, x),
            (6, _) => strip_on::<R, 6, 1>(isa, sums, self, x),
            (_, 16) => strip_on::<R, 8, 2>(isa, sums, self, x),
            (_, _) => strip_on::<R, 8, 1>(isa, sums, self, x),
        }
    }
}

dispatched! { fn unpack_on(codes: &[u8], to: &mut [Step]) = unpack; }
dispatched! {
    fn strip_on[const R: usize, const BITS: u8, const PIECES: usize][R, BITS, PIECES](
        sums: &mut [Lanes; R], weights: &Weights<'_>, x: &[Row<'_>; R],
    ) = strip;
}

#[inline(always)]
fn unpack(_isa: Isa, codes: &[u8], to: &mut [Step]) {
    for (codes, to) in codes.as_chunks().0.iter().zip(to.as_chunks_mut().0) {
        unpack_nibbles(codes, to);
    }
}

/// All blocks of a tile for `R` rows, each block in one or two pieces.
#[inline(always)]
fn strip<const R: usize, const BITS: u8, const PIECES: usize>(
    isa: Isa,
    sums: &mut [Lanes; R],
    weights: &Weights<'_>,
    x: &[Row<'_>; R],
) {
    let (steps, piece) = (STEPS / PIECES, BLOCK / PIECES);
    let zero = i32::from(weights.code.zero) - dot::base(isa, BITS);
    let mut held = *sums;
    for i in 0..weights.steps.len() / steps {
        let (block, group) = (i / PIECES, i * piece / weights.group);
        let codes = &weights.steps[i * steps..(i + 1) * steps];
        let mut rows: [&[i8]; R] = [&[]; R];
        for r in 0..R {
            rows[r] = &x[r].q[i * piece..(i + 1) * piece];
        }
        let dots = dot::dot::<R, BITS>(isa, codes, &rows);
        let scales = &weights.scales[group];
        for r in 0..R {
            let scaled = &x[r].blocks[block];
            let (sum, offset) = match PIECES {
                1 => (scaled.sums[0] + scaled.sums[1], scaled.whole),
                _ => (scaled.sums[i % 2], scaled.halves[i % 2]),
            };
            for lane in 0..LANES {
                let dot = (dots[r][lane] - zero * sum) as f32;
                held[r][lane] = dot.mul_add(scales[lane] * scaled.scale, held[r][lane]);
            }
            if group < weights.mins.len() {
                let mins = &weights.mins[group];
                for lane in 0..LANES {
                    held[r][lane] = mins[lane].mul_add(offset, held[r][lane]);
                }
            }
        }
    }
    *sums = held;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::linear::tests::quantised;
    use crate::noise::{bits, isas, noise, pool};
    use crate::reference;

    fn activations(t: usize, k: usize) -> Quantized {
        let mut x = Quantized::default();
        x.fill(&noise(4, t * k), k);
        x
    }

    fn product(isa: Isa, pool: &Pool, x: &Quantized, w: &Matrix, bias: Option<&[f32]>) -> Vec<u32> {
        let mut y = vec![f32::NAN; x.rows() * w.n()];
        linear_fast_on(isa, pool, x, w, bias, &mut y);
        bits(&y)
    }

    #[test]
    fn a_product_has_the_bits_of_its_reference_in_every_shape_format_and_instantiation() {
        let pools = [pool(1), pool(2)];
        for (n, k) in [(1, 32), (17, 64), (16, 320), (33, 192), (7, 576)] {
            for w in quantised(n, k) {
                for t in [1, 2, 3, 4, 5, 8, 13, 65] {
                    let (x, bias) = (activations(t, k), noise(5, n));
                    let bias = (t % 2 == 1).then_some(&bias[..]);
                    let mut want = vec![0.0; t * n];
                    reference::linear_fast(&x, &w, bias, &mut want);
                    for (isa, pool) in
                        isas().into_iter().flat_map(|i| pools.iter().map(move |p| (i, p)))
                    {
                        let got = product(isa, pool, &x, &w, bias);
                        assert_eq!(got, bits(&want), "{t} rows, {w:?}, {isa:?}, {pool:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn it_is_near_the_product_of_unrounded_activations() {
        let (t, n, k) = (5, 33, 576);
        let x = noise(4, t * k);
        for w in quantised(n, k) {
            let (mut exact, mut fast) = (vec![0.0; t * n], vec![0.0; t * n]);
            reference::linear(&x, t, &w, None, &mut exact);
            linear_fast(&pool(1), &activations(t, k), &w, None, &mut fast);
            let square = |x: &[f32]| x.iter().map(|x| f64::from(x * x)).sum::<f64>().sqrt();
            let apart: Vec<f32> = exact.iter().zip(&fast).map(|(a, b)| a - b).collect();
            let error = square(&apart) / square(&exact);
            assert!(error < 0.01, "{error} for {w:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn a_row_has_the_same_bits_whatever_rows_travel_with_it(
            cuts in proptest::collection::vec(1_usize..20, 1..6),
            format in 0_usize..18,
            threads in 1_usize..4,
        ) {
            let w = &quantised(37, 320)[format];
            let t: usize = cuts.iter().sum();
            let x = noise(6, t * w.k());
            let rows = |x: &[f32]| {
                let mut rows = Quantized::default();
                rows.fill(x, w.k());
                rows
            };
            let whole = product(Isa::best(), &pool(1), &rows(&x), w, None);
            let mut sliced = Vec::new();
            let mut rest = &x[..];
            for cut in cuts {
                let (slice, after) = rest.split_at(cut * w.k());
                sliced.extend(product(Isa::best(), &pool(threads), &rows(slice), w, None));
                rest = after;
            }
            prop_assert_eq!(whole, sliced);
        }
    }
}
