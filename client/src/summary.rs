//! A generation in one line, for stderr.

use std::fmt::Write;

use tinygpt_proto::Label;
use tinygpt_proto::v1::{Divergence, Done, FinishReason, Reason, Timings, Usage};

use crate::generation::Generation;
use crate::render;
use crate::session::Session;

/// Tells how a generation went, and what its caller should know.
pub(crate) fn tell(session: &Session, generation: &Generation) {
    for warning in generation.warnings() {
        session.say(&format!("warning: {warning}"));
    }
    session.say(&line(&generation.done));
    if let Some(found) = &generation.done.divergence {
        session.say(&parting(found));
    }
}

/// Verdict, reason, cached and prompt tokens, time to first token, speed, and why it ended.
pub(crate) fn line(done: &Done) -> String {
    let usage = done.usage.unwrap_or_default();
    let times = done.timings.unwrap_or_default();
    let mut line = done.verdict().label().to_owned();
    // Writing to a string cannot fail.
    if done.reason() != Reason::Unspecified {
        let _ = write!(line, " ({})", done.reason().label());
    }
    let _ = write!(line, ": {}/{} prompt tokens cached", usage.cached_tokens, usage.prompt_tokens);
    match usage.completion_tokens {
        0 => drop(write!(line, ", prefill {:.1} ms", times.prefill_ms)),
        _ => line += &speed(&usage, &times),
    }
    // Of a prompt that was only computed, the length that was asked for ends nothing.
    if usage.completion_tokens > 0 || done.finish_reason() != FinishReason::Length {
        let _ = write!(line, ", {}", done.finish_reason().label());
    }
    line
}

fn speed(usage: &Usage, times: &Timings) -> String {
    let tokens = render::counted(usage.completion_tokens, "token");
    match rate(usage, times) {
        Some(rate) => format!(", TTFT {:.1} ms, {tokens} at {rate:.1} tok/s", times.ttft_ms),
        None => format!(", TTFT {:.1} ms, {tokens}", times.ttft_ms),
    }
}

/// Tokens per second after the first one, which is the prompt's.
pub(crate) fn rate(usage: &Usage, times: &Timings) -> Option<f64> {
    let steps = usage.completion_tokens.checked_sub(1)?;
    (steps > 0 && times.decode_ms > 0.0).then(|| f64::from(steps) * 1e3 / times.decode_ms)
}

/// Where a prompt parts from its nearest relative.
pub(crate) fn parting(found: &Divergence) -> String {
    let Divergence { token_index, location, prompt_text, cached_text } = found;
    let place = if location.is_empty() { String::new() } else { format!(" in {location}") };
    format!(
        "parts from a cached prompt at token {token_index}{place}: {prompt_text:?}, there {cached_text:?}"
    )
}

#[cfg(test)]
mod tests {
    use tinygpt_proto::v1::Verdict;

    use super::*;

    fn done(cached: u32, completion: u32, reason: Reason) -> Done {
        Done {
            finish_reason: FinishReason::Length.into(),
            verdict: Verdict::PartialMemory.into(),
            reason: reason.into(),
            usage: Some(Usage {
                prompt_tokens: 900,
                cached_tokens: cached,
                completion_tokens: completion,
                ..Default::default()
            }),
            timings: Some(Timings {
                ttft_ms: 12.34,
                decode_ms: 100.0,
                prefill_ms: 9.5,
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    #[test]
    fn the_first_token_does_not_count_as_decoded() {
        let line = line(&done(896, 81, Reason::NoRecord));
        let expected = "PARTIAL_MEMORY (NO_RECORD): 896/900 prompt tokens cached, TTFT 12.3 ms, \
                        81 tokens at 800.0 tok/s, LENGTH";
        assert_eq!(line, expected);
    }

    #[test]
    fn a_prefill_has_neither_a_speed_of_decoding_nor_an_end_but_an_early_one() {
        let prefill = done(0, 0, Reason::Unspecified);
        let whole = "PARTIAL_MEMORY: 0/900 prompt tokens cached, prefill 9.5 ms";
        assert_eq!(line(&prefill), whole);
        let cut = Done { finish_reason: FinishReason::Cancelled.into(), ..prefill };
        assert_eq!(line(&cut), format!("{whole}, CANCELLED"));
    }

    #[test]
    fn one_token_has_no_rate() {
        assert!(line(&done(0, 1, Reason::Unspecified)).ends_with(", 1 token, LENGTH"));
    }
}
