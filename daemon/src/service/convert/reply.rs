//! What clients get.

use std::time::Duration;

use tinygpt_proto::v1 as wire;

use crate::engine::event::{Done, Finish, Reason, Reuse, Times, Token, Verdict};
use crate::text::Tokenizer;

/// What was reused, as the wire has it in several messages.
#[derive(Debug)]
pub struct Reused {
    /// The summary.
    pub verdict: i32,
    /// Why no more.
    pub reason: i32,
    /// Where the prompt parts from its nearest relative.
    pub divergence: Option<wire::Divergence>,
}

impl Reused {
    /// Puts `reuse` into the wire's words; the texts of a divergence come from `tokenizer`.
    pub fn new(reuse: &Reuse, tokenizer: &Tokenizer) -> Self {
        Self {
            verdict: verdict(reuse.verdict).into(),
            reason: reason(reuse.reason.as_ref()).into(),
            divergence: divergence(reuse.reason.as_ref(), tokenizer),
        }
    }
}

/// Tokens read and written.
pub fn usage(prompt: u32, reuse: &Reuse, completion: u32) -> wire::Usage {
    wire::Usage {
        prompt_tokens: prompt,
        cached_tokens: reuse.cached(),
        cached: Some(cached(reuse)),
        completion_tokens: completion,
    }
}

/// Cached tokens by source.
pub fn cached(reuse: &Reuse) -> wire::CachedTokens {
    wire::CachedTokens { memory: reuse.memory, disk: reuse.disk, joined: reuse.joined }
}

/// Where the time went.
pub fn timings(times: &Times) -> wire::Timings {
    wire::Timings {
        queue_ms: milliseconds(times.queue),
        load_ms: milliseconds(times.load),
        prefill_ms: milliseconds(times.prefill),
        ttft_ms: milliseconds(times.first),
        decode_ms: milliseconds(times.decode),
        total_ms: milliseconds(times.total),
    }
}

/// A number as the wire has it. None of these comes near its end.
pub fn count<N: TryInto<u32>>(n: N) -> u32 {
    n.try_into().unwrap_or(u32::MAX)
}

/// A span as the wire has it.
pub fn milliseconds(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}

/// A token with its alternatives.
pub fn logprobs(token: Token) -> wire::TokenLogprobs {
    let top = token.top.into_iter();
    wire::TokenLogprobs {
        id: token.id,
        logprob: token.logprob,
        top: top.map(|(id, logprob)| wire::TokenProbability { id, logprob }).collect(),
    }
}

/// What whoever asked should know about a reply that went well.
pub fn warnings(done: &Done, wanted_durable: bool) -> Vec<String> {
    let saturated = (done.saturated > 0).then(|| {
        format!(
            "{} values were too large for f16 KV and were saturated; \
             start the daemon with --kv-dtype bf16",
            done.saturated
        )
    });
    let unsynced = (wanted_durable && done.durable != Some(true))
        .then(|| "the cache could not be synced to disk".to_owned());
    saturated.into_iter().chain(unsynced).collect()
}

/// Why generation ended.
pub fn finish(finish: Finish) -> wire::FinishReason {
    match finish {
        Finish::Stop => wire::FinishReason::Stop,
        Finish::Length => wire::FinishReason::Length,
        Finish::Cancelled => wire::FinishReason::Cancelled,
    }
}

/// Where a prompt parts from its nearest relative, if that is the reason.
pub fn divergence(reason: Option<&Reason>, tokenizer: &Tokenizer) -> Option<wire::Divergence> {
    let Some(Reason::Diverged(parting)) = reason else { return None };
    Some(wire::Divergence {
        token_index: parting.at,
        location: String::new(),
        prompt_text: tokenizer.decode(&parting.ours),
        cached_text: tokenizer.decode(&parting.theirs),
    })
}

/// The summary of what was reused.
pub fn verdict(verdict: Verdict) -> wire::Verdict {
    match verdict {
        Verdict::Cold => wire::Verdict::Cold,
        Verdict::PartialMemory => wire::Verdict::PartialMemory,
        Verdict::PartialDisk => wire::Verdict::PartialDisk,
        Verdict::FullMemory => wire::Verdict::FullMemory,
        Verdict::FullDisk => wire::Verdict::FullDisk,
        Verdict::Joined => wire::Verdict::Joined,
        Verdict::Bypassed => wire::Verdict::Bypassed,
    }
}

/// Why no more was reused; unspecified when everything was.
pub fn reason(reason: Option<&Reason>) -> wire::Reason {
    let Some(reason) = reason else { return wire::Reason::Unspecified };
    match reason {
        Reason::NoEntry => wire::Reason::NoEntry,
        Reason::Extended => wire::Reason::Extended,
        Reason::NoRecord => wire::Reason::NoRecord,
        Reason::Diverged(_) => wire::Reason::Diverged,
        Reason::BelowMinimum => wire::Reason::BelowMinimum,
        Reason::Evicted => wire::Reason::Evicted,
        Reason::FingerprintWeights => wire::Reason::FingerprintWeights,
        Reason::FingerprintTokenizer => wire::Reason::FingerprintTokenizer,
        Reason::Adapter => wire::Reason::Adapter,
        Reason::KvDtype => wire::Reason::KvDtype,
        Reason::WindowPolicy => wire::Reason::WindowPolicy,
        Reason::LayoutVersion => wire::Reason::LayoutVersion,
        Reason::NumericsVersion => wire::Reason::NumericsVersion,
        Reason::Namespace => wire::Reason::Namespace,
        Reason::CorruptQuarantined => wire::Reason::CorruptQuarantined,
        Reason::IoError => wire::Reason::IoError,
        Reason::PolicyBypass => wire::Reason::PolicyBypass,
        Reason::PolicyRefresh => wire::Reason::PolicyRefresh,
        Reason::Unknown => wire::Reason::Unknown,
    }
}
