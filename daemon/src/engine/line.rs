//! Whose turn it is among the engine's jobs and sequences: for memory, and for the rows of a step.

use std::time::Instant;

use super::Engine;
use super::job::ClientId;
use super::sequence::{Phase, SeqId, Sequence};
use super::turns::{Contender, turns};

/// Whose turn for memory it is.
pub(super) enum InLine {
    /// A job, by its place in the queue.
    Job(usize),
    /// A sequence without memory.
    Preempted(usize),
}

/// Whoever was first in line did not fit: until something changes, nobody does.
///
/// All that the answer depends on is compared, so that a full engine need not put its whole queue in
/// order at each step.
#[derive(Debug)]
pub(super) struct Blocked {
    scene: Scene,
    sequences: Vec<Holding>,
    /// When the order of the line changes by itself.
    until: Option<Instant>,
}

/// What admission depends on beside the sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Scene {
    /// Changes of the queue.
    queue: u64,
    generation: u64,
    /// Jobs are refused, to be submitted again or never.
    refusing: bool,
}

/// What admission depends on in a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Holding {
    id: SeqId,
    phase: Phase,
    reserved: usize,
    /// Blocks that it has of those of whom it follows: the next one may be somebody else's.
    followed: Option<usize>,
}

impl Blocked {
    fn lasts(&self, scene: Scene, sequences: impl Iterator<Item = Holding>, now: Instant) -> bool {
        self.until.is_none_or(|until| now < until)
            && self.scene == scene
            && sequences.eq(self.sequences.iter().copied())
    }
}

impl Engine {
    /// Remembers that whoever is first in line at `now` does not fit.
    pub(super) fn block(&mut self, now: Instant) {
        let until = self.contenders(now).filter_map(|one| one.rises).min();
        let sequences = self.sequences.iter().map(Sequence::holding).collect();
        self.blocked = Some(Blocked { scene: self.scene(), sequences, until });
    }

    /// Whether whoever is first in line still does not fit.
    pub(super) fn is_blocked(&self, now: Instant) -> bool {
        let holdings = self.sequences.iter().map(Sequence::holding);
        let blocked = self.blocked.as_ref();
        blocked.is_some_and(|blocked| blocked.lasts(self.scene(), holdings, now))
    }

    fn scene(&self) -> Scene {
        let refusing = self.stale || self.draining.is_some();
        Scene { queue: self.queue.changes(), generation: self.generation, refusing }
    }

    /// Whoever waits for memory: jobs, then sequences without.
    fn contenders(&self, now: Instant) -> impl Iterator<Item = Contender> {
        let preempted = self.preempted().map(move |at| self.sequences[at].contender(now));
        self.queue.contenders(now).chain(preempted)
    }

    fn preempted(&self) -> impl Iterator<Item = usize> {
        (0..self.sequences.len()).filter(|at| self.sequences[*at].phase == Phase::Preempted)
    }

    /// Whose turn for memory it is.
    pub(super) fn next_in_line(&self, now: Instant) -> Option<InLine> {
        let contenders: Vec<_> = self.contenders(now).collect();
        let first = *turns(&contenders, |client| self.running(client)).first()?;
        match first.checked_sub(self.queue.len()) {
            None => Some(InLine::Job(first)),
            Some(nth) => self.preempted().nth(nth).map(InLine::Preempted),
        }
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
                contenders.push(sequence.contender_behind(&self.sequences[leader], now));
                places.push(leader);
            }
        }
        turns(&contenders, |_| 0).into_iter().map(|nth| places[nth]).collect()
    }
}

impl Sequence {
    fn contender(&self, now: Instant) -> Contender {
        Contender::of(self.job.caller, self.served, now)
    }

    /// As it stands when the work is `leader`'s, which may be itself: whom that computes for is
    /// served with it.
    fn contender_behind(&self, leader: &Self, now: Instant) -> Contender {
        let served = self.served.max(leader.served);
        let work = leader.debt();
        Contender { work, ..Contender::of(self.job.caller, served, now) }
    }

    fn holding(&self) -> Holding {
        let followed = (self.phase == Phase::Following).then(|| self.kv.sealed().len());
        Holding { id: self.id, phase: self.phase, reserved: self.reserved, followed }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SCENE: Scene = Scene { queue: 7, generation: 1, refusing: false };
    const RUNS: Holding =
        Holding { id: SeqId(1), phase: Phase::Decode, reserved: 100, followed: None };
    const FOLLOWS: Holding =
        Holding { id: SeqId(2), phase: Phase::Following, reserved: 50, followed: Some(3) };

    #[test]
    fn a_line_is_looked_at_again_when_anything_has_changed_that_may_make_room() {
        let now = Instant::now();
        let until = now + Duration::from_secs(10);
        let blocked = Blocked { scene: SCENE, sequences: vec![RUNS, FOLLOWS], until: Some(until) };
        let lasts = |scene, sequences: &[Holding], now| {
            blocked.lasts(scene, sequences.iter().copied(), now)
        };
        assert!(lasts(SCENE, &[RUNS, FOLLOWS], now + Duration::from_secs(9)));
        assert!(!lasts(SCENE, &[RUNS, FOLLOWS], until), "somebody has grown old");
        let scenes = [
            Scene { queue: 8, ..SCENE },
            Scene { generation: 2, ..SCENE },
            Scene { refusing: true, ..SCENE },
        ];
        for scene in scenes {
            assert!(!lasts(scene, &[RUNS, FOLLOWS], now), "{scene:?}");
        }
        let changed: [&[Holding]; 6] = [
            &[RUNS],
            &[FOLLOWS],
            &[RUNS, FOLLOWS, RUNS],
            &[Holding { phase: Phase::Ended, ..RUNS }, FOLLOWS],
            &[Holding { reserved: 99, ..RUNS }, FOLLOWS],
            &[RUNS, Holding { followed: Some(4), ..FOLLOWS }],
        ];
        for sequences in changed {
            assert!(!lasts(SCENE, sequences, now), "{sequences:?}");
        }
    }
}
