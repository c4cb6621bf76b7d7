//! One block against a few queries: the kernels of attention.

use std::ops::Range;

use crate::attend::fold::{Part, States};
use crate::attend::{BLOCK, Element, Shape};
use crate::convert::{BF16, F16, Narrow};
use crate::elementary::exp;
use crate::isa::{Isa, dispatched};
use crate::lanes::{LANES, Lanes, larger, strip, sum, tree};

/// The keys and values of one kv head in one block, widened.
#[derive(Default)]
pub(super) struct Wide {
    element: Element,
    v_dim: usize,
    /// `[2][k_dim]` of sixteen tokens.
    keys: Vec<Lanes>,
    /// `[width][32]` of sixteen channels; channels beyond `v_dim` are zero.
    values: Vec<Lanes>,
}

impl Wide {
    /// Makes room for blocks of `shape`.
    pub(super) fn fit(&mut self, shape: &Shape) {
        if self.v_dim != shape.v_dim {
            self.values.clear();
        }
        (self.element, self.v_dim) = (shape.element, shape.v_dim);
        self.keys.resize(2 * shape.k_dim, [0.0; LANES]);
        self.values.resize(shape.v_dim.div_ceil(LANES) * BLOCK, [0.0; LANES]);
    }

    pub(super) fn v_dim(&self) -> usize {
        self.v_dim
    }

    /// How many times sixteen channels make a value.
    pub(super) fn width(&self) -> usize {
        self.v_dim.div_ceil(LANES)
    }

    /// Widens all keys `[k_dim][32]` and the first `tokens` values `[32][v_dim]`.
    pub(super) fn load(&mut self, isa: Isa, k: &[u8], v: &[u8], tokens: usize) {
        match self.element {
            Element::F32 => widen_on::<f32>(isa, self, k, v, tokens),
            Element::F16 => widen_on::<F16>(isa, self, k, v, tokens),
            Element::BF16 => widen_on::<BF16>(isa, self, k, v, tokens),
        }
    }
}

dispatched! {
    fn widen_on[E: Narrow][E](wide: &mut Wide, k: &[u8], v: &[u8], tokens: usize) = widen;
}
dispatched! {
    pub(super) fn score_on[const R: usize][R](
        wide: &Wide, queries: &[&[f32]; R], scale: f32, scores: &mut [[Lanes; 2]],
    ) = score;
}
dispatched! {
    pub(super) fn soften_on[const R: usize][R](
        p: &mut [[Lanes; 2]; R], visible: &[Range<usize>; R], m: &mut [f32; R], l: &mut [f32; R],
    ) -> [f32; R] = soften;
}
dispatched! {
    pub(super) fn weigh_on[const R: usize][R](
        wide: &Wide, tokens: Range<usize>, alpha: &[f32; R], p: &[[Lanes; 2]], acc: &mut [Lanes],
    ) = weigh;
}
dispatched! {
    pub(super) fn merge_on(queries: Range<usize>, chunk: &Part<'_>, total: &mut States) = merge;
}

#[inline(always)]
fn widen<E: Narrow>(isa: Isa, wide: &mut Wide, k: &[u8], v: &[u8], tokens: usize) {
    let k_dim = wide.keys.len() / 2;
    let (low, high) = wide.keys.split_at_mut(k_dim);
    for ((row, low), high) in
        bytemuck::cast_slice::<u8, [[E; LANES]; 2]>(k).iter().zip(low).zip(high)
    {
        *low = E::widen(isa, &row[0]);
        *high = E::widen(isa, &row[1]);
    }
    let rows = bytemuck::cast_slice::<u8, E>(v).chunks_exact(wide.v_dim);
    for (t, row) in rows.take(tokens).enumerate() {
        let (whole, rest) = row.as_chunks::<LANES>();
        for (c, row) in whole.iter().enumerate() {
            wide.values[c * BLOCK + t] = E::widen(isa, row);
        }
        for (i, x) in rest.iter().enumerate() {
            wide.values[whole.len() * BLOCK + t][i] = x.value();
        }
    }
}

/// Scores of `R` queries against the whole block, seen or not: lanes do not mix.
#[inline(always)]
fn score<const R: usize>(
    isa: Isa,
    wide: &Wide,
    queries: &[&[f32]; R],
    scale: f32,
    scores: &mut [[Lanes; 2]],
) {
    let (low, high) = wide.keys.split_at(wide.keys.len() / 2);
    for (half, keys) in [low, high].iter().enumerate() {
        let mut dots = [[0.0; LANES]; R];
        strip(isa, &mut dots, keys, queries);
        for r in 0..R {
            for i in 0..LANES {
                scores[r][half][i] = dots[r][i] * scale;
            }
        }
    }
}

/// Turns the scores of `R` queries into probabilities, 0 where they do not see, and moves their
/// `(m, l)`. Returns what their sums so far are to be multiplied with.
#[inline(always)]
fn soften<const R: usize>(
    _isa: Isa,
    p: &mut [[Lanes; 2]; R],
    visible: &[Range<usize>; R],
    m: &mut [f32; R],
    l: &mut [f32; R],
) -> [f32; R] {
    let mut largest = [0.0; R];
    for r in 0..R {
        if visible[r].len() < BLOCK {
            let p = p[r].as_flattened_mut();
            p[..visible[r].start].fill(f32::NEG_INFINITY);
            p[visible[r].end..].fill(f32::NEG_INFINITY);
        }
        let mut lanes = [0.0; LANES];
        for i in 0..LANES {
            lanes[i] = larger(p[r][0][i], p[r][1][i]);
        }
        largest[r] = larger(m[r], tree(lanes, larger));
    }
    for r in 0..R {
        for p in p[r].as_flattened_mut() {
            *p = exp(*p - largest[r]);
        }
    }
    let mut alpha = [0.0; R];
    for r in 0..R {
        alpha[r] = exp(m[r] - largest[r]);
        let mut lanes = [0.0; LANES];
        for i in 0..LANES {
            lanes[i] = p[r][0][i] + p[r][1][i];
        }
        l[r] = l[r].mul_add(alpha[r], sum(lanes));
        m[r] = largest[r];
    }
    alpha
}

/// `acc[r] = acc[r] alpha[r] + sum(p[r][t] v[t])` over ascending `t` in `tokens`.
#[inline(always)]
fn weigh<const R: usize>(
    isa: Isa,
    wide: &Wide,
    tokens: Range<usize>,
    alpha: &[f32; R],
    p: &[[Lanes; 2]],
    acc: &mut [Lanes],
) {
    let width = wide.width();
    let mut weights: [&[f32]; R] = [&[]; R];
    for r in 0..R {
        weights[r] = &p[r].as_flattened()[tokens.clone()];
    }
    for (c, values) in wide.values.chunks_exact(BLOCK).enumerate() {
        let mut sums = [[0.0; LANES]; R];
        for r in 0..R {
            for i in 0..LANES {
                sums[r][i] = acc[r * width + c][i] * alpha[r];
            }
        }
        strip(isa, &mut sums, &&values[tokens.clone()], &weights);
        for r in 0..R {
            acc[r * width + c] = sums[r];
        }
    }
}

/// Merges a chunk's states into the totals of some queries.
#[inline(always)]
fn merge(_isa: Isa, queries: Range<usize>, chunk: &Part<'_>, total: &mut States) {
    let width = total.acc.len() / total.m.len();
    for j in queries {
        let m = larger(total.m[j], chunk.m[j]);
        let (a, b) = (exp(total.m[j] - m), exp(chunk.m[j] - m));
        total.m[j] = m;
        total.l[j] = total.l[j].mul_add(a, chunk.l[j] * b);
        let of_query = j * width..(j + 1) * width;
        for (sum, acc) in total.acc[of_query.clone()].iter_mut().zip(&chunk.acc[of_query]) {
            for i in 0..LANES {
                sum[i] = sum[i].mul_add(a, acc[i] * b);
            }
        }
    }
}
