//! Attention over paged keys and values, in the one order that every run shares.
//!
//! # The order
//!
//! Keys are cut at absolute multiples of 256 into chunks, and a chunk into blocks of 32 tokens.
//! For a query at position `p`, with keys `0..=p` visible:
//!
//! * a score is `scale * sum(q[d] k[d])`, fused multiply-adds over ascending `d` from 0, then one
//!   product;
//! * a block is folded into the chunk's state `(m, l, acc)`, which starts at `(-inf, 0, 0)`:
//!   `m' = max(m, scores)`, `a = exp(m - m')`, `p[t] = exp(s[t] - m')` or 0 where `t` is not
//!   visible, `l = fma(l, a, tree(p[t] + p[t + 16]))`, `acc[d] = acc[d] a`, then fused
//!   multiply-adds of `p[t] v[t][d]` over ascending visible `t`;
//! * a chunk is merged into the running state, which starts at `(-inf, 0, 0)` too, in ascending
//!   order: `m' = max(M, m)`, `a = exp(M - m')`, `b = exp(m - m')`, `L = fma(L, a, l b)`,
//!   `A[d] = fma(A[d], a, acc[d] b)`;
//! * the result is `A[d] / L`.
//!
//! Heads and query rows are spread over tasks as is convenient: a query's bits depend on its
//! position and the blocks alone. Tokens that a query cannot see are *selected* away: their keys
//! and values may hold anything.

use std::ops::Range;

use crate::convert::{f32_from_bf16, f32_from_f16};
use crate::elementary::exp;
use crate::isa::{Isa, dispatched};
use crate::lanes::{LANES, Lanes, larger, strip, tree};
use crate::linear::even;
use crate::pool::{Disjoint, Pool};

/// Tokens of a block.
pub const BLOCK: usize = 32;

/// Blocks of a chunk: 256 tokens.
pub const CHUNK: usize = 256 / BLOCK;

/// Queries (rows times heads of a kv group) that share one widened block.
const STRIP: usize = 48;

/// Queries that pass over a panel together.
const ROWS: usize = 6;

/// How the elements of cached keys and values are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// 4 bytes.
    F32,
    /// 2 bytes.
    F16,
    /// 2 bytes.
    BF16,
}

impl Element {
    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            Element::F32 => 4,
            Element::F16 | Element::BF16 => 2,
        }
    }
}

/// The heads of an attention layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Query heads `H`, a multiple of `kv_heads`.
    pub heads: usize,
    /// Key and value heads `G`; query head `h` reads kv head `h / (H / G)`.
    pub kv_heads: usize,
    /// Channels of a query and of a key.
    pub k_dim: usize,
    /// Channels of a value and of an output.
    pub v_dim: usize,
    /// How keys and values are kept.
    pub element: Element,
    /// What scores are multiplied with, usually `1 / sqrt(k_dim)`.
    pub scale: f32,
}

impl Shape {
    /// Query heads of one kv head.
    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Bytes of one layer's keys in a block.
    pub fn k_bytes(&self) -> usize {
        self.kv_heads * self.k_dim * BLOCK * self.element.bytes()
    }

    /// Bytes of one layer's values in a block.
    pub fn v_bytes(&self) -> usize {
        self.kv_heads * self.v_dim * BLOCK * self.element.bytes()
    }
}

/// One layer's keys and values of one block, little-endian, each aligned to 4 bytes (64 is best).
#[derive(Clone, Copy, Debug)]
pub struct Block<'a> {
    /// `[G][k_dim][32]`: token-minor, so that scores need no horizontal sums.
    pub k: &'a [u8],
    /// `[G][32][v_dim]`.
    pub v: &'a [u8],
}

/// Consecutive rows of one sequence, and all its blocks.
#[derive(Clone, Debug)]
pub struct Sequence<'a> {
    /// Its rows of `q` and `out`.
    pub rows: Range<usize>,
    /// The position of the first of them.
    pub first: usize,
    /// Blocks over positions `0..first + rows.len()`; the last may be partly filled, more are
    /// ignored.
    pub blocks: &'a [Block<'a>],
}

/// Attends: `q[T][H][k_dim]` to `out[T][H][v_dim]`. The query at position `p` sees keys `0..=p`.
///
/// Rows of no sequence are left alone.
///
/// # Panics
/// When a length does not fit the shape, or the rows of two sequences overlap.
pub fn attend(pool: &Pool, shape: &Shape, seqs: &[Sequence<'_>], q: &[f32], out: &mut [f32]) {
    attend_on(Isa::best(), pool, shape, seqs, q, out);
}

pub(crate) fn attend_on(
    isa: Isa,
    pool: &Pool,
    shape: &Shape,
    seqs: &[Sequence<'_>],
    q: &[f32],
    out: &mut [f32],
) {
    check(shape, seqs, q, out);
    let strips = strips(shape, seqs);
    let call = Call { shape, seqs, q, out: Disjoint::new(out) };
    pool.run(strips.len() * shape.kv_heads, &|i| {
        strip_on(isa, &call, &strips[i / shape.kv_heads], i % shape.kv_heads);
    });
}

fn check(shape: &Shape, seqs: &[Sequence<'_>], q: &[f32], out: &[f32]) {
    assert!(shape.heads.is_multiple_of(shape.kv_heads), "H is a multiple of G: {shape:?}");
    let rows = q.len() / (shape.heads * shape.k_dim);
    assert_eq!(q.len(), rows * shape.heads * shape.k_dim, "q is [T][H][k_dim]");
    assert_eq!(out.len(), rows * shape.heads * shape.v_dim, "out is [T][H][v_dim]");
    let mut taken: Vec<_> = seqs.iter().map(|s| s.rows.clone()).filter(|r| !r.is_empty()).collect();
    taken.sort_by_key(|rows| rows.start);
    assert!(taken.last().is_none_or(|last| last.end <= rows), "rows of q");
    assert!(taken.windows(2).all(|w| w[0].end <= w[1].start), "sequences have rows of their own");
    for seq in seqs {
        let blocks = (seq.first + seq.rows.len()).div_ceil(BLOCK);
        assert!(blocks <= seq.blocks.len(), "{blocks} blocks, not {}", seq.blocks.len());
        for block in &seq.blocks[..blocks] {
            assert_eq!(block.k.len(), shape.k_bytes(), "bytes of keys");
            assert_eq!(block.v.len(), shape.v_bytes(), "bytes of values");
        }
    }
}

/// Some consecutive rows of one sequence: with the query heads of one kv head, a task.
struct Strip {
    seq: usize,
    rows: Range<usize>,
}

/// Cuts the sequences into strips, the longest contexts first so that the last tasks are short.
fn strips(shape: &Shape, seqs: &[Sequence<'_>]) -> Vec<Strip> {
    let most = (STRIP / shape.group()).max(1);
    let of_seq = |(seq, s): (usize, &Sequence<'_>)| {
        let start = s.rows.start;
        even(s.rows.len(), most)
            .map(move |r| Strip { seq, rows: start + r.start..start + r.end })
            .collect::<Vec<_>>()
    };
    let mut strips: Vec<Strip> = seqs.iter().enumerate().flat_map(of_seq).collect();
    let length = |s: &Strip| seqs[s.seq].first + s.rows.end - seqs[s.seq].rows.start;
    strips.sort_by_key(|s| std::cmp::Reverse(length(s)));
    strips
}

/// One call of [`attend`].
struct Call<'a> {
    shape: &'a Shape,
    seqs: &'a [Sequence<'a>],
    q: &'a [f32],
    out: Disjoint<'a, f32>,
}

dispatched! { fn strip_on(call: &Call<'_>, strip: &Strip, g: usize) = attend_strip; }

/// All blocks that the rows of a strip see, for the query heads of kv head `g`.
#[inline(always)]
fn attend_strip(call: &Call<'_>, strip: &Strip, g: usize) {
    let mut work = Work::new(call, strip, g);
    let blocks = (work.position + strip.rows.len()).div_ceil(BLOCK);
    for block in 0..blocks {
        work.fold_block(block);
        if (block + 1).is_multiple_of(CHUNK) || block + 1 == blocks {
            work.merge_chunk(block / CHUNK);
        }
    }
    work.write();
}

/// The states of the queries of one task, and the widened block they share.
///
/// Query `j` is head `j % group` of row `j / group`.
struct Work<'a> {
    call: &'a Call<'a>,
    seq: &'a Sequence<'a>,
    rows: Range<usize>,
    g: usize,
    /// The position of the first row.
    position: usize,
    chunk: States,
    total: States,
    /// Scores, then probabilities, `[queries][32]`.
    p: Vec<[f32; BLOCK]>,
    /// What a query's sums are multiplied with before a block is added, `[queries]`.
    alpha: Vec<f32>,
    /// Keys widened, `[2][k_dim]` of sixteen tokens.
    keys: Vec<Lanes>,
    /// Values widened, `[v_dim / 16][32]` of sixteen channels.
    values: Vec<Lanes>,
}

/// Online softmax states of some queries.
struct States {
    m: Vec<f32>,
    l: Vec<f32>,
    /// `[queries][v_dim / 16]` of sixteen channels.
    acc: Vec<Lanes>,
}

impl States {
    fn fresh(queries: usize, width: usize) -> States {
        States {
            m: vec![f32::NEG_INFINITY; queries],
            l: vec![0.0; queries],
            acc: vec![[0.0; LANES]; queries * width],
        }
    }

    fn reset(&mut self) {
        self.m.fill(f32::NEG_INFINITY);
        self.l.fill(0.0);
        self.acc.fill([0.0; LANES]);
    }
}

impl<'a> Work<'a> {
    fn new(call: &'a Call<'a>, strip: &Strip, g: usize) -> Work<'a> {
        let seq = &call.seqs[strip.seq];
        let queries = strip.rows.len() * call.shape.group();
        let width = call.shape.v_dim.div_ceil(LANES);
        Work {
            call,
            seq,
            rows: strip.rows.clone(),
            g,
            position: seq.first + strip.rows.start - seq.rows.start,
            chunk: States::fresh(queries, width),
            total: States::fresh(queries, width),
            p: vec![[0.0; BLOCK]; queries],
            alpha: vec![0.0; queries],
            keys: vec![[0.0; LANES]; 2 * call.shape.k_dim],
            values: vec![[0.0; LANES]; width * BLOCK],
        }
    }

    /// How many tokens of a block query `j` sees.
    #[inline(always)]
    fn visible(&self, j: usize, block: usize) -> usize {
        let seen = self.position + j / self.call.shape.group() + 1;
        seen.saturating_sub(block * BLOCK).min(BLOCK)
    }

    #[inline(always)]
    fn fold_block(&mut self, block: usize) {
        let queries = self.p.len();
        let first = (0..queries).find(|&j| self.visible(j, block) > 0).unwrap_or(queries);
        let most = self.visible(queries - 1, block);
        self.widen(block, most);
        for js in even(queries - first, ROWS) {
            let js = first + js.start..first + js.end;
            match js.len() {
                6 => self.fold::<6>(js.start, block),
                5 => self.fold::<5>(js.start, block),
                4 => self.fold::<4>(js.start, block),
                3 => self.fold::<3>(js.start, block),
                2 => self.fold::<2>(js.start, block),
                _ => self.fold::<1>(js.start, block),
            }
        }
    }

    /// Folds a block into queries `j..j + R`, which all see some of it.
    #[inline(always)]
    fn fold<const R: usize>(&mut self, j: usize, block: usize) {
        self.score::<R>(j);
        for j in j..j + R {
            self.soften(j, self.visible(j, block));
        }
        self.gather::<R>(j, block);
    }

    /// Scores of `R` queries against the whole block, seen or not: lanes do not mix.
    #[inline(always)]
    fn score<const R: usize>(&mut self, j: usize) {
        let shape = self.call.shape;
        let q: [&[f32]; R] = std::array::from_fn(|r| self.query(j + r));
        let (low, high) = self.keys.split_at(shape.k_dim);
        for (half, panel) in [low, high].into_iter().enumerate() {
            let mut scores = [[0.0; LANES]; R];
            strip(&mut scores, panel, &q);
            for r in 0..R {
                let p = &mut self.p[j + r].as_chunks_mut::<LANES>().0[half];
                for i in 0..LANES {
                    p[i] = scores[r][i] * shape.scale;
                }
            }
        }
    }

    #[inline(always)]
    fn query(&self, j: usize) -> &'a [f32] {
        let shape = self.call.shape;
        let (row, head) = (j / shape.group(), j % shape.group());
        let at = (self.rows.start + row) * shape.heads + self.g * shape.group() + head;
        &self.call.q[at * shape.k_dim..(at + 1) * shape.k_dim]
    }

    /// Turns the scores of query `j` into probabilities, and moves its maximum and sum.
    #[inline(always)]
    fn soften(&mut self, j: usize, visible: usize) {
        let p = &mut self.p[j];
        let mut m = self.chunk.m[j];
        for (t, &score) in p.iter().enumerate() {
            m = larger(m, if t < visible { score } else { f32::NEG_INFINITY });
        }
        let mut sums = [0.0; LANES];
        for (t, p) in p.iter_mut().enumerate() {
            *p = if t < visible { exp(*p - m) } else { 0.0 };
        }
        for i in 0..LANES {
            sums[i] = p[i] + p[i + LANES];
        }
        let alpha = exp(self.chunk.m[j] - m);
        self.alpha[j] = alpha;
        self.chunk.l[j] = self.chunk.l[j].mul_add(alpha, tree(sums));
        self.chunk.m[j] = m;
    }

    /// Adds the values that `R` queries see, weighted; those that all see in one pass.
    #[inline(always)]
    fn gather<const R: usize>(&mut self, j: usize, block: usize) {
        let width = self.call.shape.v_dim.div_ceil(LANES);
        let all = self.visible(j, block);
        for (c, panel) in self.values.chunks_exact(BLOCK).enumerate() {
            let mut acc: [Lanes; R] = std::array::from_fn(|r| {
                self.chunk.acc[(j + r) * width + c].map(|x| x * self.alpha[j + r])
            });
            let p: [&[f32]; R] = std::array::from_fn(|r| &self.p[j + r][..]);
            strip(&mut acc, &panel[..all], &p);
            for r in 0..R {
                let own = all..self.visible(j + r, block);
                let mut one = [acc[r]];
                strip(&mut one, &panel[own.clone()], &[&self.p[j + r][own]]);
                self.chunk.acc[(j + r) * width + c] = one[0];
            }
        }
    }

    /// Widens the keys and the first `tokens` values of a block.
    #[inline(always)]
    fn widen(&mut self, block: usize, tokens: usize) {
        let shape = self.call.shape;
        let block = &self.seq.blocks[block];
        let k = head(block.k, self.g, shape.k_dim * BLOCK * shape.element.bytes());
        let v = head(block.v, self.g, shape.v_dim * BLOCK * shape.element.bytes());
        match shape.element {
            Element::F32 => self.widen_as::<f32>(k, v, tokens, |x| x),
            Element::F16 => self.widen_as::<u16>(k, v, tokens, f32_from_f16),
            Element::BF16 => self.widen_as::<u16>(k, v, tokens, f32_from_bf16),
        }
    }

    #[inline(always)]
    fn widen_as<T: bytemuck::Pod>(
        &mut self,
        k: &[u8],
        v: &[u8],
        tokens: usize,
        value: impl Fn(T) -> f32,
    ) {
        let (low, high) = self.keys.split_at_mut(self.call.shape.k_dim);
        let rows = bytemuck::cast_slice::<u8, [T; BLOCK]>(k);
        for ((row, low), high) in rows.iter().zip(low).zip(high) {
            for i in 0..LANES {
                low[i] = value(row[i]);
                high[i] = value(row[i + LANES]);
            }
        }
        let v_dim = self.call.shape.v_dim;
        let rows = bytemuck::cast_slice::<u8, T>(v).chunks_exact(v_dim);
        for (t, row) in rows.take(tokens).enumerate() {
            for (c, row) in row.chunks(LANES).enumerate() {
                for (to, &x) in self.values[c * BLOCK + t].iter_mut().zip(row) {
                    *to = value(x);
                }
            }
        }
    }

    /// Merges a chunk's states into the totals of the queries that see it, and makes them fresh.
    #[inline(always)]
    fn merge_chunk(&mut self, chunk: usize) {
        let width = self.call.shape.v_dim.div_ceil(LANES);
        for j in 0..self.p.len() {
            if self.visible(j, chunk * CHUNK) == 0 {
                continue;
            }
            let (total, chunk) = (self.total.m[j], self.chunk.m[j]);
            let m = larger(total, chunk);
            let (a, b) = (exp(total - m), exp(chunk - m));
            self.total.m[j] = m;
            self.total.l[j] = self.total.l[j].mul_add(a, self.chunk.l[j] * b);
            let of_query = j * width..(j + 1) * width;
            let sums = self.total.acc[of_query.clone()].iter_mut();
            for (sum, acc) in sums.zip(&self.chunk.acc[of_query]) {
                for i in 0..LANES {
                    sum[i] = sum[i].mul_add(a, acc[i] * b);
                }
            }
        }
        self.chunk.reset();
    }

    #[inline(always)]
    fn write(&self) {
        let shape = self.call.shape;
        let (group, width) = (shape.group(), shape.v_dim.div_ceil(LANES));
        for j in 0..self.p.len() {
            let row = self.rows.start + j / group;
            let at = (row * shape.heads + self.g * group + j % group) * shape.v_dim;
            #[expect(unsafe_code, reason = "tasks own their rows and heads")]
            // SAFETY: no other task has this row and kv head.
            let out = unsafe { self.call.out.part(at..at + shape.v_dim) };
            let acc = self.total.acc[j * width..(j + 1) * width].as_flattened();
            for (out, acc) in out.iter_mut().zip(acc) {
                *out = acc / self.total.l[j];
            }
        }
    }
}

/// The bytes of kv head `g`.
#[inline(always)]
fn head(bytes: &[u8], g: usize, size: usize) -> &[u8] {
    &bytes[g * size..(g + 1) * size]
}
