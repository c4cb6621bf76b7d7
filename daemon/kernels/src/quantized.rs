//! Rows of activations as 8-bit integers: the left side of the `fast` numerics' products.
//!
//! Every 32 consecutive values of a row share a scale `max |x| / 127`; a value becomes the nearest
//! integer to `x * (127 / max |x|)`, halves to even. What a row becomes depends on that row alone.

use crate::code::{BLOCK, STEPS};
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
    q: Vec<i8>,
    blocks: Vec<Scaled>,
}

/// What a block's integers mean, and their sums, which minima and zero points are multiplied with.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Scaled {
    /// `x` is about `q * scale`.
    pub(crate) scale: f32,
    /// The sums of the integers of each [`Piece`].
    sums: [i32; 4],
    /// The same, scaled.
    scaled: [f32; 4],
}

/// A part of a block that shares a scale of the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    First,
    Second,
    Whole,
}

impl Piece {
    /// The piece of so many steps that begins at `step`.
    #[inline(always)]
    pub(crate) fn at(step: usize, steps: usize) -> Piece {
        match (steps < STEPS, step % STEPS) {
            (false, _) => Piece::Whole,
            (true, 0) => Piece::First,
            (true, _) => Piece::Second,
        }
    }
}

impl Scaled {
    fn new(scale: f32, [first, second]: [i32; 2]) -> Scaled {
        let sums = [first, second, first + second, 0];
        Scaled { scale, sums, scaled: sums.map(|sum| sum as f32 * scale) }
    }

    /// The sum of the integers of a piece.
    #[inline(always)]
    pub(crate) fn sum(&self, piece: Piece) -> i32 {
        self.sums[piece as usize]
    }

    /// The same, scaled.
    #[inline(always)]
    pub(crate) fn scaled_sum(&self, piece: Piece) -> f32 {
        self.scaled[piece as usize]
    }
}

/// One row.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Row<'a> {
    pub(crate) q: &'a [i8],
    pub(crate) blocks: &'a [Scaled],
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

    pub(crate) fn on(isa: Isa, pool: &Pool, x: &[f32], k: usize) -> Quantized {
        let mut rows = Quantized::default();
        rows.fill_on(isa, pool, x, k);
        rows
    }

    fn fill_on(&mut self, isa: Isa, pool: &Pool, x: &[f32], k: usize) {
        self.resize(x.len() / k.max(1), k);
        assert_eq!(x.len(), self.q.len(), "whole rows of {k}");
        let blocks = self.blocks.len();
        let run = blocks.div_ceil(4 * pool.threads()).max(TASK);
        let (q, scales) = (Disjoint::new(&mut self.q), Disjoint::new(&mut self.blocks));
        pool.run(blocks.div_ceil(run), &|i| {
            let (start, end) = (i * run, blocks.min((i + 1) * run));
            // SAFETY: task `i` alone takes the run of blocks that begins at block `i * run`.
            #[expect(unsafe_code, reason = "runs of blocks do not overlap")]
            let (q, scales) =
                unsafe { (q.part(start * BLOCK..end * BLOCK), scales.part(start..end)) };
            quantize_on(isa, &x[start * BLOCK..end * BLOCK], q, scales);
        });
    }

    fn resize(&mut self, t: usize, k: usize) {
        assert!(k.is_multiple_of(BLOCK), "rows of {k} are no blocks of {BLOCK}");
        self.k = k;
        self.q.resize(t * k, 0);
        self.blocks.resize(t * k / BLOCK, Scaled::default());
    }

    /// T.
    pub fn rows(&self) -> usize {
        self.q.len() / self.k.max(1)
    }

    /// K.
    pub fn k(&self) -> usize {
        self.k
    }

    #[inline(always)]
    pub(crate) fn row(&self, t: usize) -> Row<'_> {
        let blocks = self.k / BLOCK;
        Row { q: &self.q[t * self.k..][..self.k], blocks: &self.blocks[t * blocks..][..blocks] }
    }
}

dispatched! {
    pub(crate) fn quantize_on(x: &[f32], q: &mut [i8], blocks: &mut [Scaled]) = quantize;
}

#[inline(always)]
fn quantize(_isa: Isa, x: &[f32], q: &mut [i8], blocks: &mut [Scaled]) {
    let (x, q) = (x.as_chunks::<BLOCK>().0, q.as_chunks_mut::<BLOCK>().0);
    for ((x, q), block) in x.iter().zip(q).zip(blocks) {
        *block = quantize_block(x, q);
    }
}

#[inline(always)]
fn quantize_block(x: &[f32; BLOCK], q: &mut [i8; BLOCK]) -> Scaled {
    let max = tree(fold(x, 0.0, |max, x| larger(max, x.abs())), larger);
    let inverse = if max > 0.0 { 127.0 / max } else { 0.0 };
    for (q, &x) in q.iter_mut().zip(x) {
        *q = nearest(x * inverse);
    }
    let half = |i: usize| q[i * 16..(i + 1) * 16].iter().map(|&q| i32::from(q)).sum::<i32>();
    Scaled::new(max / 127.0, [half(0), half(1)])
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
            assert_eq!((&got.q, scales(&got)), (&want.q, scales(&want)), "{isa:?}");
        }
        for (i, (&x, &q)) in x.iter().zip(&want.q).enumerate() {
            let scale = want.blocks[i / BLOCK].scale;
            assert!((x - f32::from(q) * scale).abs() <= 0.5001 * scale, "{x} as {q} * {scale}");
        }
    }

    #[test]
    fn a_block_of_zeros_is_zeros() {
        let zeros = Quantized::new(&pool(1), &[0.0; 32], 32);
        assert_eq!((zeros.q, zeros.blocks[0].scale), (vec![0; 32], 0.0));
    }
}
