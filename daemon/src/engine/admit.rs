//! From a queued job to a sequence with memory.
//!
//! A job waits until its turn comes (`line`) and its bytes fit into the active budget (`room`); then
//! it looks for what it can reuse (`look_up`).
//! One that lost its memory to a higher priority comes back the same way, with what it has
//! generated behind its prompt.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use super::Engine;
use super::event::{Event, Failure};
use super::job::{Job, Task};
use super::line::InLine;
use super::sequence::{SeqId, Sequence};
use crate::kv::layout::BLOCK;
use crate::store::Family;

impl Engine {
    /// Admits whoever waits, in the order of turns, while their bytes fit.
    pub(super) fn admit(&mut self) {
        let now = Instant::now();
        if self.is_blocked(now) {
            return;
        }
        while let Some(next) = self.next_in_line(now) {
            let fits = match next {
                InLine::Job(at) => self.admit_job(at),
                InLine::Preempted(at) => self.readmit(at),
            };
            if !fits {
                return self.block(now);
            }
        }
    }

    /// Lets a sequence that was preempted go on; false when there is no room for it.
    fn readmit(&mut self, at: usize) -> bool {
        let needed = self.sequences[at].needed_bytes();
        if !self.has_room_for(needed) {
            return false;
        }
        let sequence = &mut self.sequences[at];
        let since = sequence.preempted.unwrap_or(sequence.job.received);
        sequence.times.queue += since.elapsed();
        sequence.served = Instant::now();
        sequence.reserved = needed;
        self.look_up(at);
        true
    }

    /// Admits or refuses a queued job; false when there is no room for it.
    fn admit_job(&mut self, at: usize) -> bool {
        let job = &self.queue.jobs()[at];
        if let Some(failure) = self.refusal(job) {
            let job = self.queue.take(at, Instant::now());
            self.refuse(&job, failure);
            return true;
        }
        let (caller, block_bytes) = (job.caller, self.loaded.info.layout(job.codec).block_bytes());
        let needed = needed_blocks(job) * block_bytes;
        if needed > self.settings.active_budget {
            let (needed, budget) = (needed as u64, self.settings.active_budget as u64);
            let job = self.queue.take(at, Instant::now());
            self.refuse(&job, Failure::TooLarge { needed, budget });
            return true;
        }
        if !self.make_room(needed, caller.priority) {
            return false;
        }
        let job = self.queue.take(at, Instant::now());
        let family = self.family(&job);
        self.enter(job, family, needed);
        true
    }

    /// Puts a job that has arrived into the queue. A client may fill seven eighths of it, so that
    /// others find room.
    pub(super) fn enqueue(&mut self, job: Job) {
        let waiting = self.queue.count(job.caller.client);
        let limit = self.settings.queue - self.settings.queue / 8;
        if waiting >= limit {
            return self.refuse(&job, Failure::Share { waiting, limit });
        }
        self.queue.push(job);
    }

    fn refusal(&self, job: &Job) -> Option<Failure> {
        if job.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return Some(Failure::Deadline { tokens: 0, kept: 0 });
        }
        if self.draining.is_some() {
            return Some(Failure::Draining);
        }
        (job.generation != self.generation || self.stale).then_some(Failure::Reloaded)
    }

    pub(super) fn refuse(&self, job: &Job, failure: Failure) {
        self.mailbox.in_hand();
        let _ = job.events.try_send(Event::Failed(failure));
    }

    fn family(&mut self, job: &Job) -> Arc<Family> {
        let family = self.loaded.info.family(job.codec, job.adapter, &job.namespace);
        let name = family.fingerprint;
        if self.families.len().is_power_of_two() && !self.families.contains_key(&name) {
            self.forget_families();
        }
        let family = self.families.entry(name).or_insert_with(|| {
            if let Some(store) = &self.store {
                store.declare(&family);
            }
            Arc::new(family)
        });
        Arc::clone(family)
    }

    /// Forgets the families that nothing in memory belongs to. A caller may ask in a namespace of
    /// its own each time.
    fn forget_families(&mut self) {
        let held: HashSet<_> = self.index.records().map(|record| record.family).collect();
        let used = |family: &Arc<Family>| Arc::strong_count(family) > 1;
        self.families.retain(|name, family| held.contains(name) || used(family));
    }

    fn enter(&mut self, job: Job, family: Arc<Family>, reserved: usize) {
        self.mailbox.in_hand();
        self.next += 1;
        let sequence = Sequence::new(SeqId(self.next), job, family, reserved);
        self.sequences.push(sequence);
        self.look_up(self.sequences.len() - 1);
    }
}

/// Blocks that a job may come to own: of its whole prompt and text, one that is being filled, and
/// the texts of its other choices with the block in which they part.
fn needed_blocks(job: &Job) -> usize {
    let text = match &job.task {
        Task::Sample(sampling) => sampling.max_tokens as usize,
        Task::Score { .. } => 0,
    };
    blocks_of(job.tokens.len() + text) + (job.choices() as usize - 1) * blocks_of(text)
}

/// Blocks of so many rows, and one that is being filled.
pub(super) fn blocks_of(rows: usize) -> usize {
    rows.div_ceil(BLOCK) + 1
}
