//! Whose turn it is among the engine's jobs and sequences: for memory, and for the rows of a step.

use std::time::Instant;

use super::Engine;
use super::job::ClientId;
use super::sequence::{Phase, Sequence};
use super::turns::{Contender, Level, turns};

/// Whose turn for memory it is.
pub(super) enum InLine {
    /// A job, by its place in the queue.
    Job(usize),
    /// A sequence without memory.
    Preempted(usize),
}

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
