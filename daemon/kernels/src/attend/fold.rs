//! The states of some queries of one kv head, into which blocks are folded in ascending order.

use std::ops::Range;

use crate::attend::block::{Wide, merge_on, score_on, soften_on, weigh_on};
use crate::attend::{BLOCK, CHUNK, Shape};
use crate::isa::Isa;
use crate::lanes::{LANES, Lanes};
use crate::linear::even;

/// Queries that pass over a block together.
const STRIP: usize = 6;

/// Consecutive rows of one sequence, for the query heads of one kv head, on their way through the
/// blocks. Query `j` is head `j % group` of row `j / group`.
pub(super) struct Fold<'a> {
    isa: Isa,
    group: usize,
    scale: f32,
    /// The position of the first row.
    first: usize,
    /// `[queries][k_dim]`.
    queries: Vec<&'a [f32]>,
    /// The block being folded, shared by all queries.
    wide: Wide,
    /// Scores, then probabilities: `[queries][32]`.
    p: Vec<[Lanes; 2]>,
    /// The chunk being folded, and the chunks before it.
    chunk: States,
    total: States,
    /// Blocks folded.
    blocks: usize,
}

/// Online softmax states.
pub(super) struct States {
    /// The largest score and the sum of exponentials: `[queries]`.
    pub(super) m: Vec<f32>,
    pub(super) l: Vec<f32>,
    /// Weighted values, `[queries][width]` of sixteen channels.
    pub(super) acc: Vec<Lanes>,
}

impl States {
    fn fresh(queries: usize, width: usize) -> States {
        States {
            m: vec![f32::NEG_INFINITY; queries],
            l: vec![0.0; queries],
            acc: vec![[0.0; LANES]; queries * width],
        }
    }

    /// The states of some queries.
    pub(super) fn part(&self, queries: Range<usize>) -> States {
        let width = self.acc.len() / self.m.len();
        States {
            m: self.m[queries.clone()].to_vec(),
            l: self.l[queries.clone()].to_vec(),
            acc: self.acc[queries.start * width..queries.end * width].to_vec(),
        }
    }

    fn renew(&mut self) {
        self.m.fill(f32::NEG_INFINITY);
        self.l.fill(0.0);
        self.acc.fill([0.0; LANES]);
    }
}

impl<'a> Fold<'a> {
    pub(super) fn new(isa: Isa, shape: &Shape, first: usize, queries: Vec<&'a [f32]>) -> Fold<'a> {
        let wide = Wide::new(shape);
        Fold {
            isa,
            group: shape.group(),
            scale: shape.scale,
            first,
            p: vec![[[0.0; LANES]; 2]; queries.len()],
            chunk: States::fresh(queries.len(), wide.width()),
            total: States::fresh(queries.len(), wide.width()),
            queries,
            wide,
            blocks: 0,
        }
    }

    /// In the middle of a chunk whose blocks so far led to `chunk`.
    pub(super) fn at(self, chunk: States) -> Fold<'a> {
        Fold { chunk, ..self }
    }

    /// Folds the next block, given its keys `[k_dim][32]` and values `[32][v_dim]`.
    pub(super) fn block(&mut self, block: usize, k: &[u8], v: &[u8]) {
        if block.is_multiple_of(CHUNK) {
            self.end_chunk();
        }
        self.blocks = block + 1;
        let queries = self.queries.len();
        let seeing = (0..queries).find(|&j| self.visible(j, block) > 0).unwrap_or(queries);
        self.wide.load(self.isa, k, v, self.visible(queries - 1, block));
        for js in even(queries - seeing, STRIP) {
            let j = seeing + js.start;
            match js.len() {
                6 => self.strip::<6>(j, block),
                5 => self.strip::<5>(j, block),
                4 => self.strip::<4>(j, block),
                3 => self.strip::<3>(j, block),
                2 => self.strip::<2>(j, block),
                _ => self.strip::<1>(j, block),
            }
        }
    }

    /// Writes the results of the queries from `j` on, `[queries][v_dim]`, as many as `out` holds.
    pub(super) fn write(&self, j: usize, out: &mut [f32]) {
        let width = self.wide.width();
        for (j, out) in (j..).zip(out.chunks_exact_mut(self.wide.v_dim())) {
            let acc = self.total.acc[j * width..(j + 1) * width].as_flattened();
            for (out, acc) in out.iter_mut().zip(acc) {
                *out = acc / self.total.l[j];
            }
        }
    }

    /// How many tokens of a block query `j` sees.
    fn visible(&self, j: usize, block: usize) -> usize {
        let seen = self.first + j / self.group + 1;
        seen.saturating_sub(block * BLOCK).min(BLOCK)
    }

    /// Folds the block into queries `j..j + R`, which all see some of it.
    fn strip<const R: usize>(&mut self, j: usize, block: usize) {
        let mut queries: [&[f32]; R] = [&[]; R];
        queries.copy_from_slice(&self.queries[j..j + R]);
        score_on(self.isa, &self.wide, &queries, self.scale, &mut self.p[j..j + R]);
        let mut alpha = [0.0; R];
        for r in 0..R {
            let visible = self.visible(j + r, block);
            let state = (&mut self.chunk.m[j + r], &mut self.chunk.l[j + r]);
            alpha[r] = soften_on(self.isa, &mut self.p[j + r], visible, state);
        }
        self.weigh::<R>(j, block, &alpha);
    }

    /// Adds the values that queries `j..j + R` see: those that all of them see in one pass, then
    /// each query's own.
    fn weigh<const R: usize>(&mut self, j: usize, block: usize, alpha: &[f32; R]) {
        let width = self.wide.width();
        let all = self.visible(j, block);
        let acc = &mut self.chunk.acc[j * width..(j + R) * width];
        weigh_on(self.isa, &self.wide, 0..all, alpha, &self.p[j..j + R], acc);
        for j in j..j + R {
            let own = all..self.visible(j, block);
            if !own.is_empty() {
                let acc = &mut self.chunk.acc[j * width..(j + 1) * width];
                weigh_on(self.isa, &self.wide, own, &[1.0], &self.p[j..j + 1], acc);
            }
        }
    }

    /// The states of the one chunk whose blocks were folded.
    pub(super) fn into_chunk(self) -> States {
        self.chunk
    }

    /// Goes on after the chunk that ends with block `blocks - 1`, which was folded elsewhere.
    pub(super) fn take_chunk(&mut self, blocks: usize, chunk: States) {
        (self.blocks, self.chunk) = (blocks, chunk);
        self.end_chunk();
    }

    /// Merges the states of the chunk that the last block belongs to into the totals of the
    /// queries that see it.
    pub(super) fn end_chunk(&mut self) {
        if self.blocks == 0 {
            return;
        }
        let start = (self.blocks - 1) / CHUNK * CHUNK;
        let seeing = (0..self.queries.len()).find(|&j| self.visible(j, start) > 0);
        merge_on(self.isa, seeing.unwrap_or(0), &self.chunk, &mut self.total);
        self.chunk.renew();
    }
}
