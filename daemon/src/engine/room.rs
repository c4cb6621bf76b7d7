//! Memory for those who wait: whose turn it is, and what a higher priority takes from a lower one.
//!
//! Preemption is for priority only. It drops the open rows of a sequence and leaves its sealed
//! blocks to the index; the sequence waits for its turn and computes what is missing again, to the
//! same bits. It happens to a sequence once: from then on it keeps what it gets.

use std::time::Instant;

use super::Engine;
use super::admit::InLine;
use super::job::{ClientId, Priority};
use super::sequence::{Phase, Sequence};
use super::turns::{Contender, Level, turns};
use crate::store::Durability;

impl Engine {
    /// Whose turn for memory it is.
    pub(super) fn next_in_line(&self) -> Option<InLine> {
        let now = Instant::now();
        let mut contenders: Vec<_> = self.queue.contenders(now).collect();
        let jobs = contenders.len();
        let preempted = |(_, sequence): &(usize, &Sequence)| sequence.phase == Phase::Preempted;
        let preempted: Vec<_> = self.sequences.iter().enumerate().filter(preempted).collect();
        contenders.extend(preempted.iter().map(|(_, sequence)| sequence.contender(now)));
        let running = |client: ClientId| self.running(client);
        let first = *turns(&contenders, running).first()?;
        Some(match first.checked_sub(jobs) {
            None => InLine::Job(first),
            Some(nth) => InLine::Preempted(preempted[nth].0),
        })
    }

    /// Sequences of a client that have memory.
    fn running(&self, client: ClientId) -> usize {
        let of = |sequence: &&Sequence| sequence.job.caller.client == client;
        self.sequences.iter().filter(of).filter(|sequence| sequence.phase.runs()).count()
    }

    /// Whether the active budget has `needed` bytes left.
    pub(super) fn has_room_for(&self, needed: usize) -> bool {
        self.reserved() + needed <= self.settings.active_budget
    }

    fn reserved(&self) -> usize {
        self.sequences.iter().map(|sequence| sequence.reserved).sum()
    }

    /// Makes room for `needed` bytes, from sequences of a lower priority where it must. Takes
    /// nothing where that would not suffice.
    pub(super) fn make_room(&mut self, needed: usize, priority: Priority) -> bool {
        if self.has_room_for(needed) {
            return true;
        }
        let mut victims: Vec<_> =
            (0..self.sequences.len()).filter(|at| self.yields_to(*at, priority)).collect();
        let gain: usize = victims.iter().map(|at| self.sequences[*at].reserved).sum();
        if self.reserved() - gain + needed > self.settings.active_budget {
            return false;
        }
        // The last to come is the first to go: it has the least to compute again.
        victims.sort_by_key(|at| {
            let job = &self.sequences[*at].job;
            (job.caller.priority, std::cmp::Reverse(job.received))
        });
        for at in victims {
            if self.has_room_for(needed) {
                break;
            }
            self.preempt(at);
        }
        true
    }

    /// Whether a sequence gives its memory up for a request of `priority`. One that computes for
    /// others counts as high as the highest of them; scores are told while they are computed, and
    /// would be told twice.
    fn yields_to(&self, at: usize, priority: Priority) -> bool {
        let sequence = &self.sequences[at];
        let held = matches!(
            sequence.phase,
            Phase::Prefill | Phase::Head | Phase::Decode | Phase::Following
        );
        let first_time = sequence.preempted.is_none() && !sequence.scores();
        held && first_time && sequence.reserved > 0 && self.standing(at) < priority
    }

    /// A sequence's priority, or that of the most urgent one that follows it.
    fn standing(&self, at: usize) -> Priority {
        let followers = (0..self.sequences.len()).filter(|other| self.leader(*other) == Some(at));
        let urgent = followers.map(|other| self.sequences[other].job.caller.priority).max();
        urgent.into_iter().chain([self.sequences[at].job.caller.priority]).max().unwrap_or_default()
    }

    fn preempt(&mut self, at: usize) {
        let sequence = &self.sequences[at];
        tracing::info!(sequence = sequence.id.0, tokens = sequence.kv.len(), "preempted");
        if sequence.unsaved() && sequence.publishes() && !self.stale {
            self.save(at, None, Durability::Behind);
        }
        self.claims.release(self.sequences[at].id);
        self.sequences[at].withdraw();
        self.evict();
        self.slabs.values_mut().for_each(super::Slabs::trim);
    }

    /// Gives a sequence that was preempted `needed` bytes to go on with.
    pub(super) fn resume(&mut self, at: usize, needed: usize) {
        let sequence = &mut self.sequences[at];
        let since = sequence.preempted.unwrap_or(sequence.job.received);
        sequence.times.queue += since.elapsed();
        sequence.served = Instant::now();
        sequence.reserved = needed;
        self.look_up(at);
    }

    /// The places of the sequences whose prompts are computed next, in the order of their turns. A
    /// sequence has its turn when one that follows it has.
    pub(super) fn prefill_turns(&self) -> Vec<usize> {
        let now = Instant::now();
        let (mut contenders, mut places) = (Vec::new(), Vec::new());
        for (at, sequence) in self.sequences.iter().enumerate() {
            let leader = match sequence.phase {
                Phase::Prefill => Some(at),
                Phase::Following => self.leader(at),
                _ => None,
            };
            if let Some(leader) = leader {
                let work = self.sequences[leader].debt();
                contenders.push(Contender { work, ..sequence.contender(now) });
                places.push(leader);
            }
        }
        turns(&contenders, |_| 0).into_iter().map(|nth| places[nth]).collect()
    }

    /// Whom a sequence follows.
    fn leader(&self, at: usize) -> Option<usize> {
        let following = self.sequences[at].phase == Phase::Following;
        self.position(following.then(|| self.claimant(at)).flatten()?)
    }
}

impl Sequence {
    fn contender(&self, now: Instant) -> Contender {
        let caller = self.job.caller;
        let unserved = now.saturating_duration_since(self.served);
        Contender {
            level: Level::of(caller.priority, unserved),
            client: caller.client,
            work: 0,
            since: self.served,
        }
    }
}
