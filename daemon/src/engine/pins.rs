//! Pins: leases on what an engine holds, or will hold.

use super::event::Finish;
use super::handle::{Message, Refused};
use super::{Engine, EngineHandle};
use crate::kv::key::{End, RecordKey};
use crate::kv::layout::BLOCK;
use crate::kv::pin::{Lease, NoRoom, Pinned};

impl EngineHandle {
    /// Keeps a chain from eviction in memory; one that is not there is kept once it is. Blocks for
    /// up to one step: call it off the runtime.
    ///
    /// # Errors
    /// As for [`remove`](Self::remove), and inside when pins would hold more than half of a budget.
    pub fn pin(&self, lease: Lease) -> Result<Result<Pinned, NoRoom>, Refused> {
        self.ask(|reply| Message::Pin(lease, Some(reply)))
    }

    /// The same when the engine reads its mailbox the next time.
    pub fn pin_behind(&self, lease: Lease) {
        // An engine that is gone holds nothing.
        let _ = self.mailbox.send(Message::Pin(lease, None));
    }

    /// Lets a prompt be evicted again when the engine reads its mailbox the next time.
    pub fn unpin_behind(&self, key: RecordKey) {
        // An engine that is gone holds nothing.
        let _ = self.mailbox.send(Message::Unpin(key));
    }
}

impl Engine {
    /// Pins the prompt of a sequence that is about to end, while nothing of it can be evicted.
    pub(super) fn pin_prompt(&mut self, at: usize, finish: Finish) {
        let sequence = &self.sequences[at];
        let publishes = sequence.publishes() && !self.stale && finish != Finish::Cancelled;
        let Some(lasts) = sequence.job.pin.filter(|_| publishes) else { return };
        let last = sequence.parent(sequence.prompt() / BLOCK);
        let end = End { last, tail: sequence.prompt_tail().to_vec() };
        // Whoever wants it kept asks once more at the end, and hears of a refusal then.
        let _ = self.index.pin(Lease::new(sequence.family.fingerprint, end, lasts));
    }

    /// Takes over what the store says is pinned.
    pub(super) fn recall_pins(&mut self) {
        let leases = self.store.as_ref().map(|store| store.leases()).unwrap_or_default();
        for lease in leases {
            // The index is empty: nothing is held yet.
            let _ = self.index.pin(lease);
        }
    }
}
