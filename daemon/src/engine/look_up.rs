//! What an admitted sequence reuses, and what it does without.
//!
//! The longest chain over memory and disk is found; what only the disk has goes to a loader first,
//! and the sequence becomes runnable when its blocks are mapped and verified.
//! If another sequence is computing the next block, this one follows it instead of computing it
//! too.

use std::sync::Arc;
use std::time::Instant;

use super::Engine;
use super::event::Reason;
use super::handle::Message;
use super::sequence::{Phase, SeqId, Sequence};
use crate::kv::index::{Lent, Origin};
use crate::kv::layout::BLOCK;
use crate::kv::record::Record;
use crate::store::{Restore, Restored};

impl Engine {
    /// Finds out what a sequence without rows can reuse.
    pub(super) fn look_up(&mut self, at: usize) {
        if self.sequences[at].reads_cache() {
            self.attach_known(at);
            if self.ask_disk(at) {
                return;
            }
        }
        self.go_on(at);
    }

    /// Sends a loader after what memory does not have. Whether there is anything to wait for.
    fn ask_disk(&mut self, at: usize) -> bool {
        let sequence = &mut self.sequences[at];
        let Some(store) = &self.store else { return false };
        let (record, tail) = sequence.end();
        let whole = sequence.kv.sealed().len() == sequence.tokens.len() / BLOCK;
        if whole && self.index.record(&record, tail).is_some() {
            return false;
        }
        let restore = Restore {
            family: Arc::clone(&sequence.family),
            tokens: match sequence.is_fresh() {
                true => Arc::clone(&sequence.job.tokens),
                false => Arc::from(&sequence.tokens[..]),
            },
            keys: Arc::from(&sequence.keys[..]),
            from: sequence.kv.sealed().len(),
        };
        if !store.may_have(&restore, record) {
            return false;
        }
        let (id, removals, mailbox) = (sequence.id, self.removals, self.own.clone());
        let reply = move |restored| {
            // An engine that is gone needs no answer.
            let _ = mailbox.send(Message::Restored(id, removals, restored));
        };
        store.restore(restore, Box::new(reply));
        sequence.phase = Phase::Restoring;
        sequence.restoring = Some(Instant::now());
        true
    }

    /// Takes in what a loader found, and goes on with the sequence that asked.
    pub(super) fn restored(&mut self, id: SeqId, restored: Restored) {
        let Restored { blocks, partial, record, corrupt, io_error } = restored;
        for block in blocks.into_iter().chain(partial) {
            self.index.insert(block, Origin::Disk);
        }
        if let Some(record) = record {
            self.index.insert_record(record, Origin::Disk);
        }
        let Some(at) = self.position(id) else { return };
        let sequence = &mut self.sequences[at];
        if sequence.phase != Phase::Restoring {
            return;
        }
        if let Some(since) = sequence.restoring.take() {
            sequence.times.load += since.elapsed();
        }
        let damage = corrupt.then_some(Reason::CorruptQuarantined);
        sequence.damage = damage.or(io_error.then_some(Reason::IoError));
        self.go_on(at);
    }

    /// Decides how a sequence without rows of its own goes on.
    pub(super) fn go_on(&mut self, at: usize) {
        if self.sequences[at].reads_cache() {
            self.attach_known(at);
            if self.try_record(at) {
                self.relieve(at);
                return self.announce(at);
            }
            if self.claimant(at).is_some() {
                self.sequences[at].phase = Phase::Following;
                return;
            }
            self.lend(at);
        }
        let sequence = &mut self.sequences[at];
        sequence.cached = sequence.kv.len();
        sequence.phase = Phase::Prefill;
        self.relieve(at);
        let sequence = &self.sequences[at];
        // A score waits for its reader between rows, so nobody may wait for a score.
        if sequence.publishes() && !sequence.scores() {
            let from = sequence.kv.sealed().len();
            let record = sequence.is_fresh().then(|| sequence.prompt_key());
            self.claims.claim(sequence.id, &sequence.keys[from..], record);
        }
        self.announce(at);
    }

    /// Lets followers attach what has appeared, and take over what was given up.
    pub(super) fn follow(&mut self) {
        for at in 0..self.sequences.len() {
            if self.sequences[at].phase == Phase::Following {
                self.go_on(at);
            }
        }
    }

    /// Attaches every whole block that memory has and that leaves a row to compute, or all of
    /// them when a record makes computing needless.
    fn attach_known(&mut self, at: usize) {
        let has_record = self.complete_record(at).is_some();
        let sequence = &mut self.sequences[at];
        let rows = sequence.tokens.len() - usize::from(!has_record);
        let usable = rows / BLOCK;
        let have = sequence.kv.sealed().len();
        if have >= usable {
            return;
        }
        let keys = &sequence.keys[have..usable];
        let found = self.index.longest(keys, &sequence.tokens[have * BLOCK..]);
        let sources = self.index.touch(&found);
        for (block, source) in found.into_iter().zip(sources) {
            sequence.kv.attach(block);
            sequence.count_reuse(BLOCK, source);
        }
    }

    fn complete_record(&self, at: usize) -> Option<Arc<Record>> {
        let sequence = &self.sequences[at];
        if !sequence.is_fresh() {
            return None;
        }
        let record = self.index.record(&sequence.prompt_key(), sequence.prompt_tail())?;
        record.hidden.is_some().then_some(record)
    }

    /// Uses a record of the whole prompt: no layer runs at all.
    fn try_record(&mut self, at: usize) -> bool {
        let Some(record) = self.complete_record(at) else { return false };
        let sequence = &mut self.sequences[at];
        if sequence.kv.sealed().len() < sequence.prompt() / BLOCK {
            return false;
        }
        let slabs = self.slabs.entry(sequence.job.codec);
        let slabs = slabs.or_insert_with(|| super::Slabs::new(&sequence.family.layout));
        let rows = record.tail.len();
        if let Err(error) = sequence.kv.restore_tail(&record.rows, rows, rows, slabs) {
            tracing::warn!(%error, "no memory for a recorded tail");
            return false;
        }
        let source = self.index.touch_record(&record.key);
        sequence.count_reuse(rows, source);
        sequence.cached = sequence.kv.len();
        sequence.hidden.clone_from(&record.hidden);
        sequence.phase = Phase::Head;
        true
    }

    /// The other sequence that is computing what this one needs next.
    pub(super) fn claimant(&self, at: usize) -> Option<SeqId> {
        let sequence = &self.sequences[at];
        let next = sequence.kv.sealed().len();
        let owner = match sequence.keys.get(next) {
            Some(key) if self.claims.block(key).is_some() => self.claims.block(key),
            _ if next < (sequence.tokens.len() - 1) / BLOCK || !sequence.is_fresh() => None,
            _ => self.claims.record(&sequence.prompt_key()),
        };
        owner.filter(|owner| *owner != sequence.id)
    }

    /// Copies the rows that a relative has in common behind the last whole block.
    fn lend(&mut self, at: usize) {
        let sequence = &mut self.sequences[at];
        let have = sequence.kv.sealed().len();
        let rest = &sequence.tokens[have * BLOCK..];
        let Some(lent) = self.index.lend(&sequence.parent(have), rest, rest.len() - 1) else {
            return;
        };
        let slabs = self.slabs.entry(sequence.job.codec);
        let slabs = slabs.or_insert_with(|| super::Slabs::new(&sequence.family.layout));
        let copied = match &lent {
            Lent::Block(block, rows) => sequence.kv.lend(block, *rows, slabs),
            Lent::Tail(record, rows) => {
                sequence.kv.restore_tail(&record.rows, record.tail.len(), *rows, slabs)
            }
        };
        if let Err(error) = copied {
            tracing::warn!(%error, "no memory for lent rows");
            return;
        }
        let source = match &lent {
            Lent::Block(block, _) => self.index.touch(std::slice::from_ref(block))[0],
            Lent::Tail(record, _) => self.index.touch_record(&record.key),
        };
        sequence.count_reuse(lent.rows(), source);
    }
}

impl Sequence {
    /// What comes back after a preemption was counted before it.
    fn count_reuse(&mut self, tokens: usize, source: Origin) {
        if self.announced {
            return;
        }
        if self.phase == Phase::Following {
            self.reuse.joined += u32::try_from(tokens).unwrap_or(u32::MAX);
        } else {
            self.reuse.add(tokens, source);
        }
    }
}
