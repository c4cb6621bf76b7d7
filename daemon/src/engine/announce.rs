//! What a reader is told of reuse: how much, of what kind, and why no more.

use super::Engine;
use super::event::{Admitted, Event, Reason, Reuse, Verdict};
use super::history::Asked;
use super::job::Policy;
use super::sequence::Phase;
use super::why::Edge;

impl Engine {
    /// Tells the reader what is reused; once.
    pub(super) fn announce(&mut self, at: usize) {
        if self.sequences[at].announced {
            return;
        }
        let reason = self.reason(at);
        let sequence = &mut self.sequences[at];
        sequence.reuse.reason = reason;
        let full = sequence.phase == Phase::Head;
        sequence.reuse.verdict = verdict(sequence.job.policy, full, &sequence.reuse);
        sequence.announced = true;
        let queued = sequence.times.queue;
        let reuse = sequence.reuse.clone();
        sequence.tell(Event::Admitted(Admitted { queued, reuse }));
    }

    /// Why less than the whole prompt is reused; what was observed comes before what is likely.
    fn reason(&self, at: usize) -> Option<Reason> {
        let sequence = &self.sequences[at];
        match sequence.job.policy {
            Policy::Bypass => return Some(Reason::PolicyBypass),
            Policy::Refresh => return Some(Reason::PolicyRefresh),
            Policy::Use | Policy::ReadOnly => {}
        }
        if sequence.phase == Phase::Head || sequence.scores() {
            return None;
        }
        if let Some(damage) = &sequence.damage {
            return Some(damage.clone());
        }
        let asked = Asked {
            fields: &sequence.family.fields,
            tokens: &sequence.job.tokens,
            text: sequence.job.text,
            cached: sequence.cached,
        };
        let blocks = sequence.kv.sealed().len();
        let (fingerprint, last) = (&sequence.family.fingerprint, sequence.parent(blocks));
        Some(self.why(&asked, &Edge { fingerprint, last, blocks, beyond: None }))
    }
}

/// The summary of what is reused; `full` when a record answers the whole prompt.
pub(super) fn verdict(policy: Policy, full: bool, reuse: &Reuse) -> Verdict {
    match policy {
        Policy::Bypass => Verdict::Bypassed,
        _ if reuse.joined > 0 => Verdict::Joined,
        _ if full && reuse.disk > 0 => Verdict::FullDisk,
        _ if full => Verdict::FullMemory,
        _ if reuse.disk > 0 => Verdict::PartialDisk,
        _ if reuse.memory > 0 => Verdict::PartialMemory,
        _ => Verdict::Cold,
    }
}
