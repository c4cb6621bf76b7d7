//! How the weights of one tile reach the multiply-adds: straight from the packed form for one or
//! two rows, through a panel widened once for more.

use std::ops::Range;

use crate::convert::Narrow;
use crate::isa::{Isa, dispatched};
use crate::lanes::{Columns, LANES, Lanes, strip};
use crate::matrix::{Format, Matrix};

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
    group: usize,
    q: &'a [[i8; LANES]],
    scales: &'a [Lanes],
    mins: &'a [Lanes],
}

impl<'a> Packed<'a> for Affine<'a> {
    fn new(matrix: &'a Matrix, tile: usize, run: Range<usize>) -> Self {
        let Format::Affine { group, .. } = matrix.format() else {
            unreachable!("an affine run of {matrix:?}");
        };
        let (scales, mins) = matrix.tile_groups(tile);
        let groups = run.start / group..run.end / group;
        let mins = mins.get(groups.clone()).unwrap_or(&[]);
        Affine { group, q: &matrix.tile(tile)[run], scales: &scales[groups], mins }
    }

    fn multiply<const R: usize>(self, isa: Isa, sums: &mut [Lanes; R], x: &[&[f32]; R]) {
        multiply_affine_on(isa, sums, self, x);
    }

    fn panel<'s>(self, isa: Isa, scratch: &'s mut Vec<Lanes>) -> &'s [Lanes]
    where
        'a: 's,
    {
        scratch.resize(self.q.len(), [0.0; LANES]);
        widen_affine_on(isa, self, scratch);
        scratch
    }
}

impl<'a> Affine<'a> {
    /// The part of the run that is its group `i`.
    #[inline(always)]
    fn group(&self, i: usize) -> Group<'a> {
        let min = if i < self.mins.len() { self.mins[i] } else { [0.0; LANES] };
        Group { q: &self.q[i * self.group..][..self.group], scale: self.scales[i], min }
    }
}

/// The weights of one group of `k`.
struct Group<'a> {
    q: &'a [[i8; LANES]],
    scale: Lanes,
    min: Lanes,
}

impl Columns for Group<'_> {
    #[inline(always)]
    fn len(&self) -> usize {
        self.q.len()
    }

    #[inline(always)]
    fn at(&self, _isa: Isa, k: usize) -> Lanes {
        let mut weights = [0.0; LANES];
        for i in 0..LANES {
            weights[i] = f32::from(self.q[k][i]).mul_add(self.scale[i], self.min[i]);
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
    for i in 0..weights.scales.len() {
        strip(isa, sums, &weights.group(i), &x);
        for x in &mut x {
            *x = &x[weights.group..];
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
    for (i, to) in to.chunks_exact_mut(weights.group).enumerate() {
        widen(isa, &weights.group(i), to);
    }
}
