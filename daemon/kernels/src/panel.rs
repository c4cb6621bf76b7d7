//! How the weights of one tile reach the multiply-adds: straight from the packed form for one or
//! two rows, through a panel widened once for more.

use std::ops::Range;

use crate::code::{BLOCK, Code};
use crate::convert::Narrow;
use crate::isa::{Isa, dispatched};
use crate::lanes::{Columns, LANES, Lanes, strip};
use crate::matrix::{Format, Groups, Matrix};

/// The longest run of `k` in a panel: 16 KiB of widened weights. A multiple of every group.
pub(crate) const RUN: usize = 256;

/// A run of the weights of one tile, in the form it is kept in.
pub(crate) trait Packed<'a>: Copy {
    /// The weights of a tile for a run of `k` that starts at a multiple of [`RUN`].
    fn new(matrix: &'a Matrix, tile: usize, run: Range<usize>) -> Self;

    /// Adds the products of the run to the sums of `R` rows, over ascending `k`.
    fn multiply<const R: usize>(self, isa: Isa, sums: &mut [Lanes; R], x: &[&[f32]; R]);

    /// The run widened, in the scratch if need be.
    fn panel<'s>(self, isa: Isa, scratch: &'s mut Vec<Lanes>) -> &'s [Lanes]
    where
        'a: 's;
}

/// Weights kept as f32, f16 or bf16.
#[derive(Clone, Copy)]
pub(crate) struct Plain<'a, E> {
    weights: &'a [[E; LANES]],
}

impl<'a, E: Narrow> Packed<'a> for Plain<'a, E> {
    fn new(matrix: &'a Matrix, tile: usize, run: Range<usize>) -> Self {
        Plain { weights: &matrix.tile(tile)[run] }
    }

    fn multiply<const R: usize>(self, isa: Isa, sums: &mut [Lanes; R], x: &[&[f32]; R]) {
        multiply_on(isa, sums, &self, x);
    }

    fn panel<'s>(self, isa: Isa, scratch: &'s mut Vec<Lanes>) -> &'s [Lanes]
    where
        'a: 's,
    {
        if let Some(panel) = E::wide(self.weights) {
            return panel;
        }
        scratch.resize(self.weights.len(), [0.0; LANES]);
        widen_on(isa, &self, scratch);
        scratch
    }
}

impl<E: Narrow> Columns for Plain<'_, E> {
    #[inline(always)]
    fn len(&self) -> usize {
        self.weights.len()
    }

    #[inline(always)]
    fn at(&self, isa: Isa, k: usize) -> Lanes {
        E::widen(isa, &self.weights[k])
    }
}

/// Quantised weights with a scale, and a minimum or none, per group of `k`.
#[derive(Clone, Copy)]
pub(crate) struct Affine<'a> {
    code: Code,
    group: usize,
    codes: &'a [u8],
    groups: Groups<'a>,
}

impl<'a> Packed<'a> for Affine<'a> {
    fn new(matrix: &'a Matrix, tile: usize, run: Range<usize>) -> Self {
        let Format::Affine { code, group, .. } = matrix.format() else {
            unreachable!("an affine run of {matrix:?}");
        };
        let groups = matrix.tile_groups(tile).part(run.start / group..run.end / group);
        let bytes = code.block_bytes();
        let codes =
            &matrix.tile_codes(tile, code)[run.start / BLOCK * bytes..run.end / BLOCK * bytes];
        Affine { code, group, codes, groups }
    }

    fn multiply<const R: usize>(self, isa: Isa, sums: &mut [Lanes; R], x: &[&[f32]; R]) {
        multiply_affine_on(isa, sums, self, x);
    }

    fn panel<'s>(self, isa: Isa, scratch: &'s mut Vec<Lanes>) -> &'s [Lanes]
    where
        'a: 's,
    {
        scratch.resize(self.groups.len() * self.group, [0.0; LANES]);
        widen_affine_on(isa, self, scratch);
        scratch
    }
}

impl<'a> Affine<'a> {
    /// The piece of the run that is number `i` of those that lie in one block and one group.
    #[inline(always)]
    fn piece(&self, isa: Isa, i: usize) -> Piece<'a> {
        let (k, bytes) = (i * self.piece_len(), self.code.block_bytes());
        let group = k / self.group;
        let min = self.groups.mins(isa, group).unwrap_or([0.0; LANES]);
        let codes = &self.codes[k / BLOCK * bytes..][..bytes];
        let (first, len) = (k % BLOCK, self.piece_len());
        Piece { code: self.code, codes, first, len, scale: self.groups.scales(isa, group), min }
    }

    #[inline(always)]
    fn pieces(&self) -> usize {
        self.groups.len() * self.group / self.piece_len()
    }

    #[inline(always)]
    fn piece_len(&self) -> usize {
        self.group.min(BLOCK)
    }
}

/// Weights of one block that share a scale.
struct Piece<'a> {
    code: Code,
    codes: &'a [u8],
    first: usize,
    len: usize,
    scale: Lanes,
    min: Lanes,
}

impl Columns for Piece<'_> {
    #[inline(always)]
    fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    fn at(&self, _isa: Isa, k: usize) -> Lanes {
        let mut weights = self.code.column(self.codes, self.first + k);
        for i in 0..LANES {
            weights[i] = weights[i].mul_add(self.scale[i], self.min[i]);
        }
        weights
    }
}

dispatched! {
    pub(crate) fn multiply_on[C: Columns, const R: usize][C, R](
        sums: &mut [Lanes; R], weights: &C, x: &[&[f32]; R],
    ) = strip;
}
dispatched! {
    fn multiply_affine_on[const R: usize][R](
        sums: &mut [Lanes; R], weights: Affine<'_>, x: &[&[f32]; R],
    ) = strip_affine;
}
dispatched! { fn widen_on[C: Columns][C](weights: &C, to: &mut [Lanes]) = widen; }
dispatched! { fn widen_affine_on(weights: Affine<'_>, to: &mut [Lanes]) = widen_affine; }

#[inline(always)]
fn strip_affine<const R: usize>(
    isa: Isa,
    sums: &mut [Lanes; R],
    weights: Affine<'_>,
    x: &[&[f32]; R],
) {
    let mut x = *x;
    for i in 0..weights.pieces() {
        strip(isa, sums, &weights.piece(isa, i), &x);
        for x in &mut x {
            *x = &x[weights.piece_len()..];
        }
    }
}

/// Writes weights as they enter the products.
#[inline(always)]
fn widen<C: Columns>(isa: Isa, weights: &C, to: &mut [Lanes]) {
    for (k, to) in to.iter_mut().enumerate() {
        *to = weights.at(isa, k);
    }
}

#[inline(always)]
fn widen_affine(isa: Isa, weights: Affine<'_>, to: &mut [Lanes]) {
    for (i, to) in to.chunks_exact_mut(weights.piece_len()).enumerate() {
        widen(isa, &weights.piece(isa, i), to);
    }
}
