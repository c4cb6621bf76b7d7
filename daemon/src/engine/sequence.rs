//! One request in flight: its tokens, its cache, and where it stands.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::admit::blocks_of;
use super::event::{Event, Reason, Reuse, Times};
use super::job::{Job, Persist, Policy, Task};
use super::scheduler::ROWS_WITH_LOGITS;
use crate::kv::key::{BlockKey, BlockTokens, RecordKey, chain};
use crate::kv::layout::BLOCK;
use crate::kv::seq::KvSeq;
use crate::store::Family;

/// Names a sequence for as long as its engine lives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct SeqId(pub u64);

/// Where a sequence stands. Only `Prefill`, `Head` and `Decode` take part in steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// A loader looks for its blocks.
    Restoring,
    /// Another sequence is computing its next block.
    Following,
    /// Prompt rows are missing.
    Prefill,
    /// A record gave the final hidden state: only the output head is missing.
    Head,
    /// The last token was sampled and is to be run.
    Decode,
    /// Its memory was taken by a higher priority; it waits for its turn to go on.
    Preempted,
    /// The reply is complete; a sync is awaited.
    Syncing,
    /// Over.
    Ended,
}

impl Phase {
    /// Whether a sequence has memory, and something left to do with it.
    pub(super) fn runs(self) -> bool {
        !matches!(self, Self::Preempted | Self::Syncing | Self::Ended)
    }
}

/// A request in flight, or one of the texts that a request asked for.
#[derive(Debug)]
pub struct Sequence {
    pub(super) id: SeqId,
    pub(super) job: Job,
    pub(super) family: Arc<Family>,
    pub(super) phase: Phase,
    /// Of the texts that the request asked for, which; the first computes the prompt for all.
    pub(super) choice: u32,
    /// Texts that the request asked for.
    pub(super) choices: u32,
    /// Texts of the request that begin when the prompt is complete.
    pub(super) to_fork: u32,
    /// The prompt, then what was generated. The last generated token has no rows yet.
    pub(super) tokens: Vec<u32>,
    /// The keys of the whole blocks of the prompt, then of generated blocks as they are sealed.
    pub(super) keys: Vec<BlockKey>,
    pub(super) kv: KvSeq,
    /// Bytes charged against the active budget.
    pub(super) reserved: usize,
    /// Of its first sealed blocks, which it is not charged for: they lie in files, or another
    /// sequence is.
    pub(super) relieved: Vec<bool>,
    pub(super) reuse: Reuse,
    /// Prompt tokens whose rows were here before this sequence computed any.
    pub(super) cached: usize,
    /// The final hidden state that a record gave.
    pub(super) hidden: Option<Vec<f32>>,
    /// Sealed blocks that were handed to the store.
    pub(super) saved: usize,
    pub(super) generated: u32,
    pub(super) times: Times,
    /// When it was given its memory or rows last.
    pub(super) served: Instant,
    /// When its memory was taken, the last time.
    pub(super) preempted: Option<Instant>,
    pub(super) first_token: Option<Instant>,
    pub(super) last_token: Option<Instant>,
    /// Since when its reader has left no room for events.
    pub(super) stalled: Option<Instant>,
    pub(super) restoring: Option<Instant>,
    pub(super) announced: bool,
    pub(super) progress: Option<Instant>,
    /// A file that should have helped was damaged, or could not be read.
    pub(super) damage: Option<Reason>,
}

impl Sequence {
    /// A sequence with an empty cache.
    pub(super) fn new(id: SeqId, job: Job, family: Arc<Family>, reserved: usize) -> Self {
        let tokens = job.tokens.to_vec();
        let keys = chain(&family.fingerprint, &tokens);
        let kv = KvSeq::new(Arc::clone(&family.layout));
        let choices = job.choices();
        let times = Times { queue: job.received.elapsed(), ..Times::default() };
        Self {
            id,
            job,
            family,
            phase: Phase::Prefill,
            choice: 0,
            choices,
            to_fork: choices - 1,
            tokens,
            keys,
            kv,
            reserved,
            relieved: Vec::new(),
            reuse: Reuse::default(),
            cached: 0,
            hidden: None,
            saved: 0,
            generated: 0,
            times,
            served: Instant::now(),
            preempted: None,
            first_token: None,
            last_token: None,
            stalled: None,
            restoring: None,
            announced: false,
            progress: None,
            damage: None,
        }
    }

    /// Prompt tokens.
    pub(super) fn prompt(&self) -> usize {
        self.job.tokens.len()
    }

    /// The name of the block before block `index`.
    pub(super) fn parent(&self, index: usize) -> BlockKey {
        match index.checked_sub(1) {
            Some(before) => self.keys[before],
            None => BlockKey::root(&self.family.fingerprint),
        }
    }

    /// Bytes of the blocks that it may come to own when it goes on without any.
    pub(super) fn needed_bytes(&self) -> usize {
        let text = self.text_left();
        let blocks = blocks_of(self.tokens.len() + text) + self.to_fork as usize * blocks_of(text);
        blocks * self.family.layout.block_bytes()
    }

    /// Gives its rows up, to go on later from its tokens alone.
    pub(super) fn withdraw(&mut self) {
        self.kv = KvSeq::new(Arc::clone(&self.family.layout));
        self.relieved.clear();
        self.keys = chain(&self.family.fingerprint, &self.tokens);
        (self.reserved, self.saved, self.cached, self.hidden) = (0, 0, 0, None);
        if !self.announced {
            self.reuse = Reuse::default();
        }
        self.preempted = Some(Instant::now());
        self.phase = Phase::Preempted;
    }

    /// The ids behind the last whole block of the prompt.
    pub(super) fn prompt_tail(&self) -> &[u32] {
        &self.job.tokens[self.prompt() / BLOCK * BLOCK..]
    }

    /// The name of the prompt.
    pub(super) fn prompt_key(&self) -> RecordKey {
        let last = self.parent(self.prompt() / BLOCK);
        RecordKey::new(&self.family.fingerprint, &last, self.prompt_tail())
    }

    /// The name of all tokens so far, and those behind the last whole block.
    pub(super) fn end(&self) -> (RecordKey, &[u32]) {
        let whole = self.tokens.len() / BLOCK;
        let tail = &self.tokens[whole * BLOCK..];
        (RecordKey::new(&self.family.fingerprint, &self.parent(whole), tail), tail)
    }

    /// Whether its prompt is all that it has: nothing was generated before it lost its rows.
    pub(super) fn is_fresh(&self) -> bool {
        self.generated == 0
    }

    /// Tokens that may still be generated.
    pub(super) fn text_left(&self) -> usize {
        match &self.job.task {
            Task::Sample(sampling) => (sampling.max_tokens - self.generated) as usize,
            Task::Score { .. } => 0,
        }
    }

    /// Rows that the next steps have to compute.
    pub(super) fn debt(&self) -> usize {
        match self.phase {
            Phase::Prefill => self.tokens.len() - self.kv.len(),
            Phase::Decode => 1,
            _ => 0,
        }
    }

    /// Whether hits count.
    pub(super) fn reads_cache(&self) -> bool {
        matches!(self.job.policy, Policy::Use | Policy::ReadOnly) && !self.scores()
    }

    /// Whether its blocks are for others, too.
    pub(super) fn publishes(&self) -> bool {
        matches!(self.job.policy, Policy::Use | Policy::Refresh)
    }

    /// Whether its blocks go to the disk.
    pub(super) fn persists(&self) -> bool {
        self.publishes() && self.job.persist != Persist::No
    }

    /// Whether it wants the log-probabilities of its prompt.
    pub(super) fn scores(&self) -> bool {
        matches!(self.job.task, Task::Score { .. })
    }

    /// Whether it wants the logits of the rows whose hidden state is computed.
    pub(super) fn wants_logits(&self) -> bool {
        match &self.job.task {
            Task::Sample(sampling) => sampling.max_tokens > 0,
            Task::Score { .. } => true,
        }
    }

    /// Seals the first open block if its rows are complete, under the name that its tokens give.
    pub(super) fn seal_next(&mut self) -> Option<Arc<crate::kv::block::Block>> {
        if self.kv.tail_len() < BLOCK {
            return None;
        }
        let index = self.kv.sealed().len();
        let parent = self.parent(index);
        let tokens: BlockTokens = *self.tokens[index * BLOCK..].first_chunk()?;
        let key = parent.child(&self.family.fingerprint, &tokens);
        self.keys.truncate(index.max(self.prompt() / BLOCK));
        if index == self.keys.len() {
            self.keys.push(key);
        }
        Some(self.kv.seal(key, parent, tokens))
    }

    /// Whether its reader has gone.
    pub(super) fn abandoned(&self) -> bool {
        self.job.events.is_closed()
    }

    /// Sends an event. A reader that is gone is noticed at the next step.
    pub(super) fn tell(&self, event: Event) {
        let _ = self.job.events.try_send(event);
    }

    /// Whether its reader has room for the events of a step. Progress may be lost, so a prompt is
    /// never held up: others may be following it.
    pub(super) fn has_room(&self) -> bool {
        let events = match self.phase {
            _ if self.scores() => ROWS_WITH_LOGITS,
            Phase::Prefill => return true,
            _ => 1,
        };
        // The last word needs room, too; and all choices speak through one channel.
        self.job.events.capacity() > self.choices as usize * (events + 1)
    }

    /// Whether a word about progress leaves room for the first token and the last word, which must
    /// not be lost; of each choice.
    pub(super) fn has_room_for_progress(&self) -> bool {
        self.job.events.capacity() > 2 * self.choices as usize + 1
    }

    /// The times of a reply that ends now.
    pub(super) fn final_times(&self) -> Times {
        let between = |from: Option<Instant>, to: Option<Instant>| match (from, to) {
            (Some(from), Some(to)) => to - from,
            _ => Duration::ZERO,
        };
        Times {
            first: between(Some(self.job.received), self.first_token),
            decode: between(self.first_token, self.last_token),
            total: self.job.received.elapsed(),
            ..self.times
        }
    }
}
