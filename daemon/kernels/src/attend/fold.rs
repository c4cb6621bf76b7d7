//! The states of some queries of one kv head, into which blocks are folded in ascending order.

use std::cell::RefCell;
use std::ops::Range;

use crate::act::softcap_on;
use crate::attend::block::{Stored, View, Wide, merge_on, score_on, soften_on, weigh_on};
use crate::attend::{BLOCK, CHUNK, Element, Shape};
use crate::convert::{BF16, F16};
use crate::isa::Isa;
use crate::lanes::{LANES, Lanes};
use crate::linear::even;

/// Queries that pass over a block together.
const STRIP: usize = 6;

thread_local! {
    /// Memory of folds that are over: a step of a size that was run before allocates nothing.
    static SPARE: RefCell<Vec<Scratch>> = const { RefCell::new(Vec::new()) };
}

/// Queries of one kv head on their way through the blocks. Query `j` is head `j % group` of row
/// `j / group`.
pub(super) struct Fold {
    isa: Isa,
    shape: Shape,
    /// The position of the first row.
    first: usize,
    /// Blocks folded.
    blocks: usize,
    scratch: Scratch,
}

#[derive(Default)]
struct Scratch {
    /// `[queries][k_dim]`.
    queries: Vec<f32>,
    /// The block being folded, shared by all queries.
    wide: Wide,
    /// Scores, then probabilities: `[queries][32]`.
    p: Vec<[Lanes; 2]>,
    /// The chunk being folded, and the chunks before it.
    chunk: States,
    total: States,
}

/// Online softmax states.
#[derive(Default)]
pub(super) struct States {
    /// The largest score and the sum of exponentials: `[queries]`.
    pub(super) m: Vec<f32>,
    pub(super) l: Vec<f32>,
    /// Weighted values, `[queries][width]` of sixteen channels.
    pub(super) acc: Vec<Lanes>,
}

/// Some queries' states.
pub(super) struct Part<'a> {
    pub(super) m: &'a [f32],
    pub(super) l: &'a [f32],
    pub(super) acc: &'a [Lanes],
}

impl States {
    /// Makes them the states before the first block.
    fn renew(&mut self, queries: usize, width: usize) {
        self.resize(queries, width);
        self.m.fill(f32::NEG_INFINITY);
        self.l.fill(0.0);
        self.acc.fill([0.0; LANES]);
    }

    /// Makes room for so many.
    pub(super) fn resize(&mut self, queries: usize, width: usize) {
        self.m.resize(queries, 0.0);
        self.l.resize(queries, 0.0);
        self.acc.resize(queries * width, [0.0; LANES]);
    }

    /// The states of some queries.
    pub(super) fn part(&self, queries: Range<usize>, width: usize) -> Part<'_> {
        let acc = &self.acc[queries.start * width..queries.end * width];
        Part { m: &self.m[queries.clone()], l: &self.l[queries], acc }
    }
}

impl Fold {
    /// Rows from position `first` on, before their first block.
    pub(super) fn new<'q>(
        isa: Isa,
        shape: &Shape,
        first: usize,
        queries: impl Iterator<Item = &'q [f32]>,
    ) -> Fold {
        let mut scratch = SPARE.with_borrow_mut(Vec::pop).unwrap_or_default();
        scratch.queries.clear();
        queries.for_each(|query| scratch.queries.extend_from_slice(query));
        let count = scratch.queries.len() / shape.k_dim;
        scratch.wide.fit(shape);
        scratch.p.resize(count, [[0.0; LANES]; 2]);
        scratch.chunk.renew(count, scratch.wide.width());
        scratch.total.renew(count, scratch.wide.width());
        Fold { isa, shape: *shape, first, blocks: 0, scratch }
    }

    /// Goes on in the middle of a chunk whose blocks so far led to `chunk`.
    pub(super) fn go_on(&mut self, chunk: &Part<'_>) {
        self.scratch.chunk.m.copy_from_slice(chunk.m);
        self.scratch.chunk.l.copy_from_slice(chunk.l);
        self.scratch.chunk.acc.copy_from_slice(chunk.acc);
    }

    fn queries(&self) -> usize {
        self.scratch.p.len()
    }

    /// Folds the next block, given its keys `[k_dim][32]` and values `[32][v_dim]`.
    pub(super) fn block(&mut self, block: usize, k: &[u8], v: &[u8]) {
        if block.is_multiple_of(CHUNK) {
            self.end_chunk();
        }
        self.blocks = block + 1;
        let sees = |j: &usize| !self.visible(*j, block).is_empty();
        let queries = 0..self.queries();
        let Some(first) = queries.clone().find(sees) else { return };
        let last = queries.rev().find(sees).unwrap_or(first);
        let seeing = first..last + 1;
        if seeing.len() <= STRIP && self.shape.v_dim.is_multiple_of(LANES) {
            match self.shape.element {
                Element::F32 => self.pass(&Stored::<f32>::new(k, v), seeing, block),
                Element::F16 => self.pass(&Stored::<F16>::new(k, v), seeing, block),
                Element::BF16 => self.pass(&Stored::<BF16>::new(k, v), seeing, block),
            }
        } else {
            let mut wide = std::mem::take(&mut self.scratch.wide);
            wide.load(self.isa, k, v, self.visible(last, block).end);
            self.pass(&wide, seeing, block);
            self.scratch.wide = wide;
        }
    }

    /// Folds the block into the queries that see some of it.
    fn pass(&mut self, view: &impl View, seeing: Range<usize>, block: usize) {
        for js in even(seeing.len(), STRIP) {
            let j = seeing.start + js.start;
            match js.len() {
                6 => self.strip::<6>(view, j, block),
                5 => self.strip::<5>(view, j, block),
                4 => self.strip::<4>(view, j, block),
                3 => self.strip::<3>(view, j, block),
                2 => self.strip::<2>(view, j, block),
                _ => self.strip::<1>(view, j, block),
            }
        }
    }

    /// Writes the results of the queries from `j` on, `[queries][v_dim]`, as many as `out` holds.
    pub(super) fn write(&self, j: usize, out: &mut [f32]) {
        let Scratch { wide, total, .. } = &self.scratch;
        for (j, out) in (j..).zip(out.chunks_exact_mut(wide.v_dim())) {
            let part = total.part(j..j + 1, wide.width());
            for (out, acc) in out.iter_mut().zip(part.acc.as_flattened()) {
                *out = acc / part.l[0];
            }
        }
    }

    /// Which tokens of a block query `j` sees. Later queries begin and end no earlier.
    fn visible(&self, j: usize, block: usize) -> Range<usize> {
        let position = self.first + j / self.shape.group();
        let within = |token: usize| token.saturating_sub(block * BLOCK).min(BLOCK);
        let end = within(position + 1);
        within(self.shape.first_seen(position)).min(end)..end
    }

    /// Folds the block into queries `j..j + R`, which all see some of it.
    fn strip<const R: usize>(&mut self, view: &impl View, j: usize, block: usize) {
        let visible: [Range<usize>; R] = std::array::from_fn(|r| self.visible(j + r, block));
        let Shape { k_dim, scale, softcap, .. } = self.shape;
        let Scratch { queries, p, chunk, .. } = &mut self.scratch;
        let queries: [&[f32]; R] =
            std::array::from_fn(|r| &queries[(j + r) * k_dim..(j + r + 1) * k_dim]);
        let p = of::<R, _>(p, j);
        score_on(self.isa, view, &queries, scale, p);
        if let Some(cap) = softcap {
            softcap_on(self.isa, p.as_flattened_mut().as_flattened_mut(), cap);
        }
        let alpha = soften_on(self.isa, p, &visible, of(&mut chunk.m, j), of(&mut chunk.l, j));
        self.weigh(view, j, &visible, &alpha);
    }

    /// Adds the values that queries `j..j + R` see: those that all of them see in one pass, each
    /// query's own before and after.
    fn weigh<const R: usize>(
        &mut self,
        view: &impl View,
        j: usize,
        visible: &[Range<usize>; R],
        alpha: &[f32; R],
    ) {
        let all = visible[R - 1].start..visible[0].end;
        if all.is_empty() {
            let mut one = |r: usize| self.weigh_one(view, j + r, visible[r].clone(), alpha[r]);
            return (0..R).for_each(&mut one);
        }
        let mut alpha = *alpha;
        for r in 0..R {
            if visible[r].start < all.start {
                self.weigh_one(view, j + r, visible[r].start..all.start, alpha[r]);
                alpha[r] = 1.0;
            }
        }
        let Scratch { p, chunk, .. } = &mut self.scratch;
        let acc = &mut chunk.acc[j * view.width()..(j + R) * view.width()];
        weigh_on(self.isa, view, all.clone(), &alpha, &p[j..j + R], acc);
        for r in 0..R {
            if visible[r].end > all.end {
                self.weigh_one(view, j + r, all.end..visible[r].end, 1.0);
            }
        }
    }

    /// Adds the values of some tokens for query `j`.
    fn weigh_one(&mut self, view: &impl View, j: usize, tokens: Range<usize>, alpha: f32) {
        let Scratch { p, chunk, .. } = &mut self.scratch;
        let acc = &mut chunk.acc[j * view.width()..(j + 1) * view.width()];
        weigh_on(self.isa, view, tokens, &[alpha], &p[j..j + 1], acc);
    }

    /// The states of the chunk being folded.
    pub(super) fn chunk(&self) -> &States {
        &self.scratch.chunk
    }

    /// Merges a chunk that ends before block `blocks` and was folded elsewhere.
    pub(super) fn take_chunk(&mut self, blocks: usize, chunk: &Part<'_>) {
        let seeing = self.seeing(blocks);
        merge_on(self.isa, seeing, chunk, &mut self.scratch.total);
    }

    /// Merges the states of the chunk that the last block belongs to into the totals of the
    /// queries that see it.
    pub(super) fn end_chunk(&mut self) {
        if self.blocks == 0 {
            return;
        }
        let (seeing, count) = (self.seeing(self.blocks), self.queries());
        let Scratch { wide, chunk, total, .. } = &mut self.scratch;
        merge_on(self.isa, seeing, &chunk.part(0..count, wide.width()), total);
        chunk.renew(count, wide.width());
    }

    /// The queries that see some of the chunk that ends before block `blocks`.
    fn seeing(&self, blocks: usize) -> Range<usize> {
        let first = (blocks - 1) / CHUNK * CHUNK;
        let chunk = first * BLOCK..(first + CHUNK) * BLOCK;
        let position = |j: usize| self.first + j / self.shape.group();
        let starts = |j: &usize| position(*j) >= chunk.start;
        let ends = |j: &usize| self.shape.first_seen(position(*j)) < chunk.end;
        let queries = 0..self.queries();
        let end = queries.clone().rev().find(ends).map_or(0, |last| last + 1);
        queries.clone().find(starts).unwrap_or(end).min(end)..end
    }
}

/// Those of queries `j..j + R`.
fn of<const R: usize, T>(all: &mut [T], j: usize) -> &mut [T; R] {
    all[j..].first_chunk_mut().expect("there are so many queries")
}

impl Drop for Fold {
    fn drop(&mut self) {
        let scratch = std::mem::take(&mut self.scratch);
        SPARE.with_borrow_mut(|spare| spare.push(scratch));
    }
}
