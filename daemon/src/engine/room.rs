//! Memory for those who wait, and what a higher priority takes from a lower one.
//!
//! Preemption is for priority only. It drops the open rows of a sequence and leaves its sealed
//! blocks to the index; the sequence waits for its turn and computes what is missing again, to the
//! same bits. It happens to a sequence once: from then on it keeps what it gets.

use super::Engine;
use super::job::Priority;
use super::sequence::Phase;
use crate::store::Durability;

impl Engine {
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
        if self.reserved() - self.gain(&victims) + needed > self.settings.active_budget {
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
        held && first_time && sequence.reserved > 0 && self.urgency(at) < priority
    }

    /// A sequence's priority, or that of the most urgent one that follows it.
    fn urgency(&self, at: usize) -> Priority {
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
        self.pass_on(at);
        self.sequences[at].withdraw();
        self.evict();
        self.slabs.values_mut().for_each(super::Slabs::trim);
    }

    /// Whom a sequence follows.
    pub(super) fn leader(&self, at: usize) -> Option<usize> {
        let following = self.sequences[at].phase == Phase::Following;
        self.position(following.then(|| self.claimant(at)).flatten()?)
    }
}
