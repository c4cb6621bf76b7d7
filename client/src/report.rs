//! The JSON objects of `sample`, `warm`, `score` and batches: a contract with scripts.
//!
//! Field names are the protocol's. Enums are written without their prefix, and as null when there
//! is nothing to say.

use serde::Serialize;
use tinygpt_proto::Label;
use tinygpt_proto::v1::{self, TokenLogprobs};

/// What `sample --json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) schema: &'static str,
    pub(crate) text: String,
    pub(crate) token_ids: Vec<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_token_ids: Option<Vec<u32>>,
    pub(crate) finish_reason: Option<&'static str>,
    pub(crate) model: String,
    pub(crate) verdict: Option<&'static str>,
    pub(crate) reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) divergence: Option<Divergence>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) logprobs: Option<Vec<Logprobs>>,
    pub(crate) usage: Usage,
    pub(crate) timings: Timings,
    pub(crate) numerics: String,
    pub(crate) prompt_key: String,
    pub(crate) seed: u64,
    pub(crate) warnings: Vec<String>,
}

/// A token's log-probability and the likeliest tokens in its place.
#[derive(Debug, Serialize)]
pub(crate) struct Logprobs {
    id: u32,
    logprob: Option<f32>,
    top: Vec<(u32, f32)>,
}

/// Where a prompt parts from its nearest relative.
#[derive(Debug, Serialize)]
pub(crate) struct Divergence {
    token_index: u32,
    location: String,
    prompt_text: String,
    cached_text: String,
}

/// Tokens read and written.
#[derive(Debug, Serialize)]
pub(crate) struct Usage {
    prompt_tokens: u32,
    cached_tokens: u32,
    cached: Cached,
    completion_tokens: u32,
}

#[derive(Debug, Serialize)]
struct Cached {
    memory: u32,
    disk: u32,
    joined: u32,
}

/// Where the time went, in milliseconds.
#[derive(Debug, Serialize)]
pub(crate) struct Timings {
    queue_ms: f64,
    load_ms: f64,
    prefill_ms: f64,
    ttft_ms: f64,
    decode_ms: f64,
    total_ms: f64,
}

/// An enum value as JSON writes it.
pub(crate) fn label<E: Label + PartialEq>(value: E) -> Option<&'static str> {
    (value != E::default()).then(|| value.label())
}

impl From<TokenLogprobs> for Logprobs {
    fn from(token: TokenLogprobs) -> Self {
        let top = token.top.iter().map(|other| (other.id, other.logprob)).collect();
        Self { id: token.id, logprob: token.logprob, top }
    }
}

impl From<v1::Divergence> for Divergence {
    fn from(found: v1::Divergence) -> Self {
        Self {
            token_index: found.token_index,
            location: found.location,
            prompt_text: found.prompt_text,
            cached_text: found.cached_text,
        }
    }
}

impl From<v1::Usage> for Usage {
    fn from(usage: v1::Usage) -> Self {
        let v1::CachedTokens { memory, disk, joined } = usage.cached.unwrap_or_default();
        Self {
            prompt_tokens: usage.prompt_tokens,
            cached_tokens: usage.cached_tokens,
            cached: Cached { memory, disk, joined },
            completion_tokens: usage.completion_tokens,
        }
    }
}

impl From<v1::Timings> for Timings {
    fn from(times: v1::Timings) -> Self {
        Self {
            queue_ms: times.queue_ms,
            load_ms: times.load_ms,
            prefill_ms: times.prefill_ms,
            ttft_ms: times.ttft_ms,
            decode_ms: times.decode_ms,
            total_ms: times.total_ms,
        }
    }
}
