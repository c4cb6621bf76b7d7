//! What a step leaves behind: published blocks, records, saves, and ended sequences.

use std::sync::Arc;
use std::time::Instant;

use super::Engine;
use super::event::{Done, Event, Failure, Finish};
use super::handle::Message;
use super::job::{Persist, Policy};
use super::sequence::{Phase, Sequence};
use crate::kv::block::Block;
use crate::kv::index::Origin;
use crate::kv::key::RecordKey;
use crate::kv::record::Record;
use crate::store::{Durability, Save};

/// A generation's new blocks go to the disk in pieces of this size.
const FLUSH: usize = 4 << 20;

impl Engine {
    /// Seals the blocks whose rows are complete, and shows them to everyone.
    pub(super) fn publish(&mut self, at: usize) {
        while let Some(block) = self.sequences[at].seal_next() {
            let sequence = &mut self.sequences[at];
            self.claims.settle(&block.key);
            if !sequence.publishes() || self.stale {
                continue;
            }
            if sequence.job.policy == Policy::Refresh {
                self.index.replace(Arc::clone(&block));
            }
            let shared = self.index.insert(block, Origin::Memory);
            sequence.kv.swap_last(shared);
        }
        let sequence = &self.sequences[at];
        let unsaved = sequence.kv.sealed().len() - sequence.saved;
        if sequence.phase == Phase::Decode && unsaved * sequence.family.layout.block_bytes() > FLUSH
        {
            self.save(at, None, Durability::Behind);
        }
        self.evict();
    }

    /// Keeps the end of the prompt with its final hidden state, and sends the prompt to the disk.
    pub(super) fn keep_prompt(&mut self, at: usize, hidden: &[f32]) {
        let id = self.sequences[at].id;
        // The prompt of one that goes on after a preemption was kept before it.
        if self.sequences[at].publishes() && !self.stale && self.sequences[at].is_fresh() {
            let record = self.sequences[at].record(Some(hidden.to_vec()));
            let record = Arc::new(record);
            if self.sequences[at].job.policy == Policy::Refresh {
                self.index.remove_record(&record.key);
            }
            self.index.insert_record(Arc::clone(&record), Origin::Memory);
            let job = &self.sequences[at].job;
            let fields = self.sequences[at].family.fields;
            self.history.push(fields, Arc::clone(&job.tokens), job.text);
            self.save(at, Some(record), Durability::Behind);
            let chain: Vec<_> = self.sequences[at].kv.sealed().to_vec();
            self.index.touch(&chain);
        }
        self.claims.release(id);
    }

    /// Ends a sequence well.
    pub(super) fn finish(&mut self, at: usize, finish: Finish) {
        let sequence = &self.sequences[at];
        let durable = sequence.job.persist == Persist::Durable && sequence.persists();
        let (id, mailbox) = (sequence.id, self.own.clone());
        let done = sequence.done(finish);
        let durability = match durable && self.store.is_some() {
            true => Durability::Durable(Box::new(move |synced| {
                // An engine that is gone waits for nothing.
                let _ = mailbox.send(Message::Durable(id, synced));
            })),
            false => Durability::Behind,
        };
        let waits = matches!(durability, Durability::Durable(_));
        self.keep_rest(at, durability);
        self.pin_prompt(at, finish);
        let sequence = &mut self.sequences[at];
        if waits && !self.stale {
            sequence.phase = Phase::Syncing;
            self.unsynced.insert(sequence.id, done);
        } else {
            sequence.tell(Event::Done(done));
            self.end(at);
        }
    }

    /// A sync that a finished sequence waited for is over.
    pub(super) fn synced(&mut self, id: super::SeqId, synced: bool) {
        let (Some(at), Some(mut done)) = (self.position(id), self.unsynced.remove(&id)) else {
            return;
        };
        done.durable = Some(synced);
        done.times = self.sequences[at].final_times();
        self.sequences[at].tell(Event::Done(done));
        self.end(at);
    }

    /// Ends a sequence that the daemon has no more time for. One whose reply is complete says so,
    /// and that it was not synced.
    fn cut_short(&mut self, at: usize) {
        if self.unsynced.contains_key(&self.sequences[at].id) {
            return self.synced(self.sequences[at].id, false);
        }
        self.finish(at, Finish::Cancelled);
    }

    /// Ends a sequence that cannot go on; finished blocks stay.
    pub(super) fn fail(&mut self, at: usize, failure: Failure) {
        self.keep_rest(at, Durability::Behind);
        self.sequences[at].tell(Event::Failed(failure));
        self.end(at);
    }

    /// Ends a sequence whose reader has gone; finished blocks stay.
    pub(super) fn abandon(&mut self, at: usize) {
        let kept = self.keep_rest(at, Durability::Behind);
        let sequence = &self.sequences[at];
        tracing::info!(
            sequence = sequence.id.0,
            prompt = sequence.prompt(),
            generated = sequence.generated,
            kept,
            "cancelled"
        );
        self.end(at);
    }

    /// Keeps what a sequence leaves behind its last published block: the tail as a record, and
    /// everything unsaved on the disk. Returns how many tokens stay cached.
    fn keep_rest(&mut self, at: usize, durability: Durability) -> usize {
        let sequence = &self.sequences[at];
        let length = sequence.kv.len();
        let keeps = sequence.publishes() && !self.stale && !sequence.scores() && length > 0;
        let waits = matches!(durability, Durability::Durable(_));
        if !keeps {
            if let Durability::Durable(reply) = durability {
                reply(false);
            }
            return 0;
        }
        let computed = length > sequence.cached;
        let extended = computed && length != sequence.prompt();
        let record = extended.then(|| Arc::new(sequence.record(None)));
        if let Some(record) = &record {
            self.index.insert_record(Arc::clone(record), Origin::Memory);
        }
        if waits || (computed && (record.is_some() || sequence.unsaved())) {
            let record = record
                .or_else(|| self.index.record(&sequence.prompt_key(), sequence.prompt_tail()));
            self.save(at, record, durability);
        }
        length
    }

    pub(super) fn save(&mut self, at: usize, record: Option<Arc<Record>>, durability: Durability) {
        let sequence = &mut self.sequences[at];
        let Some(store) = self.store.as_ref().filter(|_| sequence.persists()) else { return };
        if sequence.kv.len() < store.minimum_tokens() {
            // Its blocks go with a later save, should the chain grow.
            if let Durability::Durable(reply) = durability {
                reply(false);
            }
            return;
        }
        let blocks = sequence.kv.sealed()[sequence.saved..].to_vec();
        sequence.saved = sequence.kv.sealed().len();
        let mailbox = self.own.clone();
        let published = move |blocks| {
            // An engine that is gone keeps no index.
            let _ = mailbox.send(Message::Published(blocks));
        };
        store.save(Save {
            family: Arc::clone(&sequence.family),
            blocks,
            record,
            replace: sequence.job.policy == Policy::Refresh,
            durability,
            published: Box::new(published),
        });
    }

    /// The writer has published blocks: the index reads them from their segment from now on, and
    /// their heap is free as soon as no sequence uses it.
    pub(super) fn published(&mut self, blocks: Vec<Arc<Block>>) {
        for block in blocks {
            self.index.replace(block);
        }
        // What was not written can be evicted now, too.
        self.evict();
        self.slabs.values_mut().for_each(super::Slabs::trim);
    }

    /// A sequence is over; it stays in its place until [`bury`](Self::bury), so that the places
    /// of a step's other sequences stay right.
    fn end(&mut self, at: usize) {
        let sequence = &mut self.sequences[at];
        sequence.phase = Phase::Ended;
        self.claims.release(sequence.id);
    }

    /// Drops the sequences that are over, with their open blocks.
    pub(super) fn bury(&mut self) {
        let is_over = |at: &usize| self.sequences[*at].phase == Phase::Ended;
        let over: Vec<_> = (0..self.sequences.len()).filter(is_over).collect();
        if over.is_empty() {
            return;
        }
        over.into_iter().for_each(|at| self.pass_on(at));
        self.sequences.retain(|sequence| sequence.phase != Phase::Ended);
        self.evict();
        self.slabs.values_mut().for_each(super::Slabs::trim);
    }

    /// Ends sequences that nobody waits for any more: readers gone, deadlines passed, readers
    /// that do not read, and everyone when draining takes too long.
    pub(super) fn sweep(&mut self) {
        let now = Instant::now();
        let over = |job: &super::Job| {
            job.events.is_closed() || job.deadline.is_some_and(|deadline| deadline <= now)
        };
        for job in self.queue.take_if(over) {
            self.refuse(&job, Failure::Deadline { tokens: 0, kept: 0 });
        }
        for at in 0..self.sequences.len() {
            let sequence = &mut self.sequences[at];
            if sequence.phase == Phase::Ended {
                continue;
            }
            if sequence.abandoned() {
                self.abandon(at);
            } else if sequence.job.deadline.is_some_and(|deadline| deadline <= now) {
                let (tokens, kept) = (sequence.generated, sequence.kept());
                self.fail(at, Failure::Deadline { tokens, kept });
            } else if sequence.is_stalled(now, self.settings.stall) {
                self.fail(at, Failure::Stalled(self.settings.stall));
            } else if self.draining.is_some_and(|deadline| deadline <= now) {
                self.cut_short(at);
            }
        }
    }
}

impl Sequence {
    /// The end of the chain as far as its rows go.
    fn record(&self, hidden: Option<Vec<f32>>) -> Record {
        let sealed = self.kv.sealed().len();
        let length = self.kv.len();
        let tail = self.tokens[sealed * crate::kv::layout::BLOCK..length].to_vec();
        let last = self.parent(sealed);
        let family = self.family.fingerprint;
        let key = RecordKey::new(&family, &last, &tail);
        let text = self.job.text.filter(|_| hidden.is_some());
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        Record { family, key, last, length, tail, rows: self.kv.tail_rows(), hidden, text }
    }

    pub(super) fn unsaved(&self) -> bool {
        self.kv.sealed().len() > self.saved
    }

    fn kept(&self) -> u32 {
        let kept = if self.publishes() { self.kv.len() } else { 0 };
        u32::try_from(kept).unwrap_or(u32::MAX)
    }

    fn is_stalled(&mut self, now: Instant, limit: std::time::Duration) -> bool {
        if self.has_room() {
            self.stalled = None;
            return false;
        }
        now - *self.stalled.get_or_insert(now) > limit
    }

    fn done(&self, finish: Finish) -> Done {
        Done {
            choice: self.choice,
            finish,
            reuse: self.reuse.clone(),
            completion: self.generated,
            kept: self.kept(),
            key: self.publishes().then(|| self.prompt_key()),
            saturated: self.kv.saturated(),
            durable: None,
            times: self.final_times(),
        }
    }
}
