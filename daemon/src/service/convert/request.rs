//! What clients send.

use std::fmt::Display;
use std::ops::RangeBounds;
use std::sync::Arc;
use std::time::Duration;

use tinygpt_proto::Label;
use tinygpt_proto::v1 as wire;

use crate::engine::ModelInfo;
use crate::engine::job::{Persist, Policy, Priority, Sampling};
use crate::kv::codec::Codec;
use crate::kv::key::Digest;
use crate::service::models::Served;
use crate::service::prompt::{Prompt, known};
use crate::service::refusal::{Count, Refusal};
use crate::store::LONGEST_LEASE;
use crate::text::StopConstraint;

/// Tokens that are generated when a request does not say how many.
pub const DEFAULT_MAX_TOKENS: u32 = 256;
/// Most alternatives that are reported with a token.
pub const MAX_LOGPROBS: u32 = 256;
/// Most texts of one request.
pub const MAX_CHOICES: u32 = 64;
/// Most stop strings of one request.
const MAX_STOPS: usize = 64;
/// Most bytes of one stop string: so much text may be held back.
const MAX_STOP_BYTES: usize = 1024;
/// Most stop tokens, and most biased tokens, of one request.
const MAX_IDS: usize = 4096;
/// A shorter lease would be over before anyone knew.
const SHORTEST_LEASE: Duration = Duration::from_secs(1);
/// Most bytes of a sub-namespace.
const MAX_NAMESPACE_BYTES: usize = 256;

/// Gives each prompt oneof its [`Prompt`].
macro_rules! prompts {
    ($($module:ident::$oneof:ident),*) => {$(
        impl From<wire::$module::$oneof> for Prompt {
            fn from(prompt: wire::$module::$oneof) -> Self {
                match prompt {
                    wire::$module::$oneof::Text(text) => Self::Text(Arc::from(text)),
                    wire::$module::$oneof::TokenIds(ids) => Self::Ids(Arc::from(ids.ids)),
                }
            }
        }
    )*};
}

prompts!(
    sample_request::Prompt,
    warm_request::Prompt,
    score_request::Input,
    explain_request::Prompt
);

/// The prompt that must be there.
pub fn prompt<P: Into<Prompt>>(given: Option<P>) -> Result<Prompt, Refusal> {
    given.map(Into::into).ok_or(Refusal::NoPrompt)
}

/// What to do with cached blocks.
pub fn policy(given: i32) -> Result<Policy, Refusal> {
    Ok(match value("cache_policy", given)? {
        wire::CachePolicy::Unspecified | wire::CachePolicy::Use => Policy::Use,
        wire::CachePolicy::ReadOnly => Policy::ReadOnly,
        wire::CachePolicy::Refresh => Policy::Refresh,
        wire::CachePolicy::Bypass => Policy::Bypass,
    })
}

/// The policy of a request that is about keeping its prompt.
pub fn keeping_policy(given: i32) -> Result<Policy, Refusal> {
    let policy = policy(given)?;
    let keeps = matches!(policy, Policy::Use | Policy::Refresh);
    keeps.then_some(policy).ok_or_else(|| Refusal::OutOfRange {
        field: "cache_policy",
        value: wire::CachePolicy::label_of(given).to_owned(),
        allowed: "USE or REFRESH, the others keep nothing".to_owned(),
    })
}

/// What to do with new blocks.
pub fn persist(given: i32) -> Result<Persist, Refusal> {
    Ok(match value("persist", given)? {
        wire::Persist::Unspecified | wire::Persist::Behind => Persist::Behind,
        wire::Persist::Durable => Persist::Durable,
        wire::Persist::No => Persist::No,
    })
}

/// How urgent a request is.
pub fn priority(given: i32) -> Result<Priority, Refusal> {
    Ok(match value("priority", given)? {
        wire::Priority::Unspecified | wire::Priority::Normal => Priority::Normal,
        wire::Priority::Low => Priority::Low,
        wire::Priority::High => Priority::High,
    })
}

/// For how long to pin a prompt; `field` says where it was given.
pub fn lease(field: &'static str, given: prost_types::Duration) -> Result<Duration, Refusal> {
    let shown = format!("{}.{:03} s", given.seconds, given.nanos / 1_000_000);
    let lasts = Duration::try_from(given).ok();
    let possible = |lasts: &Duration| (SHORTEST_LEASE..=LONGEST_LEASE).contains(lasts);
    lasts.filter(possible).ok_or_else(|| Refusal::OutOfRange {
        field,
        value: shown,
        allowed: format!("1 s to {} days", LONGEST_LEASE.as_secs() / 86_400),
    })
}

/// The adapter of the model called `name`, as its field of a fingerprint; none for an empty name.
pub fn adapter(name: &str, info: &ModelInfo) -> Result<Digest, Refusal> {
    if name.is_empty() {
        return Ok(info.fields.adapter);
    }
    let found = info.adapters.iter().find(|adapter| adapter.name == name);
    found.map(|adapter| adapter.digest).ok_or_else(|| {
        let known: Vec<_> = info.adapters.iter().map(|adapter| &*adapter.name).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        Refusal::UnknownAdapter { name: name.to_owned(), model: info.name.clone(), known }
    })
}

/// A sub-namespace.
pub fn namespace(given: &str) -> Result<&str, Refusal> {
    at_most("bytes in namespace", given.len(), MAX_NAMESPACE_BYTES).map(|()| given)
}

/// The codec called `name`; the model's default for an empty name.
pub fn codec(name: &str, info: &ModelInfo) -> Result<Codec, Refusal> {
    if name.is_empty() {
        return Ok(info.default_codec);
    }
    name.parse().map_err(|_| Refusal::UnknownValue {
        field: "kv_dtype",
        value: name.to_owned(),
        known: Codec::ALL.map(Codec::name).join(", "),
    })
}

/// How many alternatives to report.
pub fn logprobs(given: u32) -> Result<usize, Refusal> {
    within("logprobs", given, 0..=MAX_LOGPROBS, || format!("0 to {MAX_LOGPROBS}"))?;
    Ok(given as usize)
}

/// How tokens are chosen for `served`, after a prompt of `prompt` tokens.
///
/// `max_tokens` is cut to what the context leaves.
pub fn sampling(
    given: &wire::Sampling,
    served: &Served,
    prompt: usize,
) -> Result<Sampling, Refusal> {
    built(given)?;
    let vocab = served.info.vocab;
    let room = u32::try_from(served.info.context.saturating_sub(prompt)).unwrap_or(u32::MAX);
    Ok(Sampling {
        temperature: temperature(given)?,
        top_k: given.top_k as usize,
        top_p: top_p(given)?,
        min_p: checked("min_p", given.min_p, 0.0..=1.0, "0 to 1")?,
        repetition_penalty: repetition(given)?,
        presence_penalty: penalty("presence_penalty", given.presence_penalty)?,
        frequency_penalty: penalty("frequency_penalty", given.frequency_penalty)?,
        logit_bias: logit_bias(given, vocab)?,
        seed: given.seed.unwrap_or_default(),
        max_tokens: given.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS).min(room),
        stop_tokens: stop_tokens(given, served)?,
        logprobs: given.logprobs.map(logprobs).transpose()?,
        choices: choices(given)?,
        constraint: match stops(given)? {
            [] => None,
            strings => {
                let tokenizer = Arc::clone(&served.tokenizer);
                Some(Box::new(StopConstraint::new(tokenizer, strings.to_vec())))
            }
        },
    })
}

/// How many texts to generate; 0 is one.
fn choices(given: &wire::Sampling) -> Result<u32, Refusal> {
    within("n", given.n, 0..=MAX_CHOICES, || format!("0 to {MAX_CHOICES}"))?;
    Ok(given.n.max(1))
}

/// Refuses what is designed and not built.
fn built(given: &wire::Sampling) -> Result<(), Refusal> {
    if given.structured_output.is_some() {
        return Err(Refusal::NotImplemented("structured_output"));
    }
    Ok(())
}

fn temperature(given: &wire::Sampling) -> Result<f32, Refusal> {
    let temperature = given.temperature.unwrap_or(1.0);
    checked("temperature", temperature, 0.0..=f32::MAX, "0 and more")
}

fn top_p(given: &wire::Sampling) -> Result<f32, Refusal> {
    let top_p = given.top_p.unwrap_or(1.0);
    checked("top_p", top_p, f32::MIN_POSITIVE..=1.0, "more than 0, at most 1")
}

fn repetition(given: &wire::Sampling) -> Result<f32, Refusal> {
    let penalty = given.repetition_penalty.unwrap_or(1.0);
    checked("repetition_penalty", penalty, f32::MIN_POSITIVE..=f32::MAX, "more than 0")
}

fn penalty(field: &'static str, given: f32) -> Result<f32, Refusal> {
    checked(field, given, -2.0..=2.0, "-2 to 2")
}

fn logit_bias(given: &wire::Sampling, vocab: usize) -> Result<Vec<(u32, f32)>, Refusal> {
    at_most("entries in logit_bias", given.logit_bias.len(), MAX_IDS)?;
    let biases: Vec<_> = given.logit_bias.iter().map(|(id, bias)| (*id, *bias)).collect();
    let ids: Vec<_> = given.logit_bias.keys().copied().collect();
    known(&ids, vocab, "logit_bias")?;
    for (_, bias) in &biases {
        // Minus infinity forbids a token; plus infinity and NaN order nothing.
        checked("logit_bias", *bias, f32::NEG_INFINITY..=f32::MAX, "a number or -inf")?;
    }
    Ok(biases)
}

fn stop_tokens(given: &wire::Sampling, served: &Served) -> Result<Vec<u32>, Refusal> {
    at_most("entries in stop_token_ids", given.stop_token_ids.len(), MAX_IDS)?;
    known(&given.stop_token_ids, served.info.vocab, "stop_token_ids")?;
    Ok(served.tokenizer.ends().iter().chain(&given.stop_token_ids).copied().collect())
}

/// The stop strings, all of them of use.
pub fn stops(given: &wire::Sampling) -> Result<&[String], Refusal> {
    at_most("entries in stop", given.stop.len(), MAX_STOPS)?;
    for stop in &given.stop {
        within("bytes in a stop string", stop.len(), 1..=MAX_STOP_BYTES, || {
            format!("1 to {}", Count::from(MAX_STOP_BYTES))
        })?;
    }
    Ok(&given.stop)
}

/// The value of an enum that this version knows.
fn value<E: Label>(field: &'static str, given: i32) -> Result<E, Refusal> {
    E::try_from(given).map_err(|_| Refusal::UnknownValue {
        field,
        value: given.to_string(),
        known: "the values of this version".to_owned(),
    })
}

fn at_most(field: &'static str, given: usize, limit: usize) -> Result<(), Refusal> {
    within(field, given, ..=limit, || format!("{} at most", Count::from(limit)))
}

fn checked(
    field: &'static str,
    given: f32,
    range: impl RangeBounds<f32>,
    allowed: &str,
) -> Result<f32, Refusal> {
    within(field, given, range, || allowed.to_owned()).map(|()| given)
}

/// Whether `given` lies in `range`. No NaN does.
fn within<T: PartialOrd + Display>(
    field: &'static str,
    given: T,
    range: impl RangeBounds<T>,
    allowed: impl Fn() -> String,
) -> Result<(), Refusal> {
    if range.contains(&given) {
        return Ok(());
    }
    Err(Refusal::OutOfRange { field, value: given.to_string(), allowed: allowed() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused<T>(outcome: Result<T, Refusal>) -> String {
        outcome.err().map(|refusal| refusal.to_string()).unwrap_or_default()
    }

    #[test]
    fn sampling_out_of_range_is_refused_with_the_value_and_the_range() {
        let sampling = |change: fn(&mut wire::Sampling)| {
            let mut sampling = wire::Sampling::default();
            change(&mut sampling);
            sampling
        };
        let cold = refused(temperature(&sampling(|s| s.temperature = Some(-1.0))));
        assert_eq!(cold, "temperature is -1, allowed is 0 and more");
        let none = refused(top_p(&sampling(|s| s.top_p = Some(0.0))));
        assert_eq!(none, "top_p is 0, allowed is more than 0, at most 1");
        let nan = refused(temperature(&sampling(|s| s.temperature = Some(f32::NAN))));
        assert_eq!(nan, "temperature is NaN, allowed is 0 and more");
        assert!(repetition(&sampling(|s| s.repetition_penalty = Some(0.0))).is_err());
        assert!(penalty("presence_penalty", 2.5).is_err());
    }

    #[test]
    fn what_is_not_set_changes_nothing() {
        let given = wire::Sampling::default();
        let values = (temperature(&given), top_p(&given), repetition(&given));
        assert!(matches!(values, (Ok(1.0), Ok(1.0), Ok(1.0))));
    }

    #[test]
    fn too_many_too_long_and_empty_stop_strings_are_refused() {
        let with = |stop: Vec<String>| wire::Sampling { stop, ..Default::default() };
        assert!(stops(&with(vec!["a".into(); MAX_STOPS])).is_ok());
        let many = refused(stops(&with(vec!["a".into(); MAX_STOPS + 1])));
        assert_eq!(many, "entries in stop is 65, allowed is 64 at most");
        let empty = refused(stops(&with(vec![String::new()])));
        assert_eq!(empty, "bytes in a stop string is 0, allowed is 1 to 1,024");
    }

    #[test]
    fn a_bias_may_forbid_a_token_but_not_force_it_beyond_all_numbers() {
        let with = |bias| wire::Sampling { logit_bias: [(3, bias)].into(), ..Default::default() };
        assert!(logit_bias(&with(f32::NEG_INFINITY), 256).is_ok());
        assert!(logit_bias(&with(f32::INFINITY), 256).is_err());
        assert!(logit_bias(&with(1.0), 3).is_err());
    }

    #[test]
    fn what_is_not_built_is_refused_by_name() {
        let structured = wire::StructuredOutput::default();
        let given = wire::Sampling { structured_output: Some(structured), ..Default::default() };
        assert_eq!(refused(built(&given)), "structured_output is not implemented in this version");
    }

    #[test]
    fn one_request_has_one_to_sixty_four_texts() {
        let of = |n| choices(&wire::Sampling { n, ..Default::default() });
        assert_eq!([0, 1, 64].map(|n| of(n).ok()), [1, 1, 64].map(Some));
        assert_eq!(refused(of(65)), "n is 65, allowed is 0 to 64");
    }

    #[test]
    fn a_policy_that_keeps_nothing_cannot_warm() {
        assert!(keeping_policy(wire::CachePolicy::Refresh.into()).is_ok());
        let refused = refused(keeping_policy(wire::CachePolicy::Bypass.into()));
        assert!(refused.starts_with("cache_policy is BYPASS, allowed is USE or REFRESH"));
    }

    #[test]
    fn an_enum_value_from_the_future_is_refused() {
        assert_eq!(
            refused(policy(99)),
            "cache_policy \"99\" is not known; known are the values of this version"
        );
    }
}
