//! One block against a few queries: the kernels of attention.

use std::ops::Range;

use crate::attend::fold::{Part, States};
use crate::attend::{BLOCK, Element, Shape};
use crate::convert::{BF16, F16, Narrow};
use crate::elementary::exp_nonpositive;
use crate::isa::{Isa, dispatched};
use crate::lanes::{Columns, LANES, Lanes, larger, strip, strip_pair, sum, tree};

/// The keys and values of one kv head in one block, as the kernels read them.
pub(super) trait View {
    /// Sixteen tokens of every key channel, or sixteen channels of some tokens.
    type Column<'c>: Columns
    where
        Self: 'c;

    /// How many times sixteen channels make a value.
    fn width(&self) -> usize;

    /// The first sixteen tokens' keys, and the others'.
    fn keys(&self) -> [Self::Column<'_>; 2];

    /// The `c`-th sixteen channels of some tokens' values.
    fn values(&self, c: usize, tokens: Range<usize>) -> Self::Column<'_>;
}

/// A block as it is stored, for the few queries that read it once. Values are whole multiples of
/// sixteen channels.
pub(super) struct Stored<'a, E> {
    k: &'a [[[E; LANES]; 2]],
    v: &'a [[E; LANES]],
}

/// Every `step`-th of some stored elements.
pub(super) struct Strided<'a, E> {
    elements: &'a [[E; LANES]],
    step: usize,
    len: usize,
}

impl<'a, E: Narrow> Stored<'a, E> {
    /// Keys `[k_dim][32]` and values `[32][v_dim]`.
    pub(super) fn new(k: &'a [u8], v: &'a [u8]) -> Self {
        Self { k: bytemuck::cast_slice(k), v: bytemuck::cast_slice(v) }
    }
}

impl<E: Narrow> View for Stored<'_, E> {
    type Column<'c>
        = Strided<'c, E>
    where
        Self: 'c;

    #[inline(always)]
    fn width(&self) -> usize {
        self.v.len() / BLOCK
    }

    #[inline(always)]
    fn keys(&self) -> [Strided<'_, E>; 2] {
        let (elements, len) = (self.k.as_flattened(), self.k.len());
        [0, 1].map(|half| Strided { elements: &elements[half..], step: 2, len })
    }

    #[inline(always)]
    fn values(&self, c: usize, tokens: Range<usize>) -> Strided<'_, E> {
        let step = self.width();
        Strided { elements: &self.v[tokens.start * step + c..], step, len: tokens.len() }
    }
}

impl<E: Narrow> Columns for Strided<'_, E> {
    #[inline(always)]
    fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    fn at(&self, isa: Isa, k: usize) -> Lanes {
        E::widen(isa, &self.elements[k * self.step])
    }
}

/// A block widened, for many queries.
#[derive(Default)]
pub(super) struct Wide {
    element: Element,
    v_dim: usize,
    /// `[2][k_dim]` of sixteen tokens.
    keys: Vec<Lanes>,
    /// `[width][32]` of sixteen channels; channels beyond `v_dim` are zero.
    values: Vec<Lanes>,
}

impl View for Wide {
    type Column<'c> = &'c [Lanes];

    #[inline(always)]
    fn width(&self) -> usize {
        self.v_dim.div_ceil(LANES)
    }

    #[inline(always)]
    fn keys(&self) -> [&[Lanes]; 2] {
        let (low, high) = self.keys.split_at(self.keys.len() / 2);
        [low, high]
    }

    #[inline(always)]
    fn values(&self, c: usize, tokens: Range<usize>) -> &[Lanes] {
        &self.values[c * BLOCK..(c + 1) * BLOCK][tokens]
    }
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
    pub(super) fn score_on[V: View, const R: usize][V, R](
        view: &V, queries: &[&[f32]; R], scale: f32, scores: &mut [[Lanes; 2]; R],
    ) = score;
}
dispatched! {
    pub(super) fn soften_on[const R: usize][R](
        p: &mut [[Lanes; 2]; R], visible: &[Range<usize>; R], m: &mut [f32; R], l: &mut [f32; R],
    ) -> [f32; R] = soften;
}
dispatched! {
    pub(super) fn weigh_on[V: View, const R: usize][V, R](
        view: &V, tokens: Range<usize>, alpha: &[f32; R], p: &[[Lanes; 2]], acc: &mut [Lanes],
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

/// Queries so few that the processor waits for one multiply-add of sixteen lanes of each to begin
/// the next. Three by thirty-two lanes just fit into sixteen registers of eight, but not where their
/// sums are read and written, too; thirty-two registers of sixteen hold any strip.
const FEW: usize = 3;

/// Scores of `R` queries against the whole block, seen or not: lanes do not mix.
#[inline(always)]
fn score<V: View, const R: usize>(
    isa: Isa,
    view: &V,
    queries: &[&[f32]; R],
    scale: f32,
    scores: &mut [[Lanes; 2]; R],
) {
    *scores = [[[0.0; LANES]; 2]; R];
    let keys = view.keys();
    if R <= FEW || isa.is_roomy() {
        strip_pair(isa, scores, &keys, queries);
    } else {
        for (half, keys) in keys.iter().enumerate() {
            let mut dots = [[0.0; LANES]; R];
            strip(isa, &mut dots, keys, queries);
            for r in 0..R {
                scores[r][half] = dots[r];
            }
        }
    }
    for r in 0..R {
        for half in 0..2 {
            for i in 0..LANES {
                scores[r][half][i] *= scale;
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
    // One lane for each query: all their factors are one vector's work.
    let (mut largest, mut alpha) = ([0.0; LANES], [0.0; LANES]);
    for r in 0..R {
        if visible[r].len() < BLOCK {
            let p = p[r].as_flattened_mut();
            p[..visible[r].start].fill(f32::NEG_INFINITY);
            p[visible[r].end..].fill(f32::NEG_INFINITY);
        }
    }
    for r in 0..R {
        let mut lanes = [0.0; LANES];
        for i in 0..LANES {
            lanes[i] = larger(p[r][0][i], p[r][1][i]);
        }
        largest[r] = larger(m[r], tree(lanes, larger));
        alpha[r] = m[r];
    }
    for i in 0..LANES {
        alpha[i] = exp_nonpositive(alpha[i] - largest[i]);
    }
    for r in 0..R {
        for p in p[r].as_flattened_mut() {
            *p = exp_nonpositive(*p - largest[r]);
        }
    }
    for r in 0..R {
        let mut lanes = [0.0; LANES];
        for i in 0..LANES {
            lanes[i] = p[r][0][i] + p[r][1][i];
        }
        l[r] = l[r].mul_add(alpha[r], sum(lanes));
        m[r] = largest[r];
    }
    std::array::from_fn(|r| alpha[r])
}

/// `acc[r] = acc[r] alpha[r] + sum(p[r][t] v[t])` over ascending `t` in `tokens`.
#[inline(always)]
fn weigh<V: View, const R: usize>(
    isa: Isa,
    view: &V,
    tokens: Range<usize>,
    alpha: &[f32; R],
    p: &[[Lanes; 2]],
    acc: &mut [Lanes],
) {
    let width = view.width();
    let mut weights: [&[f32]; R] = [&[]; R];
    for r in 0..R {
        weights[r] = &p[r].as_flattened()[tokens.clone()];
    }
    let pairs = if R < FEW || isa.is_roomy() { width / 2 } else { 0 };
    for c in (0..pairs).map(|pair| 2 * pair) {
        let values = [view.values(c, tokens.clone()), view.values(c + 1, tokens.clone())];
        let mut sums = [[[0.0; LANES]; 2]; R];
        for r in 0..R {
            for half in 0..2 {
                for i in 0..LANES {
                    sums[r][half][i] = acc[r * width + c + half][i] * alpha[r];
                }
            }
        }
        strip_pair(isa, &mut sums, &values, &weights);
        for r in 0..R {
            for half in 0..2 {
                acc[r * width + c + half] = sums[r][half];
            }
        }
    }
    for c in 2 * pairs..width {
        let mut sums = [[0.0; LANES]; R];
        for r in 0..R {
            for i in 0..LANES {
                sums[r][i] = acc[r * width + c][i] * alpha[r];
            }
        }
        strip(isa, &mut sums, &view.values(c, tokens.clone()), &weights);
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
        let (a, b) = (exp_nonpositive(total.m[j] - m), exp_nonpositive(chunk.m[j] - m));
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
