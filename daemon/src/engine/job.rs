//! A request as the engine sees it: token ids in, events out.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::constraint::Constraint;
use crate::kv::codec::Codec;
use crate::kv::device::DeviceError;
use crate::kv::index::Origin;
use crate::kv::key::{Digest, RecordKey};

/// Undelivered events of one request after which only that request pauses.
pub const EVENTS: usize = 1024;

/// One request.
#[derive(Debug)]
pub struct Job {
    /// What to do.
    pub task: Task,
    /// The prompt's ids, at least one.
    pub tokens: Arc<[u32]>,
    /// [`crate::store::text_digest`] of the prompt, when it came as text.
    pub text: Option<Digest>,
    /// Whose turn it is.
    pub caller: Caller,
    /// Whose blocks may be used.
    pub namespace: Namespace,
    /// The chain's codec.
    pub codec: Codec,
    /// The adapter: its field of a fingerprint, or the model's where there is none.
    pub adapter: Digest,
    /// What to do with cached blocks.
    pub policy: Policy,
    /// What to do with new blocks.
    pub persist: Persist,
    /// Pin the prompt for so long.
    pub pin: Option<Duration>,
    /// When to give up.
    pub deadline: Option<Instant>,
    /// When the request arrived.
    pub received: Instant,
    /// The generation of the model whose tokenizer made `tokens`: [`super::ModelInfo::generation`].
    pub generation: u64,
    /// Where answers go. A dropped receiver cancels.
    pub events: mpsc::Sender<Event>,
}

/// Who asks, as far as turns go: clients are served alike, requests by their priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Caller {
    /// The process that asks.
    pub client: ClientId,
    /// How urgent it is.
    pub priority: Priority,
}

/// A process, as the kernel tells who is at the other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ClientId {
    /// Its user.
    pub uid: u32,
    /// Its process id; 0 where the system does not tell.
    pub pid: u32,
}

/// How urgent a request is. Higher ones go first, and may take the memory of lower ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Priority {
    /// When nobody else wants anything.
    Low,
    /// As everyone.
    #[default]
    Normal,
    /// Before everyone.
    High,
}

impl Priority {
    /// The one above, or the highest.
    pub(super) fn next(self) -> Self {
        match self {
            Self::Low => Self::Normal,
            Self::Normal | Self::High => Self::High,
        }
    }
}

/// What a request wants.
#[derive(Debug)]
pub enum Task {
    /// Generate.
    Sample(Sampling),
    /// The log-probability of each given token but the first, with the `top` likeliest beside it.
    Score {
        /// How many alternatives per position.
        top: usize,
    },
}

/// How tokens are chosen.
#[derive(Debug)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: f32,
    /// Keep the k likeliest; 0 keeps all.
    pub top_k: usize,
    /// Keep the smallest set with at least this probability; 1 keeps all.
    pub top_p: f32,
    /// Keep what has at least this fraction of the likeliest's probability; 0 keeps all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens already seen; 1 changes nothing.
    pub repetition_penalty: f32,
    /// Taken from the logits of tokens generated at least once.
    pub presence_penalty: f32,
    /// Taken from the logits of generated tokens for each time.
    pub frequency_penalty: f32,
    /// Added to the logits of single tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// The seed of the counter-based randomness.
    pub seed: u64,
    /// Most tokens to generate; 0 only prefills.
    pub max_tokens: u32,
    /// Ids that end the text: the model's own and the caller's.
    pub stop_tokens: Vec<u32>,
    /// Log-probabilities of this many alternatives with each token; `None` for none at all.
    pub logprobs: Option<usize>,
    /// How many texts to generate, each with draws of its own; at least 1.
    pub choices: u32,
    /// Watches the tokens.
    pub constraint: Option<Box<dyn Constraint>>,
}

impl Sampling {
    /// The likeliest token each time, `max_tokens` times at most, and nothing else.
    pub fn greedy(max_tokens: u32) -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
            max_tokens,
            stop_tokens: Vec::new(),
            logprobs: None,
            choices: 1,
            constraint: None,
        }
    }

    /// The same for another choice, from its beginning.
    fn another(&self) -> Self {
        Self {
            logit_bias: self.logit_bias.clone(),
            stop_tokens: self.stop_tokens.clone(),
            constraint: self.constraint.as_ref().map(|constraint| constraint.afresh()),
            choices: 1,
            ..*self
        }
    }
}

impl Job {
    /// How many texts it wants.
    pub(super) fn choices(&self) -> u32 {
        match &self.task {
            Task::Sample(sampling) => sampling.choices,
            Task::Score { .. } => 1,
        }
    }

    /// The job of one more choice of the same request.
    pub(super) fn another(&self) -> Self {
        let task = match &self.task {
            Task::Sample(sampling) => Task::Sample(sampling.another()),
            Task::Score { top } => Task::Score { top: *top },
        };
        Self { task, tokens: Arc::clone(&self.tokens), events: self.events.clone(), ..*self }
    }
}

/// Who may reuse what this request leaves behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Namespace {
    /// The peer's identity.
    pub identity: Digest,
    /// Its own sub-namespace.
    pub sub: Digest,
}

/// What a request does with cached blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// Reuse and publish.
    #[default]
    Use,
    /// Reuse, publish nothing.
    ReadOnly,
    /// Recompute and replace.
    Refresh,
    /// Neither reuse nor publish.
    Bypass,
}

/// What a request does with new blocks on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Persist {
    /// Write soon.
    #[default]
    Behind,
    /// Write and sync before `Done`.
    Durable,
    /// Memory only.
    No,
}

/// What the engine tells about a request. Tokens and ends are told for each of its choices.
#[derive(Debug)]
pub enum Event {
    /// It holds its memory and knows what it reuses. Comes before any token.
    Admitted(Admitted),
    /// Prefill goes on.
    Progress {
        /// Prompt tokens whose KV exists.
        done: u32,
        /// Prompt tokens.
        total: u32,
    },
    /// A token was generated.
    Token(Token),
    /// The log-probability of one given token.
    Scored(Token),
    /// The end of a choice.
    Done(Done),
    /// The end, badly. Nothing follows.
    Failed(Failure),
}

/// The answer to admission.
#[derive(Debug, Clone)]
pub struct Admitted {
    /// Time in the queue.
    pub queued: Duration,
    /// What was reused so far.
    pub reuse: Reuse,
}

/// What was reused, and why no more.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reuse {
    /// The summary.
    pub verdict: Verdict,
    /// Why less than everything was reused; `None` when everything was.
    pub reason: Option<Reason>,
    /// Prompt tokens found in memory.
    pub memory: u32,
    /// Prompt tokens found on disk.
    pub disk: u32,
    /// Prompt tokens that another request was computing.
    pub joined: u32,
}

impl Reuse {
    /// Counts tokens that memory or the disk had.
    pub(super) fn add(&mut self, tokens: usize, source: Origin) {
        let counter = match source {
            Origin::Memory => &mut self.memory,
            Origin::Disk => &mut self.disk,
        };
        *counter += u32::try_from(tokens).unwrap_or(u32::MAX);
    }

    /// Prompt tokens reused in all.
    pub fn cached(&self) -> u32 {
        self.memory + self.disk + self.joined
    }
}

/// The kind of reuse.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the protocol's words, explained in docs/protocol.md")]
pub enum Verdict {
    #[default]
    Cold,
    PartialMemory,
    PartialDisk,
    FullMemory,
    FullDisk,
    Joined,
    Bypassed,
}

/// Why less than everything was reused.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "the protocol's words, explained in docs/protocol.md")]
pub enum Reason {
    NoEntry,
    Extended,
    NoRecord,
    /// The prompt parts from a recent one at this token.
    Diverged(Divergence),
    BelowMinimum,
    Evicted,
    FingerprintWeights,
    FingerprintTokenizer,
    Adapter,
    KvDtype,
    WindowPolicy,
    LayoutVersion,
    NumericsVersion,
    Namespace,
    CorruptQuarantined,
    IoError,
    PolicyBypass,
    PolicyRefresh,
    Unknown,
}

/// Where a prompt parts from its nearest relative of the same identity.
#[derive(Debug, Clone, PartialEq)]
pub struct Divergence {
    /// The index of the first token that differs.
    pub at: u32,
    /// A few ids of this prompt from there.
    pub ours: Vec<u32>,
    /// A few ids of the other prompt from there.
    pub theirs: Vec<u32>,
}

/// One token and how likely it was.
#[derive(Debug, Clone, PartialEq)]
pub struct Token {
    /// The choice that it belongs to, from 0.
    pub choice: u32,
    /// The id.
    pub id: u32,
    /// Its natural log-probability, before temperature and filters, when asked for.
    pub logprob: Option<f32>,
    /// The likeliest ids with theirs.
    pub top: Vec<(u32, f32)>,
}

/// How and at what price a choice of a request ended.
#[derive(Debug, Clone)]
pub struct Done {
    /// The choice, from 0.
    pub choice: u32,
    /// Why.
    pub finish: Finish,
    /// What was reused in the end.
    pub reuse: Reuse,
    /// Tokens generated.
    pub completion: u32,
    /// Tokens whose KV stays cached after a cancel.
    pub kept: u32,
    /// The prompt's name in the cache.
    pub key: Option<RecordKey>,
    /// Values that saturated in f16 storage.
    pub saturated: u64,
    /// Whether the sync that was asked for succeeded; `None` when none was asked for.
    pub durable: Option<bool>,
    /// Where the time went.
    pub times: Times,
}

/// Where a request's time went.
#[derive(Debug, Clone, Copy, Default)]
pub struct Times {
    /// Waiting for admission, and for memory that a higher priority took.
    pub queue: Duration,
    /// Waiting for the disk.
    pub load: Duration,
    /// Computing the prompt; zero on a full hit.
    pub prefill: Duration,
    /// From receipt to the first token.
    pub first: Duration,
    /// From the first to the last token.
    pub decode: Duration,
    /// From receipt to the end.
    pub total: Duration,
}

/// Why a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// A stop token or a constraint ended it.
    Stop,
    /// `max_tokens` or the context's end.
    Length,
    /// The daemon is draining.
    Cancelled,
}

/// Why a request could not be served.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Failure {
    /// The deadline passed.
    #[error("the deadline passed after {tokens} tokens; {kept} tokens of KV are kept")]
    Deadline {
        /// Tokens generated.
        tokens: u32,
        /// Tokens whose KV stays cached.
        kept: u32,
    },
    /// Too many requests of the same client wait.
    #[error(
        "{waiting} requests of this client are waiting, it may fill {limit} places of the queue"
    )]
    Share {
        /// Requests of the client that wait.
        waiting: usize,
        /// Most that may.
        limit: usize,
    },
    /// It can never fit.
    #[error("the request needs {needed} bytes of KV cache, the budget is {budget}")]
    TooLarge {
        /// Bytes asked for.
        needed: u64,
        /// Bytes there are.
        budget: u64,
    },
    /// The reader did not read for too long.
    #[error("no event was read for {0:?}")]
    Stalled(Duration),
    /// The model file changed; tokenise again and submit again.
    #[error("the model was reloaded")]
    Reloaded,
    /// The system or the device has no memory left for it.
    #[error("no memory for the KV cache: {0}")]
    Memory(String),
    /// The device, or its driver, failed.
    #[error("{0}")]
    Device(String),
    /// The daemon is shutting down.
    #[error("the daemon is draining")]
    Draining,
}

impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Self {
        match error {
            DeviceError::Full { .. } => Self::Memory(error.to_string()),
            DeviceError::Failed(_) => Self::Device(error.to_string()),
        }
    }
}
