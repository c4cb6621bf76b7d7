//! What the engine tells of a request: what it reuses, its tokens, and its end.

use std::time::Duration;

use crate::kv::device::DeviceError;
use crate::kv::index::Origin;
use crate::kv::key::RecordKey;

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
