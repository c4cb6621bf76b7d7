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
//! use the instruction it has and still give the bits of [`crate::reference`].
//!
//! The codes of a tile are taken apart once, into scratch that stays near the processor, while
//! strips of up to four rows pass over it.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "aarch64")]
mod neon;
mod plain;
#[cfg(target_arch = "x86_64")]
mod vnni;

use std::cell::RefCell;
use std::num::NonZeroUsize;

use crate::code::{BLOCK, Code, STEPS, Step, unpack_nibbles};
use crate::disjoint::Disjoint;
use crate::isa::{Isa, Kind, dispatched};
use crate::lanes::{LANES, Lanes};
use crate::linear::{even, over_tiles};
use crate::matrix::{Format, Groups, Matrix};
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
    over_tiles(pool, w, t, TASK, |tiles| {
        SCRATCH.with_borrow_mut(|scratch| tiles.for_each(|tile| product.tile(tile, scratch)));
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
        let weights = Weights::of(self.isa, self.w, tile, self.x.rows(), scratch);
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
            put(sums, y);
        }
    }
}

/// Writes the outputs of a tile: all sixteen, in one piece, or fewer at the end of a matrix.
fn put(sums: &Lanes, y: &mut [f32]) {
    match <&mut Lanes>::try_from(&mut *y) {
        Ok(y) => *y = *sums,
        Err(_) => y.copy_from_slice(&sums[..y.len()]),
    }
}

/// A tile.
struct Weights<'a> {
    bits: u8,
    zero: i32,
    /// Pieces of a block that have scales of their own: 1 or 2.
    pieces: usize,
    /// `piece >> group_shift` is the group of a piece.
    group_shift: u32,
    steps: &'a [Step],
    /// Whether the codes lie two in a byte, as they are kept, and not one.
    packed: bool,
    groups: Groups<'a>,
}

impl<'a> Weights<'a> {
    /// The tile for a product of so many rows: for one row, taking codes apart costs more than it
    /// saves.
    fn of(
        isa: Isa,
        matrix: &'a Matrix,
        tile: usize,
        rows: usize,
        scratch: &'a mut Vec<Step>,
    ) -> Weights<'a> {
        let Format::Affine { code, group, .. } = matrix.format() else {
            panic!("the integer product of {matrix:?}");
        };
        let groups = matrix.tile_groups(tile);
        let codes = matrix.tile_codes(tile, code);
        let packed = code.is_nibbles() && rows == 1 && group >= BLOCK && isa.takes_nibbles();
        let steps = if code.is_nibbles() && !packed {
            scratch.resize(matrix.k() / BLOCK * STEPS, [0; 64]);
            unpack_on(isa, codes, scratch);
            scratch
        } else {
            codes.as_chunks().0
        };
        let pieces = BLOCK / group.min(BLOCK);
        let group_shift = (group / BLOCK).max(1).trailing_zeros();
        let (bits, zero) = (code.bits, i32::from(code.zero));
        Weights { bits, zero, pieces, group_shift, steps, packed, groups }
    }

    /// Steps of a piece.
    #[inline(always)]
    fn piece_len(&self) -> usize {
        if self.packed { STEPS / 2 } else { STEPS / self.pieces }
    }

    fn multiply<const R: usize>(&self, isa: Isa, sums: &mut [Lanes; R], x: &[Row<'_>; R]) {
        #[allow(unsafe_code, reason = "calls kernels for detected features")]
        match isa.0 {
            Kind::Plain => plain::strip(sums, self, x),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: an `Isa` of this kind only comes from `all`, which has looked.
            Kind::Avx2 => unsafe { self.avx2(sums, x) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: an `Isa` of this kind only comes from `all`, which has looked.
            Kind::Vnni => unsafe { vnni::strip(sums, self, x) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: an `Isa` of this kind only comes from `all`, which has looked.
            Kind::Dot => unsafe { neon::strip(sums, self, x) },
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn avx2<const R: usize>(&self, sums: &mut [Lanes; R], x: &[Row<'_>; R]) {
        match (self.bits, self.groups.have_mins(), self.packed) {
            (4, true, true) => avx2::strip::<R, 4, true, true>(sums, self, x),
            (4, false, true) => avx2::strip::<R, 4, false, true>(sums, self, x),
            (4, true, _) => avx2::strip::<R, 4, true, false>(sums, self, x),
            (4, false, _) => avx2::strip::<R, 4, false, false>(sums, self, x),
            (5, true, _) => avx2::strip::<R, 5, true, false>(sums, self, x),
            (5, false, _) => avx2::strip::<R, 5, false, false>(sums, self, x),
            (6, true, _) => avx2::strip::<R, 6, true, false>(sums, self, x),
            (6, false, _) => avx2::strip::<R, 6, false, false>(sums, self, x),
            (_, true, _) => avx2::strip::<R, 8, true, false>(sums, self, x),
            (_, false, _) => avx2::strip::<R, 8, false, false>(sums, self, x),
        }
    }
}

/// Whether an instantiation has the bits of the plain one on this machine, in a product of every
/// kind of code. What a processor has was not always there when this was tested.
pub(crate) fn agrees(isa: Isa) -> bool {
    let here = Pool::new(NonZeroUsize::MIN);
    let (n, k) = (LANES, 4 * BLOCK);
    let uniform = |i: usize| crate::sample::uniform(7, 0, i as u64) - 0.5;
    let x: Vec<f32> = (0..5 * k).map(uniform).collect();
    let x = Quantized::on(Isa::PLAIN, &here, &x, k);
    // Scales that are f16 and scales that are not.
    let (half, wide) = (64.0, 63.0);
    let codes = [(4, 0, 32, half), (5, 0, 64, wide), (6, 32, 16, half), (8, 128, 32, wide)];
    codes.into_iter().all(|(bits, zero, group, parts)| {
        let scale = |i: usize| (uniform(i) * parts).round() / parts;
        let scales: Vec<f32> = (0..n * k / group).map(scale).collect();
        let code = |i: usize| ((uniform(i) + 0.5) * f32::from(1_u16 << bits)) as i16;
        let q: Vec<i8> = (0..n * k).map(|i| (code(i) - zero) as i8).collect();
        let min = (zero == 0).then_some(&scales[..]);
        let code = Code { bits, zero: zero as u8 };
        let w = Matrix::from_affine(n, k, (code, group), &q, &scales, min);
        let product = |isa| {
            let mut y = vec![0.0; 5 * n];
            linear_fast_on(isa, &here, &x, &w, None, &mut y);
            y.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        product(isa) == product(Isa::PLAIN)
    })
}

dispatched! { fn unpack_on(codes: &[u8], to: &mut [Step]) = unpack; }

#[inline(always)]
fn unpack(_isa: Isa, codes: &[u8], to: &mut [Step]) {
    for (codes, to) in codes.as_chunks().0.iter().zip(to.as_chunks_mut().0) {
        unpack_nibbles(codes, to);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::linear::tests::quantised;
    use crate::noise::{bits, isas, noise, pool};
    use crate::reference;

    fn activations(t: usize, k: usize) -> Quantized {
        Quantized::new(&pool(1), &noise(4, t * k), k)
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

    /// Largest codes and activations, where sums of 16 bits would overflow first.
    #[test]
    fn extremes_are_exact_in_every_instantiation() {
        for (bits, zero) in [(4, 0), (5, 0), (6, 32), (8, 128)] {
            let code = Code { bits, zero };
            for q in [-i16::from(zero), 0, (1 << bits) - 1 - i16::from(zero)] {
                let w = Matrix::from_affine(16, 64, (code, 32), &[q as i8; 1024], &[1.0; 32], None);
                for x in [-1.0, 1.0] {
                    let rows = Quantized::new(&pool(1), &[x; 64], 64);
                    let want = 64.0 * 127.0 * f32::from(q) * x * (1.0 / 127.0);
                    for isa in isas() {
                        let mut y = [0.0; 16];
                        linear_fast_on(isa, &pool(1), &rows, &w, None, &mut y);
                        assert!(y.iter().all(|y| (y - want).abs() <= want.abs() * 1e-6), "{y:?}");
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
            format in 0_usize..36,
            threads in 1_usize..4,
        ) {
            let w = &quantised(37, 320)[format];
            let t: usize = cuts.iter().sum();
            let x = noise(6, t * w.k());
            let rows = |x: &[f32]| Quantized::new(&pool(threads), x, w.k());
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
