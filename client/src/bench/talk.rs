//! What the process that benches and its agents say to each other: lines of JSON, over the pipes
//! that are an agent's stdin and stdout. An agent whose stdin ends has lost its parent, and ends.

use serde::{Deserialize, Serialize};
use tinygpt_proto::Label;
use tinygpt_proto::v1::{
    Done, Persist, SampleRequest, Sampling, TokenIds, Verdict, sample_request,
};

/// What an agent is told.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Call {
    /// What to ask at the next [`Go`](Self::Go).
    Ready(Order),
    /// Ask.
    Go,
    /// Forget what came so far, but for the last delivery: the next gap begins with it.
    Mark,
    /// End with the next delivery.
    Stop,
}

/// What to ask.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) model: String,
    pub(super) namespace: String,
    pub(super) token_ids: Vec<u32>,
    /// Most tokens to generate; 0 computes the prompt only.
    pub(super) max_tokens: u32,
    /// Whether to ask again and again until [`Call::Stop`].
    pub(super) endless: bool,
}

impl Order {
    pub(super) fn new(model: &str, namespace: &str, token_ids: Vec<u32>, max_tokens: u32) -> Self {
        let (model, namespace) = (model.to_owned(), namespace.to_owned());
        Self { model, namespace, token_ids, max_tokens, endless: false }
    }

    /// As the daemon is asked.
    pub(super) fn request(&self) -> SampleRequest {
        let sampling = Sampling {
            temperature: Some(0.0),
            max_tokens: Some(self.max_tokens),
            ..Default::default()
        };
        let ids = TokenIds { ids: self.token_ids.clone() };
        SampleRequest {
            model: self.model.clone(),
            prompt: Some(sample_request::Prompt::TokenIds(ids)),
            sampling: Some(sampling),
            persist: Persist::No.into(),
            namespace: self.namespace.clone(),
            ..Default::default()
        }
    }
}

/// What an agent says.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Word {
    /// It is connected and knows what to ask.
    Ready,
    /// The first token came.
    First,
    /// What it asked for has ended, or it was stopped.
    Told(Vec<Reply>),
    /// It cannot go on; with the exit status that this has.
    Failed { exit: u8, words: String },
}

/// A reply as its reader saw it.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Reply {
    /// Tokens as they came.
    pub(super) deliveries: Vec<Delivery>,
    /// What the daemon said at the end; nothing when the agent was stopped.
    pub(super) spent: Option<Spent>,
}

/// Tokens that came at once.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Delivery {
    /// Milliseconds after the agent's [`Call::Go`].
    pub(super) at: f64,
    /// How many.
    pub(super) tokens: usize,
}

/// What a request cost.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Spent {
    pub(super) verdict: String,
    pub(super) prompt_tokens: u64,
    pub(super) memory: u64,
    pub(super) disk: u64,
    pub(super) joined: u64,
    pub(super) prefill_ms: f64,
}

impl From<&Done> for Spent {
    fn from(done: &Done) -> Self {
        let usage = done.usage.unwrap_or_default();
        let cached = usage.cached.unwrap_or_default();
        Self {
            verdict: Verdict::label_of(done.verdict).to_owned(),
            prompt_tokens: usage.prompt_tokens.into(),
            memory: cached.memory.into(),
            disk: cached.disk.into(),
            joined: cached.joined.into(),
            prefill_ms: done.timings.unwrap_or_default().prefill_ms,
        }
    }
}
