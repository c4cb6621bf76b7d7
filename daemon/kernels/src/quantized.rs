//! Rows of activations as 8-bit integers: the left side of the `fast` numerics' products.
//!
//! Every 32 consecutive values of a row share a scale `max |x| / 127`; a value becomes the nearest
//! integer to `x * (127 / max |x|)`, halves to even. What a row becomes depends on that row alone.

use crate::code::BLOCK;
use crate::disjoint::Disjoint;
use crate::isa::{Isa, dispatched};
use crate::lanes::{fold, larger, tree};
use crate::pool::Pool;

/// Blocks worth a task of their own.
const TASK: usize = 256;

/// `T` rows of `K` activations, in blocks of 32 with a scale each.
#[derive(Debug, Default, Clone)]
pub struct Quantized {
    k: usize,
    blocks: Vec<Scaled>,
}

/// A row: its blocks in order.
pub(crate) type Row<'a> = &'a [Scaled];

/// A block and what products want of it, in one cache line.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C, align(64))]
pub(crate) struct Scaled {
    pub(crate) q: [i8; BLOCK],
    /// `x` is about `q * scale`.
    pub(crate) scale: f32,
    /// The sums of the integers, for zero points: of all, of the first half, of the second.
    pub(crate) sums: [i32; 3],
    /// The same, scaled, for minima.
    pub(crate) scaled: [f32; 3],
}

impl Scaled {
    const ZERO: Scaled = Scaled { q: [0; BLOCK], scale: 0.0, sums: [0; 3], scaled: [0.0; 3] };

    fn new(q: [i8; BLOCK], scale: f32) -> Scaled {
        let half = |i: usize| q[i * 16..(i + 1) * 16].iter().map(|&q| i32::from(q)).sum::<i32>();
        let [first, second] = [half(0), half(1)];
        let sums = [first + second, first, second];
        Scaled { q, scale, sums, scaled: sums.map(|sum| sum as f32 * scale) }
    }
}

impl Quantized {
    /// `K` is a multiple of this.
    pub const BLOCK: usize = BLOCK;

    /// Quantises rows `[T][K]` on all threads.
    ///
    /// # Panics
    /// When `x` is not whole rows of `k`, or `k` is no multiple of 32.
    pub fn new(pool: &Pool, x: &[f32], k: usize) -> Quantized {
        let mut rows = Quantized::default();
        rows.fill(pool, x, k);
        rows
    }

    /// Quantises other rows `[T][K]`, into the same memory where it suffices.
    ///
    /// # Panics
    /// When `x` is not whole rows of `k`, or `k` is no multiple of 32.
    pub fn fill(&mut self, pool: &Pool, x: &[f32], k: usize) {
        self.fill_on(Isa::best(), pool, x, k);
    }

    /// Has rows `[T][K]` of `x` made by `make`, which takes the number of the first row and whole
    /// rows, and quantises each run of them while it is near the processor.
    ///
    /// # Panics
    /// As for [`fill`](Self::fill).
    pub fn fill_made(
        &mut self,
        pool: &Pool,
        x: &mut [f32],
        k: usize,
        make: impl Fn(usize, &mut [f32]) + Sync,
    ) {
        let blocks = self.resize(x.len(), k);
        pool.rows(x, k, |first, x| {
            make(first, x);
            let start = first * k / BLOCK;
            // SAFETY: the task of a run of rows alone takes the blocks of these rows.
            #[expect(unsafe_code, reason = "runs of rows do not overlap")]
            let blocks = unsafe { blocks.part(start..start + x.len() / BLOCK) };
            quantize_on(Isa::best(), x, blocks);
        });
    }

    /// Room for `len` activations in rows of `k`.
    fn resize(&mut self, len: usize, k: usize) -> Disjoint<'_, Scaled> {
        assert!(k.is_multiple_of(BLOCK), "rows of {k} are no blocks of {BLOCK}");
        assert!(len.is_multiple_of(k.max(1)), "whole rows of {k}");
        self.k = k;
        self.blocks.resize(len / BLOCK, Scaled::ZERO);
        Disjoint::new(&mut self.blocks)
    }

    pub(crate) fn on(isa: Isa, pool: &Pool, x: &[f32], k: usize) -> Quantized {
        let mut rows = Quantized::default();
        rows.fill_on(isa, pool, x, k);
        rows
    }

    fn fill_on(&mut self, isa: Isa, pool: &Pool, x: &[f32], k: usize) {
        let count = x.len() / BLOCK;
        let blocks = self.resize(x.len(), k);
        let run = count.div_ceil(4 * pool.threads()).max(TASK);
        pool.run(count.div_ceil(run), &|i| {
            let (start, end) = (i * run, count.min((i + 1) * run));
            // SAFETY: task `i` alone takes the run of blocks that begins at block `i * run`.
            #[expect(unsafe_code, reason = "runs of blocks do not overlap")]
            let blocks = unsafe { blocks.part(start..end) };
            quantize_on(isa, &x[start * BLOCK..end * BLOCK], blocks);
        });
    }

    /// T.
    pub fn rows(&self) -> usize {
        self.blocks.len() * BLOCK / self.k.max(1)
    }

    /// K.
    pub fn k(&self) -> usize {
        self.k
    }

    #[inline(always)]
    pub(crate) fn row(&self, t: usize) -> Row<'_> {
        let blocks = self.k / BLOCK;
        &self.blocks[t * blocks..][..blocks]
    }
}

dispatched! { pub(crate) fn quantize_on(x: &[f32], blocks: &mut [Scaled]) = quantize; }

#[inline(always)]
fn quantize(_isa: Isa, x: &[f32], blocks: &mut [Scaled]) {
    for (x, block) in x.as_chunks().0.iter().zip(blocks) {
        *block = quantize_block(x);
    }
}

#[inline(always)]
fn quantize_block(x: &[f32; BLOCK]) -> Scaled {
    let max = tree(fold(x, 0.0, |max, x| larger(max, x.abs())), larger);
    let inverse = if max > 0.0 { 127.0 / max } else { 0.0 };
    let mut q = [0; BLOCK];
    for (q, &x) in q.iter_mut().zip(x) {
        *q = nearest(x * inverse);
    }
    Scaled::new(q, max / 127.0)
}

/// The nearest integer, halves to even, of a number that is clamped to `-127..=127`; 0 for NaN.
///
/// Adding 1.5 * 2^23 leaves the integer in the low bits of the sum, rounded as every sum is.
#[inline(always)]
fn nearest(x: f32) -> i8 {
    const SHIFT: f32 = 12_582_912.0;
    let bounded = if x > 127.0 { 127.0 } else { x };
    let bounded = if bounded < -127.0 { -127.0 } else { bounded };
    let bits = (bounded + SHIFT).to_bits().wrapping_sub(SHIFT.to_bits());
    bits as i8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::{bits, isas, noise, pool};

    #[test]
    fn halves_go_to_even_and_everything_stays_within_127() {
        let cases = [(0.5, 0), (1.5, 2), (-0.5, 0), (-2.5, -2), (126.6, 127), (1e9, 127)];
        for (x, want) in cases {
            assert_eq!(nearest(x), want, "{x}");
            assert_eq!(nearest(-x), -want, "{x}");
        }
        assert_eq!((nearest(f32::INFINITY), nearest(f32::NAN)), (127, 0));
    }

    #[test]
    fn every_instantiation_quantises_to_the_same_bits() {
        let (t, k) = (3, 96);
        let x: Vec<f32> = noise(1, t * k).iter().map(|x| x * x * x * 100.0).collect();
        let want = Quantized::on(Isa::PLAIN, &pool(1), &x, k);
        let scales = |q: &Quantized| -> Vec<u32> {
            let each = |b: &Scaled| [b.scale, b.scaled[0], b.scaled[1], b.scaled[2]];
            bits(&q.blocks.iter().flat_map(each).collect::<Vec<_>>())
        };
        for isa in isas() {
            let got = Quantized::on(isa, &pool(2), &x, k);
            assert_eq!((&got.blocks, scales(&got)), (&want.blocks, scales(&want)), "{isa:?}");
        }
        for (x, block) in x.chunks(BLOCK).zip(&want.blocks) {
            for (&x, &q) in x.iter().zip(&block.q) {
                let error = (x - f32::from(q) * block.scale).abs();
                assert!(error <= 0.5001 * block.scale, "{x} as {q} * {}", block.scale);
            }
        }
    }

    #[test]
    fn rows_made_and_quantised_in_one_pass_have_the_bits_of_two() {
        let (t, k) = (7, 96);
        let x = noise(1, t * k);
        for pool in [pool(1), pool(3)] {
            let (mut made, mut rows) = (vec![f32::NAN; t * k], Quantized::default());
            rows.fill_made(&pool, &mut made, k, |first, rows| {
                rows.copy_from_slice(&x[first * k..][..rows.len()]);
            });
            assert_eq!((bits(&made), rows.blocks), (bits(&x), Quantized::new(&pool, &x, k).blocks));
        }
    }

    #[test]
    fn a_block_of_zeros_is_zeros() {
        let zeros = Quantized::new(&pool(1), &[0.0; 32], 32);
        assert_eq!(zeros.blocks, [Scaled::ZERO]);
    }
}
