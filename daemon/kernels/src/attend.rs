//! Attention over paged keys and values, in the one order that every run shares.
//!
//! # The order
//!
//! Keys are cut at absolute multiples of 256 into chunks, and a chunk into blocks of 32 tokens.
//! For a query at position `p`, with keys `0..=p` visible, or the last `n` of them in a window:
//!
//! * a score is `scale * sum(q[d] k[d])`, fused multiply-adds over ascending `d` from 0, then one
//!   product; where scores are capped, `cap * tanh(score / cap)` of that;
//! * a block is folded into the chunk's state `(m, l, acc)`, which starts at `(-inf, 0, 0)`:
//!   `m' = max(m, scores)`, `a = exp(m - m')`, `p[t] = exp(s[t] - m')` or 0 where `t` is not
//!   visible, `l = fma(l, a, tree(p[t] + p[t + 16]))`, `acc[d] = acc[d] a`, then fused
//!   multiply-adds of `p[t] v[t][d]` over ascending visible `t`;
//! * a chunk is merged into the running state, which starts at `(-inf, 0, 0)` too, in ascending
//!   order: `m' = max(M, m)`, `a = exp(M - m')`, `b = exp(m - m')`, `L = fma(L, a, l b)`,
//!   `A[d] = fma(A[d], a, acc[d] b)`;
//! * the result is `A[d] / L`.
//!
//! Blocks and chunks of which a query sees nothing are not folded and not merged.
//!
//! Heads, query rows and chunks are spread over tasks as is convenient, and sequences that share
//! blocks pass over them together: a query's bits depend on its position and the blocks alone.
//! Tokens that a query cannot see are *selected* away: their keys and values may hold anything.

mod block;
mod chunks;
mod fold;

use std::cell::RefCell;
use std::cmp::Reverse;
use std::ops::Range;

use crate::attend::chunks::Chunks;
use crate::attend::fold::Fold;
use crate::disjoint::Disjoint;
use crate::isa::Isa;
use crate::linear::even;
use crate::pool::Pool;

/// Tokens of a block.
pub const BLOCK: usize = 32;

/// Blocks of a chunk: 256 tokens.
pub const CHUNK: usize = 256 / BLOCK;

/// Queries (rows times heads of a kv group) that share one widened block.
const WIDEST: usize = 48;

thread_local! {
    static PLAN: RefCell<Plan> = RefCell::default();
}

/// How the elements of cached keys and values are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Element {
    /// 4 bytes.
    #[default]
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
    /// Scores become `cap * tanh(score / cap)`.
    pub softcap: Option<f32>,
    /// How many tokens a query sees, its own included; `None`: all up to its own.
    pub window: Option<usize>,
}

impl Shape {
    /// Query heads of one kv head.
    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// The first position that the query at `position` sees.
    fn first_seen(&self, position: usize) -> usize {
        self.window.map_or(0, |tokens| (position + 1).saturating_sub(tokens))
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
    /// ignored, as are those before every row's window.
    pub blocks: &'a [Block<'a>],
}

/// Attends: `q[T][H][k_dim]` to `out[T][H][v_dim]`. The query at position `p` sees keys `0..=p`,
/// or those of them in its window.
///
/// Rows of no sequence are left alone.
///
/// # Panics
/// When a length does not fit the shape, or the rows of sequences do not ascend.
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
    let mut plan = PLAN.take();
    let wide = plan.cut(pool.threads(), shape, seqs);
    let call = Call { isa, shape, seqs, q, out: Disjoint::new(out) };
    let heads = shape.kv_heads;
    pool.run(wide * heads, &|i| call.attend(&plan.strips[i / heads], i % heads));
    call.attend_by_chunks(pool, &mut plan, wide);
    PLAN.set(plan);
}

fn check(shape: &Shape, seqs: &[Sequence<'_>], q: &[f32], out: &[f32]) {
    assert!(shape.heads.is_multiple_of(shape.kv_heads), "H is a multiple of G: {shape:?}");
    assert_ne!(shape.window, Some(0), "a query sees itself");
    let rows = q.len() / (shape.heads * shape.k_dim);
    assert_eq!(q.len(), rows * shape.heads * shape.k_dim, "q is [T][H][k_dim]");
    assert_eq!(out.len(), rows * shape.heads * shape.v_dim, "out is [T][H][v_dim]");
    assert!(seqs.last().is_none_or(|last| last.rows.end <= rows), "rows of q");
    let apart = |w: &[Sequence<'_>]| w[0].rows.end <= w[1].rows.start;
    assert!(seqs.windows(2).all(apart), "sequences have rows of their own, in order");
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

/// What a call is cut into; its memory serves the next call of the thread.
#[derive(Default)]
struct Plan {
    /// Those that are wide enough for tasks of their own first.
    strips: Vec<Strip>,
    chunks: Chunks,
}

impl Plan {
    /// Cuts the sequences into strips, the longest contexts first so that the last tasks are
    /// short. Returns how many are wide.
    fn cut(&mut self, threads: usize, shape: &Shape, seqs: &[Sequence<'_>]) -> usize {
        let most = (WIDEST / shape.group()).max(1);
        self.strips.clear();
        for (seq, s) in seqs.iter().enumerate() {
            let rows = even(s.rows.len(), most);
            let strip = |r: Range<usize>| s.rows.start + r.start..s.rows.start + r.end;
            self.strips.extend(rows.map(|rows| Strip { seq, rows: strip(rows) }));
        }
        let few = self.strips.len() * shape.kv_heads < 4 * threads;
        let is_wide = |s: &Strip| !few && s.rows.len() * shape.group() > WIDEST / 2;
        let position = |s: &Strip, row| seqs[s.seq].first + row - seqs[s.seq].rows.start;
        let seen = |s: &Strip| shape.first_seen(position(s, s.rows.start));
        let length = |s: &Strip| position(s, s.rows.end) - seen(s);
        self.strips.sort_unstable_by_key(|s| (!is_wide(s), Reverse(length(s)), s.rows.start));
        self.strips.partition_point(is_wide)
    }
}

/// One call of [`attend`].
struct Call<'a> {
    isa: Isa,
    shape: &'a Shape,
    seqs: &'a [Sequence<'a>],
    q: &'a [f32],
    out: Disjoint<'a, f32>,
}

impl<'a> Call<'a> {
    /// One task: all blocks that the rows of a strip see, for the query heads of kv head `g`.
    fn attend(&self, strip: &Strip, g: usize) {
        let mut fold = self.fold(strip, g);
        self.add(&mut fold, strip, g, self.blocks(strip));
        fold.end_chunk();
        self.write(&fold, strip, g);
    }

    /// A strip before its first block.
    fn fold(&self, strip: &Strip, g: usize) -> Fold {
        Fold::new(self.isa, self.shape, self.first(strip), self.queries(strip, g))
    }

    fn queries(&self, strip: &Strip, g: usize) -> impl Iterator<Item = &'a [f32]> + use<'a> {
        let (shape, q) = (self.shape, self.q);
        let heads =
            move |row| (0..shape.group()).map(move |h| row * shape.heads + g * shape.group() + h);
        let heads = strip.rows.clone().flat_map(heads);
        heads.map(move |at| &q[at * shape.k_dim..(at + 1) * shape.k_dim])
    }

    fn add(&self, fold: &mut Fold, strip: &Strip, g: usize, blocks: Range<usize>) {
        for at in blocks {
            let block = &self.seqs[strip.seq].blocks[at];
            fold.block(at, head(block.k, g, self.shape), head(block.v, g, self.shape));
        }
    }

    fn write(&self, fold: &Fold, strip: &Strip, g: usize) {
        let shape = self.shape;
        for (i, row) in strip.rows.clone().enumerate() {
            let at = (row * shape.heads + g * shape.group()) * shape.v_dim;
            #[expect(unsafe_code, reason = "tasks own their rows and heads")]
            // SAFETY: no other task has this row and kv head.
            let out = unsafe { self.out.part(at..at + shape.group() * shape.v_dim) };
            fold.write(i * shape.group(), out);
        }
    }

    /// The position of a strip's first row.
    fn first(&self, strip: &Strip) -> usize {
        let seq = &self.seqs[strip.seq];
        seq.first + strip.rows.start - seq.rows.start
    }

    /// The blocks that the rows of a strip see, each some of them.
    fn blocks(&self, strip: &Strip) -> Range<usize> {
        let first = self.first(strip);
        self.shape.first_seen(first) / BLOCK..(first + strip.rows.len()).div_ceil(BLOCK)
    }

    /// Those in a chunk.
    fn chunk(&self, strip: &Strip, chunk: usize) -> Range<usize> {
        let Range { start, end } = self.blocks(strip);
        start.max(chunk * CHUNK)..end.min((chunk + 1) * CHUNK)
    }
}

/// The bytes of kv head `g`.
fn head<'a>(bytes: &'a [u8], g: usize, shape: &Shape) -> &'a [u8] {
    let size = bytes.len() / shape.kv_heads;
    &bytes[g * size..(g + 1) * size]
}

#[cfg(test)]
mod tests;
