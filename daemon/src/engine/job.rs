//! A request as the engine sees it: token ids in, [events](super::event) out.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::constraint::Constraint;
use super::event::Event;
use crate::kv::codec::Codec;
use crate::kv::key::Digest;

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
