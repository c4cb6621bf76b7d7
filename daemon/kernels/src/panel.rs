//! How the weights of one tile reach the multiply-adds: straight from the packed form for one or
//! two rows, through a panel widened once for more.

use std::ops::Range;

use crate::code::{BLOCK, Code, STEPS, Unpacked};
use crate::convert::{Narrow, wide_from_e4m3};
use crate::isa::{Isa, dispatched};
use crate::lanes::{Columns, LANES, Lanes, strip};
use crate::matrix::{self, Groups, Matrix, Values};

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

/// Weights in codes with a scale, and a minimum or none, per group of `k`.
#[derive(Clone, Copy)]
pub(crate) struct Coded<'a> {
    /// How the codes are read.
    how: matrix::Coded,
    codes: &'a [u8],
    groups: Groups<'a>,
}

impl<'a> Packed<'a> for Coded<'a> {
    fn new(matrix: &'a Matrix, tile: usize, run: Range<usize>) -> Self {
        let how = matrix.coded();
        let groups = matrix.tile_groups(tile).part(run.start / how.group..run.end / how.group);
        let bytes = how.code.block_bytes();
        let codes = &matrix.tile_codes(tile)[run.start / BLOCK * bytes..run.end / BLOCK * bytes];
        Coded { how, codes, groups }
    }

    fn multiply<const R: usize>(self, isa: Isa, sums: &mut [Lanes; R], x: &[&[f32]; R]) {
        match self.how.values {
            Values::Integers => multiply_coded_on::<INTEGERS, R>(isa, sums, self, x),
            Values::Entries(_) => multiply_coded_on::<ENTRIES, R>(isa, sums, self, x),
            Values::Floats => multiply_coded_on::<FLOATS, R>(isa, sums, self, x),
        }
    }

    fn panel<'s>(self, isa: Isa, scratch: &'s mut Vec<Lanes>) -> &'s [Lanes]
    where
        'a: 's,
    {
        scratch.resize(self.groups.len() * self.how.group, [0.0; LANES]);
        match self.how.values {
            Values::Integers => widen_coded_on::<INTEGERS>(isa, self, scratch),
            Values::Entries(_) => widen_coded_on::<ENTRIES>(isa, self, scratch),
            Values::Floats => widen_coded_on::<FLOATS>(isa, self, scratch),
        }
        scratch
    }
}

/// [`Values`] as constants.
const INTEGERS: u8 = 0;
const ENTRIES: u8 = 1;
const FLOATS: u8 = 2;

impl<'a> Coded<'a> {
    /// The piece of the run that is number `i` of those that lie in one block and one group. The
    /// entries of a block are looked up into `apart` when its first piece is asked for.
    #[inline(always)]
    fn piece<'s, const V: u8>(&self, isa: Isa, i: usize, apart: &'s mut Unpacked) -> Piece<'s, V>
    where
        'a: 's,
    {
        let (k, bytes) = (i * self.piece_len(), self.how.code.block_bytes());
        let group = k / self.how.group;
        let min = self.groups.mins(isa, group).unwrap_or([0.0; LANES]);
        let (mut code, mut codes) = (self.how.code, &self.codes[k / BLOCK * bytes..][..bytes]);
        if let (ENTRIES, Values::Entries(table)) = (V, self.how.values) {
            if k.is_multiple_of(BLOCK) {
                code.unpack(isa, Some(table), codes, apart);
            }
            (code, codes) = (table.code(), apart.as_flattened());
        }
        let (first, len) = (k % BLOCK, self.piece_len());
        Piece { code, codes, first, len, scale: self.groups.scales(isa, group), min }
    }

    #[inline(always)]
    fn pieces(&self) -> usize {
        self.groups.len() * self.how.group / self.piece_len()
    }

    #[inline(always)]
    fn piece_len(&self) -> usize {
        self.how.group.min(BLOCK)
    }
}

/// Weights of one block that share a scale.
struct Piece<'a, const V: u8> {
    code: Code,
    codes: &'a [u8],
    first: usize,
    len: usize,
    scale: Lanes,
    min: Lanes,
}

impl<const V: u8> Columns for Piece<'_, V> {
    #[inline(always)]
    fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    fn at(&self, _isa: Isa, k: usize) -> Lanes {
        let mut weights = match V {
            FLOATS => floats(self.code.codes(self.codes, self.first + k)),
            _ => self.code.column(self.codes, self.first + k),
        };
        for i in 0..LANES {
            weights[i] = weights[i].mul_add(self.scale[i], self.min[i]);
        }
        weights
    }
}

#[inline(always)]
fn floats(codes: [u32; LANES]) -> Lanes {
    let mut to = [0.0; LANES];
    for i in 0..LANES {
        to[i] = wide_from_e4m3(codes[i]);
    }
    to
}

dispatched! {
    pub(crate) fn multiply_on[C: Columns, const R: usize][C, R](
        sums: &mut [Lanes; R], weights: &C, x: &[&[f32]; R],
    ) = strip;
}
dispatched! {
    fn multiply_coded_on[const V: u8, const R: usize][V, R](
        sums: &mut [Lanes; R], weights: Coded<'_>, x: &[&[f32]; R],
    ) = strip_coded;
}
dispatched! { fn widen_on[C: Columns][C](weights: &C, to: &mut [Lanes]) = widen; }
dispatched! {
    fn widen_coded_on[const V: u8][V](weights: Coded<'_>, to: &mut [Lanes]) = widen_coded;
}

#[inline(always)]
fn strip_coded<const V: u8, const R: usize>(
    isa: Isa,
    sums: &mut [Lanes; R],
    weights: Coded<'_>,
    x: &[&[f32]; R],
) {
    let (mut x, mut apart) = (*x, [[0; 64]; STEPS]);
    for i in 0..weights.pieces() {
        strip(isa, sums, &weights.piece::<V>(isa, i, &mut apart), &x);
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
fn widen_coded<const V: u8>(isa: Isa, weights: Coded<'_>, to: &mut [Lanes]) {
    let mut apart = [[0; 64]; STEPS];
    for (i, to) in to.chunks_exact_mut(weights.piece_len()).enumerate() {
        widen(isa, &weights.piece::<V>(isa, i, &mut apart), to);
    }
}
