//! One step: plan, gather, forward, sample.

use std::borrow::Cow;
use std::ops::Range;
use std::rc::Rc;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::Engine;
use super::Slabs;
use super::event::{Event, Failure, Finish, Token};
use super::job::Task;
use super::pace::Work;
use super::sampler::{self, Place};
use super::scheduler::{Runnable, plan};
use super::sequence::{Phase, Sequence};
use crate::kv::codec::Codec;
use crate::kv::device::DeviceError;
use crate::metrics::Meter;
use crate::model::host::Buffer;
use crate::model::{Batch, Model};

/// Sequences whose pass takes no memory.
const COMPANY: usize = 32;

/// How often progress is told.
const PROGRESS: Duration = Duration::from_millis(100);

/// What a step is planned in: kept from one to the next, so that a decode takes no memory.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    runnable: Vec<Runnable>,
    /// Rows of each sequence.
    rows: Vec<usize>,
    members: Vec<Member>,
    batch: Batch,
}

/// A sequence that runs in a pass.
#[derive(Debug, Clone, Copy)]
struct Member {
    at: usize,
    rows: usize,
}

/// What a pass over a batch gives.
struct Computed<'m> {
    /// Final hidden states `[wanted][C]`.
    hidden: Buffer<'m>,
    /// `[asked][V]` of those whose sequences want any.
    logits: Option<Buffer<'m>>,
    /// How long the layers took.
    took: Duration,
}

impl Engine {
    /// Runs every runnable sequence once. Whether there was one.
    pub(super) fn step(&mut self) -> bool {
        let mut scratch = std::mem::take(&mut self.scratch);
        self.plan(&mut scratch);
        let heads = self.sequences.iter().any(|s| s.phase == Phase::Head && s.has_room());
        let runs = heads || scratch.rows.iter().any(|rows| *rows > 0);
        if runs {
            self.watch_source();
            self.run_heads();
            // A batch has one codec: its sequences' blocks are read by one kernel.
            for codec in Codec::ALL {
                self.run_rows(codec, &mut scratch);
            }
        }
        self.scratch = scratch;
        runs
    }

    fn plan(&self, scratch: &mut Scratch) {
        let runnable = |sequence: &Sequence| Runnable {
            start: sequence.kv.len(),
            debt: if sequence.has_room() { sequence.debt() } else { 0 },
            decodes: sequence.phase == Phase::Decode,
            all_logits: sequence.scores(),
        };
        scratch.runnable.clear();
        scratch.runnable.extend(self.sequences.iter().map(runnable));
        let turns = self.prefill_turns();
        plan(&scratch.runnable, &turns, &self.pace, &mut scratch.rows);
    }

    /// Samples the first token of sequences whose hidden state a record gave: no layer runs.
    fn run_heads(&mut self) {
        for at in 0..self.sequences.len() {
            let sequence = &mut self.sequences[at];
            if sequence.phase != Phase::Head || !sequence.has_room() {
                continue;
            }
            let Some(hidden) = sequence.hidden.take() else { continue };
            let wanted = sequence.wants_logits();
            let model = Rc::clone(&self.loaded.model);
            match wanted.then(|| model.head(&hidden)).transpose() {
                Ok(logits) => self.after_prompt(at, logits.as_deref().unwrap_or_default()),
                Err(error) => self.fail(at, error.into()),
            }
        }
    }

    fn run_rows(&mut self, codec: Codec, scratch: &mut Scratch) {
        let Scratch { rows, members, batch, .. } = scratch;
        self.choose_members(codec, rows, members);
        if members.is_empty() {
            return;
        }
        self.gather(members, batch);
        let model = Rc::clone(&self.loaded.model);
        let Computed { hidden, logits, took } = match self.compute(&*model, batch, members) {
            Ok(computed) => computed,
            Err(error) => return self.fail_all(members, error),
        };
        let (mut hidden, mut logits) = (&*hidden, logits.as_deref().unwrap_or_default());
        let (width, vocab) = (self.loaded.info.width, self.loaded.info.vocab);
        for (Member { at, rows }, slice) in members.iter().zip(&batch.slices) {
            let count = wanted_of(batch, slice);
            let asked = if self.sequences[*at].wants_logits() { count } else { 0 };
            let results = (cut(&mut hidden, count * width), cut(&mut logits, asked * vocab));
            self.settle_rows(*at, *rows, results, took);
        }
    }

    fn compute<'m>(
        &mut self,
        model: &'m dyn Model,
        batch: &Batch,
        members: &[Member],
    ) -> Result<Computed<'m>, DeviceError> {
        let started = Instant::now();
        let hidden = self.forward(model, batch, members)?;
        let took = started.elapsed();
        // The output head is read once for all sequences of the step.
        let asked = self.asked(batch, members, &hidden);
        let logits = (!asked.is_empty()).then(|| model.head(&asked)).transpose()?;
        let in_all = started.elapsed();
        let logit_rows = asked.len() / self.loaded.info.width;
        let decodes = |member: &Member| self.sequences[member.at].phase == Phase::Decode;
        let beside = members.iter().any(decodes) && !members.iter().all(decodes);
        self.pace.learn(self.work(members, logit_rows), in_all, beside);
        self.measure(batch, in_all);
        Ok(Computed { hidden, logits, took })
    }

    /// What a pass computes.
    fn work(&self, members: &[Member], logits: usize) -> Work {
        let mut work = Work::PASS + Work::slice(0, 0, logits);
        for Member { at, rows } in members {
            work += Work::slice(self.sequences[*at].kv.len(), *rows, 0);
        }
        work
    }

    /// The hidden states of sequences that want logits.
    fn asked<'h>(&self, batch: &Batch, members: &[Member], hidden: &'h [f32]) -> Cow<'h, [f32]> {
        let asks = |member: &Member| self.sequences[member.at].wants_logits();
        if members.iter().all(asks) {
            return hidden.into();
        }
        let (mut hidden, width) = (hidden, self.loaded.info.width);
        let mut asked = Vec::new();
        for (member, slice) in members.iter().zip(&batch.slices) {
            let rows = cut(&mut hidden, wanted_of(batch, slice) * width);
            asked.extend_from_slice(if asks(member) { rows } else { &[] });
        }
        asked.into()
    }

    fn fail_all(&mut self, members: &[Member], error: DeviceError) {
        tracing::error!(%error, "a step failed");
        let failure = Failure::from(error);
        for member in members {
            self.fail(member.at, failure.clone());
        }
    }

    /// The sequences that run now, with their rows; those that get no memory fail.
    fn choose_members(&mut self, codec: Codec, rows: &[usize], members: &mut Vec<Member>) {
        members.clear();
        for (at, rows) in rows.iter().copied().enumerate() {
            if rows == 0 || self.sequences[at].job.codec != codec {
                continue;
            }
            match self.reserve(at, rows) {
                Ok(()) => members.push(Member { at, rows }),
                Err(failure) => self.fail(at, failure),
            }
        }
    }

    fn reserve(&mut self, at: usize, rows: usize) -> Result<(), Failure> {
        let Sequence { kv, job, family, .. } = &mut self.sequences[at];
        let slabs = self.slabs.entry(job.codec).or_insert_with(|| Slabs::new(&family.layout));
        let reserved = kv.reserve(kv.len() + rows, slabs);
        reserved.map_err(|error| Failure::Memory(error.to_string()))?;
        Ok(self.loaded.model.prepare(kv, rows)?)
    }

    fn gather(&self, members: &[Member], batch: &mut Batch) {
        batch.clear();
        for Member { at, rows } in members {
            let sequence = &self.sequences[*at];
            let (row, start) = (batch.tokens.len(), sequence.kv.len());
            let end = start + rows;
            batch.tokens.extend(&sequence.tokens[start..end]);
            batch.slices.push(row..row + rows);
            batch.adapters.push(self.loaded.info.adapter(sequence.job.adapter));
            let last = sequence.tokens.len() - 1;
            let wanted = |position: &usize| match sequence.scores() {
                true => *position < last,
                false => *position == last,
            };
            batch.wanted.extend((start..end).filter(wanted).map(|p| row + p - start));
        }
    }

    fn forward<'m>(
        &mut self,
        model: &'m dyn Model,
        batch: &Batch,
        members: &[Member],
    ) -> Result<Buffer<'m>, DeviceError> {
        let chosen = |(at, _): &(usize, &mut Sequence)| members.iter().any(|m| m.at == *at);
        let sequences = self.sequences.iter_mut().enumerate().filter(chosen);
        let mut kv: SmallVec<[_; COMPANY]> =
            sequences.map(|(_, sequence)| &mut sequence.kv).collect();
        model.forward(batch, &mut kv)
    }

    /// Counts the rows that `at` has computed, and does what follows from them: from the final
    /// hidden states and logits of those that were wanted.
    fn settle_rows(
        &mut self,
        at: usize,
        rows: usize,
        (hidden, logits): (&[f32], &[f32]),
        took: Duration,
    ) {
        let sequence = &mut self.sequences[at];
        let start = sequence.kv.len();
        sequence.kv.advance(rows);
        sequence.served = Instant::now();
        if sequence.phase == Phase::Prefill {
            sequence.times.prefill += took;
            self.shared.meter.prompt_tokens.add(rows as u64);
        }
        self.publish(at);
        let sequence = &self.sequences[at];
        let done = sequence.kv.len() == sequence.tokens.len();
        match (&sequence.job.task, sequence.phase) {
            (Task::Score { top }, _) => {
                let top = *top;
                self.score(at, start, logits, top, done);
            }
            (_, Phase::Prefill) if done => {
                self.keep_prompt(at, hidden);
                self.after_prompt(at, logits);
            }
            (_, Phase::Prefill) => self.tell_progress(at),
            _ => self.sample(at, logits),
        }
    }

    /// The prompt is complete: generate each text, unless nothing was asked for.
    fn after_prompt(&mut self, at: usize, logits: &[f32]) {
        let others = match self.fork(at) {
            Ok(others) => others,
            Err(error) => return self.fail(at, Failure::Memory(error.to_string())),
        };
        for at in std::iter::once(at).chain(others) {
            if self.sequences[at].wants_logits() {
                self.sample(at, logits);
            } else {
                self.finish(at, Finish::Length);
            }
        }
    }

    fn sample(&mut self, at: usize, logits: &[f32]) {
        let context = self.loaded.info.context;
        let sequence = &mut self.sequences[at];
        let place = Place { choice: sequence.choice, position: sequence.tokens.len() as u64 };
        let (prompt, generated) = sequence.tokens.split_at(sequence.job.tokens.len());
        let Task::Sample(sampling) = &mut sequence.job.task else { return };
        let token = self.sampler.choose(logits, sampling, prompt, generated, place);
        let id = token.id;
        if sampling.stop_tokens.contains(&id) {
            return self.finish(at, Finish::Stop);
        }
        let verdict = sampling.constraint.as_mut().map(|constraint| constraint.accept(id));
        let limit = sampling.max_tokens;
        sequence.push(token, &self.shared.meter);
        if verdict == Some(super::constraint::Verdict::Stop) {
            self.finish(at, Finish::Stop);
        } else if sequence.generated >= limit || sequence.tokens.len() >= context {
            self.finish(at, Finish::Length);
        }
    }

    /// Tells the log-probability of the token after each row.
    fn score(&mut self, at: usize, start: usize, logits: &[f32], top: usize, done: bool) {
        let sequence = &self.sequences[at];
        for (row, logits) in logits.chunks_exact(self.loaded.info.vocab).enumerate() {
            let id = sequence.tokens[start + row + 1];
            sequence.tell(Event::Scored(sampler::describe(logits, id, Some(top))));
        }
        if done {
            self.finish(at, Finish::Length);
        }
    }

    fn tell_progress(&mut self, at: usize) {
        let sequence = &mut self.sequences[at];
        let recent = sequence.progress.is_some_and(|told| told.elapsed() < PROGRESS);
        if recent || !sequence.has_room_for_progress() {
            return;
        }
        sequence.progress = Some(Instant::now());
        let count = |tokens: usize| u32::try_from(tokens).unwrap_or(u32::MAX);
        let (done, total) = (count(sequence.kv.len()), count(sequence.prompt()));
        sequence.tell(Event::Progress { done, total });
    }
}

/// How many rows of a slice are wanted.
fn wanted_of(batch: &Batch, slice: &Range<usize>) -> usize {
    batch.wanted.iter().filter(|row| slice.contains(row)).count()
}

/// Cuts the first `len` numbers off.
fn cut<'n>(numbers: &mut &'n [f32], len: usize) -> &'n [f32] {
    let (first, rest) = numbers.split_at(len);
    *numbers = rest;
    first
}

impl Sequence {
    /// Takes the sampled token in; it runs in the next step.
    fn push(&mut self, token: Token, meter: &Meter) {
        let now = Instant::now();
        self.measure_token(now, meter);
        self.tokens.push(token.id);
        self.generated += 1;
        self.phase = Phase::Decode;
        self.first_token.get_or_insert(now);
        self.last_token = Some(now);
        self.tell(Event::Token(token));
    }
}
