//! Few rows of each sequence, as when many decode: a task is a chunk, for all rows that see the
//! same blocks there.
//!
//! Sequences that began with the same prompt share blocks. A chunk's shared blocks are widened
//! once for all queries of such a cohort; where they part, each goes on from its own state, so that
//! every query folds the same blocks in the same order as alone.

use std::ops::Range;

use super::fold::{Fold, Part, States};
use super::{BLOCK, CHUNK, Call, Plan, Shape, Strip, WIDEST};
use crate::disjoint::Disjoint;
use crate::lanes::{LANES, Lanes};
use crate::pool::Pool;

/// The cohorts of a call, and the states of every chunk.
#[derive(Default)]
pub(super) struct Chunks {
    cohorts: Vec<Cohort>,
    /// The first chunk that any strip sees.
    first: usize,
    /// The cohort of each strip in each chunk from the first on that it sees, `[chunk][strip]`.
    members: Vec<Option<usize>>,
    /// Where each strip's states begin: `[kv head][chunk][query]` of them.
    starts: Vec<usize>,
    states: States,
}

/// Strips that see the same blocks at the beginning of a chunk.
struct Cohort {
    chunk: usize,
    /// The number of its first strip.
    first: usize,
    /// Rows of all of them.
    rows: usize,
    /// Blocks that all of them see whole; none when a strip is alone.
    shared: usize,
}

/// States that tasks write, each its own.
struct Slots<'a> {
    m: Disjoint<'a, f32>,
    l: Disjoint<'a, f32>,
    acc: Disjoint<'a, Lanes>,
    width: usize,
}

impl Call<'_> {
    /// Attends with the strips from `narrow` on.
    pub(super) fn attend_by_chunks(&self, pool: &Pool, plan: &mut Plan, narrow: usize) {
        let (strips, chunks) = (&plan.strips[narrow..], &mut plan.chunks);
        let (heads, width) = (self.shape.kv_heads, self.shape.v_dim.div_ceil(LANES));
        self.find_cohorts(strips, chunks);
        chunks.starts.clear();
        let mut end = 0;
        for strip in strips {
            chunks.starts.push(end);
            end += heads * self.chunks(strip).len() * self.queries_of(strip);
        }
        chunks.states.resize(end, width);
        let Chunks { cohorts, first, members, starts, states } = chunks;
        let slots = Slots {
            m: Disjoint::new(&mut states.m),
            l: Disjoint::new(&mut states.l),
            acc: Disjoint::new(&mut states.acc),
            width,
        };
        pool.run(cohorts.len() * heads, &|task| {
            let (number, g) = (task / heads, task % heads);
            let cohort = &cohorts[number];
            let of_chunk = &members[(cohort.chunk - *first) * strips.len()..][..strips.len()];
            let members = (cohort.first..strips.len()).filter(|&s| of_chunk[s] == Some(number));
            let members = members.map(|s| (&strips[s], starts[s]));
            self.fold_cohort(cohort, members, g, &slots);
        });
        for (strip, start) in strips.iter().zip(&*starts) {
            for g in 0..heads {
                let mut fold = self.fold(strip, g);
                for chunk in self.chunks(strip) {
                    let part = states.part(self.slot(strip, *start, g, chunk), width);
                    fold.take_chunk(self.chunk(strip, chunk).end, &part);
                }
                self.write(&fold, strip, g);
            }
        }
    }

    /// For each chunk, the strips that see it, those with the same blocks together.
    fn find_cohorts(&self, strips: &[Strip], chunks: &mut Chunks) {
        chunks.cohorts.clear();
        chunks.members.clear();
        chunks.first = strips.iter().map(|strip| self.chunks(strip).start).min().unwrap_or(0);
        let end = strips.iter().map(|strip| self.chunks(strip).end).max().unwrap_or(0);
        for chunk in chunks.first..end {
            let begin = chunks.cohorts.len();
            for (number, strip) in strips.iter().enumerate() {
                let sees = self.chunks(strip).contains(&chunk);
                let cohort = sees
                    .then(|| self.join(chunk, (number, strip), strips, &mut chunks.cohorts, begin));
                chunks.members.push(cohort);
            }
        }
    }

    /// Puts a strip into a cohort of its chunk, a new one if need be. Returns which.
    fn join(
        &self,
        chunk: usize,
        (number, strip): (usize, &Strip),
        strips: &[Strip],
        cohorts: &mut Vec<Cohort>,
        begin: usize,
    ) -> usize {
        let rows = strip.rows.len();
        for (at, cohort) in cohorts.iter_mut().enumerate().skip(begin) {
            let shared = self.shared(&strips[cohort.first], strip, chunk);
            if shared > 0 && (cohort.rows + rows) * self.shape.group() <= WIDEST {
                let alone = cohort.shared == 0;
                cohort.shared = if alone { shared } else { shared.min(cohort.shared) };
                cohort.rows += rows;
                return at;
            }
        }
        cohorts.push(Cohort { chunk, first: number, rows, shared: 0 });
        cohorts.len() - 1
    }

    /// How many blocks at the beginning of a chunk are the same for two strips, and seen whole by
    /// all their rows.
    fn shared(&self, a: &Strip, b: &Strip, chunk: usize) -> usize {
        let last = |strip: &Strip| self.first(strip) + strip.rows.len() - 1;
        let begin = |strip: &Strip| self.shape.first_seen(last(strip));
        if begin(a).max(begin(b)) > chunk * CHUNK * BLOCK {
            return 0;
        }
        let whole = |strip: &Strip| (self.first(strip) + 1) / BLOCK;
        let end = whole(a).min(whole(b)).min((chunk + 1) * CHUNK);
        let block = |strip: &Strip, at: usize| self.seqs[strip.seq].blocks[at].k.as_ptr();
        (chunk * CHUNK..end).take_while(|&at| block(a, at) == block(b, at)).count()
    }

    /// Writes the states of a cohort's strips, given with where theirs begin, after their blocks
    /// of the chunk.
    fn fold_cohort<'s>(
        &self,
        cohort: &Cohort,
        members: impl Iterator<Item = (&'s Strip, usize)> + Clone,
        g: usize,
        slots: &Slots<'_>,
    ) {
        let start = cohort.chunk * CHUNK;
        // They see every token of the shared blocks.
        let queries = members.clone().flat_map(|(strip, _)| self.queries(strip, g));
        let whole = Shape { window: None, ..*self.shape };
        let fold = || Fold::new(self.isa, &whole, (start + CHUNK) * BLOCK, queries);
        let mut all = (cohort.shared > 0).then(fold);
        if let (Some(all), Some((strip, _))) = (&mut all, members.clone().next()) {
            self.add(all, strip, g, start..start + cohort.shared);
        }
        let mut first = 0;
        for (strip, begin) in members {
            let queries = self.queries_of(strip);
            let mut fold = self.fold(strip, g);
            if let Some(all) = &all {
                fold.go_on(&all.chunk().part(first..first + queries, slots.width));
                first += queries;
            }
            let blocks = self.chunk(strip, cohort.chunk);
            self.add(&mut fold, strip, g, blocks.start + cohort.shared..blocks.end);
            let slot = self.slot(strip, begin, g, cohort.chunk);
            slots.put(slot, &fold.chunk().part(0..queries, slots.width));
        }
    }

    /// The chunks that the rows of a strip see.
    fn chunks(&self, strip: &Strip) -> Range<usize> {
        let Range { start, end } = self.blocks(strip);
        start / CHUNK..end.div_ceil(CHUNK)
    }

    /// Queries of a strip for one kv head.
    fn queries_of(&self, strip: &Strip) -> usize {
        strip.rows.len() * self.shape.group()
    }

    /// Which states are those of a strip's chunk, where the strip's begin at `start`.
    fn slot(&self, strip: &Strip, start: usize, g: usize, chunk: usize) -> Range<usize> {
        let queries = self.queries_of(strip);
        let chunks = self.chunks(strip);
        let first = start + (g * chunks.len() + chunk - chunks.start) * queries;
        first..first + queries
    }
}

impl Slots<'_> {
    fn put(&self, slot: Range<usize>, part: &Part<'_>) {
        let acc = slot.start * self.width..slot.end * self.width;
        #[expect(unsafe_code, reason = "a strip's chunk is in one cohort")]
        // SAFETY: no other task has this slot.
        unsafe {
            self.m.part(slot.clone()).copy_from_slice(part.m);
            self.l.part(slot).copy_from_slice(part.l);
            self.acc.part(acc).copy_from_slice(part.acc);
        }
    }
}
