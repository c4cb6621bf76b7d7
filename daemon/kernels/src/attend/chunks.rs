//! Few rows of each sequence, as when many decode: a task is a chunk, for all rows that see the
//! same blocks there.
//!
//! Sequences that began with the same prompt share blocks. A chunk's shared blocks are widened
//! once for all queries of such a cohort; where they part, each goes on from its own state, so that
//! every query folds the same blocks in the same order as alone.

use std::ops::Range;

use super::fold::States;
use super::{BLOCK, CHUNK, Call, STRIP, Strip};
use crate::disjoint::Disjoint;
use crate::pool::Pool;

/// Strips that see the same blocks at the beginning of a chunk.
struct Cohort {
    chunk: usize,
    /// Numbers of strips.
    strips: Vec<usize>,
    /// Blocks that all of them see whole.
    shared: usize,
}

impl Call<'_> {
    /// Attends with all strips.
    pub(super) fn attend_by_chunks(&self, pool: &Pool, strips: &[Strip]) {
        let heads = self.shape.kv_heads;
        let cohorts = self.cohorts(strips);
        // The states of strip `s`, kv head `g` and chunk `c` lie at `starts[s] + g * chunks + c`.
        let mut starts = vec![0];
        for strip in strips {
            starts.push(starts[starts.len() - 1] + heads * self.chunks(strip));
        }
        let mut states: Vec<Option<States>> = (0..starts[strips.len()]).map(|_| None).collect();
        let slots = Disjoint::new(&mut states);
        pool.run(cohorts.len() * heads, &|task| {
            let (cohort, g) = (&cohorts[task / heads], task % heads);
            for (strip, state) in self.fold_cohort(cohort, strips, g) {
                let at = starts[strip] + g * self.chunks(&strips[strip]) + cohort.chunk;
                #[expect(unsafe_code, reason = "a strip's chunk is in one cohort")]
                // SAFETY: no other task has this slot.
                let slot = unsafe { slots.part(at..at + 1) };
                slot[0] = Some(state);
            }
        });
        let mut states = states.into_iter().flatten();
        for (strip, g) in strips.iter().flat_map(|strip| (0..heads).map(move |g| (strip, g))) {
            let mut fold = self.fold(strip, g);
            for (chunk, states) in (0..self.chunks(strip)).zip(&mut states) {
                fold.take_chunk(self.chunk(strip, chunk).end, states);
            }
            self.write(&fold, strip, g);
        }
    }

    /// For each chunk, the strips that see it, those with the same blocks together.
    fn cohorts(&self, strips: &[Strip]) -> Vec<Cohort> {
        let chunks = strips.iter().map(|strip| self.chunks(strip)).max().unwrap_or(0);
        (0..chunks).flat_map(|chunk| self.cohorts_of(chunk, strips)).collect()
    }

    fn cohorts_of(&self, chunk: usize, strips: &[Strip]) -> Vec<Cohort> {
        let mut cohorts: Vec<Cohort> = Vec::new();
        for (number, strip) in strips.iter().enumerate() {
            if chunk >= self.chunks(strip) {
                continue;
            }
            let joins = |cohort: &&mut Cohort| {
                let rows = cohort.strips.iter().map(|strip| strips[*strip].rows.len());
                let queries = (rows.sum::<usize>() + strip.rows.len()) * self.shape.group();
                let shared = self.shared(&strips[cohort.strips[0]], strip, chunk);
                queries <= STRIP && shared > 0
            };
            match cohorts.iter_mut().find(joins) {
                Some(cohort) => {
                    let shared = self.shared(&strips[cohort.strips[0]], strip, chunk);
                    cohort.shared = cohort.shared.min(shared);
                    cohort.strips.push(number);
                }
                None => cohorts.push(Cohort { chunk, strips: vec![number], shared: CHUNK }),
            }
        }
        for alone in cohorts.iter_mut().filter(|cohort| cohort.strips.len() == 1) {
            alone.shared = 0;
        }
        cohorts
    }

    /// How many blocks at the beginning of a chunk are the same for two strips, and seen whole by
    /// all their rows.
    fn shared(&self, a: &Strip, b: &Strip, chunk: usize) -> usize {
        let whole = |strip: &Strip| (self.first(strip) + 1) / BLOCK;
        let end = whole(a).min(whole(b)).min((chunk + 1) * CHUNK);
        let block = |strip: &Strip, at: usize| self.seqs[strip.seq].blocks[at].k.as_ptr();
        (chunk * CHUNK..end).take_while(|&at| block(a, at) == block(b, at)).count()
    }

    /// The states of a cohort's strips after their blocks of the chunk.
    fn fold_cohort(&self, cohort: &Cohort, strips: &[Strip], g: usize) -> Vec<(usize, States)> {
        let members = cohort.strips.iter().map(|&strip| (strip, &strips[strip]));
        let start = cohort.chunk * CHUNK;
        if cohort.shared == 0 {
            let own = |(number, strip)| {
                let mut fold = self.fold(strip, g);
                self.add(&mut fold, strip, g, self.chunk(strip, cohort.chunk));
                (number, fold.into_chunk())
            };
            return members.map(own).collect();
        }
        let queries = members.clone().flat_map(|(_, strip)| self.queries(strip, g)).collect();
        // They see every token there.
        let mut all = self.fold_of((start + CHUNK) * BLOCK, queries);
        self.add(&mut all, &strips[cohort.strips[0]], g, start..start + cohort.shared);
        let all = all.into_chunk();
        let mut first = 0;
        let part = |(number, strip): (usize, &Strip)| {
            let queries = strip.rows.len() * self.shape.group();
            let state = all.part(first..first + queries);
            first += queries;
            let own = start + cohort.shared..self.chunk(strip, cohort.chunk).end;
            (number, self.go_on(state, strip, g, own))
        };
        members.map(part).collect()
    }

    /// The state of a strip after more blocks.
    fn go_on(&self, state: States, strip: &Strip, g: usize, blocks: Range<usize>) -> States {
        if blocks.is_empty() {
            return state;
        }
        let mut fold = self.fold(strip, g).at(state);
        self.add(&mut fold, strip, g, blocks);
        fold.into_chunk()
    }

    fn chunks(&self, strip: &Strip) -> usize {
        self.blocks(strip).div_ceil(CHUNK)
    }
}
