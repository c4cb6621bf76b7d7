//! From a queued job to a sequence that knows what it reuses.
//!
//! A job waits until its turn comes and its bytes fit into the active budget (`room`).
//! Then the longest chain over memory and disk is found; what only the disk has goes to a loader
//! first, and the sequence becomes runnable when its blocks are mapped and verified.
//! If another sequence is computing the next block, this one follows it instead of computing it
//! too.
//! One that lost its memory to a higher priority comes back the same way, with what it has
//! generated behind its prompt.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use super::Engine;
use super::handle::Message;
use super::history::Asked;
use super::job::{Admitted, Event, Failure, Job, Policy, Reason, Reuse, Task, Verdict};
use super::sequence::{Phase, SeqId, Sequence};
use super::why::Edge;
use crate::kv::index::{Lent, Origin};
use crate::kv::layout::BLOCK;
use crate::kv::record::Record;
use crate::store::{Family, Restore, Restored};

impl Engine {
    /// Admits whoever waits, in the order of turns, while their bytes fit.
    pub(super) fn admit(&mut self) {
        while let Some(next) = self.next_in_line() {
            match next {
                InLine::Job(at) => {
                    if !self.admit_job(at) {
                        return;
                    }
                }
                InLine::Preempted(at) => {
                    let needed = self.sequences[at].needed_bytes();
                    if !self.has_room_for(needed) {
                        return;
                    }
                    self.resume(at, needed);
                }
            }
        }
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
                self.sequences[at].discharge_shared();
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
        sequence.discharge_shared();
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

    /// Tells the reader what is reused; once.
    fn announce(&mut self, at: usize) {
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

impl Sequence {
    /// Shared blocks are charged to whoever computed them.
    fn discharge_shared(&mut self) {
        let shared = self.kv.sealed().len() * self.family.layout.block_bytes();
        self.reserved = self.reserved.saturating_sub(shared);
    }

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

/// Whose turn it is.
pub(super) enum InLine {
    /// A job, by its place in the queue.
    Job(usize),
    /// A sequence without memory.
    Preempted(usize),
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
