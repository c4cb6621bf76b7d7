//! What the agents of a bench saw, in figures.
//!
//! Times are those of whoever reads the replies, in milliseconds since the agents were told to go.
//! A gap lies between two deliveries of one reply, whatever each of them brought.

use std::collections::BTreeMap;

use indicatif::HumanCount;
use serde::Serialize;

use super::talk::{Reply, Spent};

/// What came of all rounds so far.
#[derive(Debug, Default)]
pub(super) struct Figures {
    ttft: Vec<f64>,
    gaps: Vec<f64>,
    /// All tokens, from the start to the last one.
    whole: Rate,
    /// Tokens that came while every agent was generating.
    together: Rate,
    usage: Usage,
    verdicts: BTreeMap<String, u64>,
    pub(super) beside: Option<Beside>,
}

/// Tokens and the time that they took.
#[derive(Debug, Clone, Copy, Default)]
struct Rate {
    tokens: usize,
    ms: f64,
}

/// Tokens read and written, by all agents together.
#[derive(Debug, Clone, Copy, Default, Serialize)]
struct Usage {
    prompt_tokens: u64,
    cached_tokens: u64,
    cached: Cached,
    completion_tokens: u64,
}

#[derive(Debug, Clone, Copy, Default, Serialize)]
struct Cached {
    memory: u64,
    disk: u64,
    joined: u64,
}

/// The middle and the end of many times. Of none there is neither.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Spread {
    p50: Option<f64>,
    p99: Option<f64>,
}

/// Gaps without and with a prefill beside them.
#[derive(Debug, Serialize)]
pub(super) struct Beside {
    prompt_tokens: u64,
    prefill_ms: f64,
    alone: Spread,
    beside: Spread,
}

/// What all agents had to say of one round.
type Round = [Vec<Reply>];

/// What was found, under the names that it has in JSON.
#[derive(Debug, Serialize)]
pub(super) struct Findings<'a> {
    ttft_ms: Spread,
    inter_token_ms: Spread,
    tokens_per_second: Option<f64>,
    decode_tokens_per_second: Option<f64>,
    usage: Usage,
    computed_tokens: u64,
    verdicts: &'a BTreeMap<String, u64>,
    beside_prefill: &'a Option<Beside>,
}

impl Figures {
    pub(super) fn add(&mut self, round: &Round) {
        for reply in round.iter().flatten() {
            self.ttft.extend(reply.first());
            self.gaps.extend(reply.gaps());
            self.usage.completion_tokens += reply.tokens(f64::NEG_INFINITY, f64::INFINITY) as u64;
            if let Some(spent) = &reply.spent {
                self.usage.add(spent);
                *self.verdicts.entry(spent.verdict.clone()).or_default() += 1;
            }
        }
        self.whole.add(round, 0.0, largest(round, Reply::last));
        self.together.add(
            round,
            largest(round, Reply::first),
            -largest(round, |reply| reply.last().map(|last| -last)),
        );
    }

    pub(super) fn findings(&self) -> Findings<'_> {
        Findings {
            ttft_ms: Spread::of(&self.ttft),
            inter_token_ms: Spread::of(&self.gaps),
            tokens_per_second: self.whole.per_second(),
            decode_tokens_per_second: self.together.per_second(),
            usage: self.usage,
            computed_tokens: self.usage.prompt_tokens - self.usage.cached_tokens,
            verdicts: &self.verdicts,
            beside_prefill: &self.beside,
        }
    }
}

impl Findings<'_> {
    /// Names and figures for a person.
    pub(super) fn rows(&self) -> Vec<(&'static str, String)> {
        let Usage { prompt_tokens, cached: Cached { memory, disk, joined }, .. } = self.usage;
        let verdicts = self.verdicts.iter().map(|(name, count)| format!("{count} {name}"));
        let mut rows = vec![
            ("time to first token", self.ttft_ms.to_string()),
            ("between tokens", self.inter_token_ms.to_string()),
            ("tokens/s, all agents", rate(self.tokens_per_second)),
            ("while all generate", rate(self.decode_tokens_per_second)),
            (
                "prompt tokens",
                format!(
                    "{} computed of {} asked; {} from memory, {} from disk, {} joined",
                    HumanCount(self.computed_tokens),
                    HumanCount(prompt_tokens),
                    HumanCount(memory),
                    HumanCount(disk),
                    HumanCount(joined),
                ),
            ),
            ("verdicts", verdicts.collect::<Vec<_>>().join(", ")),
        ];
        if let Some(Beside { prompt_tokens, prefill_ms, alone, beside }) = self.beside_prefill {
            let prefill = format!("{} tokens in {prefill_ms:.0} ms", HumanCount(*prompt_tokens));
            rows.push(("prefill beside", prefill));
            rows.push(("between tokens then", beside.to_string()));
            rows.push(("and without it", alone.to_string()));
        }
        rows
    }
}

fn rate(rate: Option<f64>) -> String {
    rate.map_or_else(|| "-".into(), |rate| format!("{rate:.1}"))
}

impl Beside {
    /// From the reply of the one that computed, and what the others saw without and with it.
    pub(super) fn new(prefill: &Round, alone: &Round, beside: &Round) -> Self {
        let spent = prefill.iter().flatten().find_map(|reply| reply.spent.as_ref());
        Self {
            prompt_tokens: spent.map_or(0, |spent| spent.prompt_tokens),
            prefill_ms: spent.map_or(0.0, |spent| spent.prefill_ms),
            alone: Spread::of_gaps(alone),
            beside: Spread::of_gaps(beside),
        }
    }
}

impl Rate {
    /// Adds what came after `begin` and not after `end`, if there was time for anything.
    fn add(&mut self, round: &Round, begin: f64, end: f64) {
        if end > begin {
            let replies = round.iter().flatten();
            self.tokens += replies.map(|reply| reply.tokens(begin, end)).sum::<usize>();
            self.ms += end - begin;
        }
    }

    fn per_second(self) -> Option<f64> {
        (self.ms > 0.0).then(|| self.tokens as f64 * 1e3 / self.ms)
    }
}

impl Usage {
    fn add(&mut self, spent: &Spent) {
        self.prompt_tokens += spent.prompt_tokens;
        self.cached_tokens += spent.memory + spent.disk + spent.joined;
        self.cached.memory += spent.memory;
        self.cached.disk += spent.disk;
        self.cached.joined += spent.joined;
    }
}

impl Reply {
    fn first(&self) -> Option<f64> {
        self.deliveries.first().map(|delivery| delivery.at)
    }

    fn last(&self) -> Option<f64> {
        self.deliveries.last().map(|delivery| delivery.at)
    }

    fn gaps(&self) -> impl Iterator<Item = f64> {
        self.deliveries.windows(2).map(|two| two[1].at - two[0].at)
    }

    /// Tokens that came after `begin` and not after `end`.
    fn tokens(&self, begin: f64, end: f64) -> usize {
        let within =
            self.deliveries.iter().filter(|delivery| delivery.at > begin && delivery.at <= end);
        within.map(|delivery| delivery.tokens).sum()
    }
}

/// The largest of these times; without any, none that is later than another.
fn largest(round: &Round, time: impl Fn(&Reply) -> Option<f64>) -> f64 {
    round.iter().flatten().filter_map(time).fold(f64::NEG_INFINITY, f64::max)
}

impl Spread {
    fn of_gaps(round: &Round) -> Self {
        Self::of(&round.iter().flatten().flat_map(Reply::gaps).collect::<Vec<_>>())
    }

    /// By nearest rank.
    fn of(times: &[f64]) -> Self {
        let mut times = times.to_vec();
        times.sort_by(f64::total_cmp);
        let at = |percent: usize| {
            let rank = (times.len() * percent).div_ceil(100);
            times.get(rank.checked_sub(1)?).copied()
        };
        Self { p50: at(50), p99: at(99) }
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.p50, self.p99) {
            (Some(p50), Some(p99)) => write!(f, "p50 {p50:.1} ms, p99 {p99:.1} ms"),
            _ => f.write_str("-"),
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::super::talk::Delivery;
    use super::*;

    fn reply(times: &[f64], cached: u64) -> Vec<Reply> {
        let deliveries = times.iter().map(|at| Delivery { at: *at, tokens: 1 }).collect();
        let spent = Spent {
            verdict: if cached > 0 { "JOINED" } else { "COLD" }.into(),
            prompt_tokens: 100,
            memory: 0,
            disk: 0,
            joined: cached,
            prefill_ms: 1.0,
        };
        vec![Reply { deliveries, spent: Some(spent) }]
    }

    #[test]
    fn percentiles_are_times_that_were_measured() {
        let times: Vec<_> = (1..=200).rev().map(f64::from).collect();
        let spread = Spread::of(&times);
        assert_eq!((spread.p50, spread.p99), (Some(100.0), Some(198.0)));
        let one = Spread::of(&[3.0]);
        assert_eq!((one.p50, one.p99), (Some(3.0), Some(3.0)));
        assert_eq!(Spread::of(&[]).p99, None);
    }

    #[test]
    fn a_rate_while_all_generate_leaves_beginnings_and_ends_out() {
        let mut figures = Figures::default();
        figures.add(&[reply(&[10.0, 20.0, 30.0, 40.0], 0), reply(&[20.0, 30.0, 40.0, 50.0], 90)]);
        let found = figures.findings();
        // From 20 to 40 ms each of the two had two tokens.
        assert_eq!(found.decode_tokens_per_second.unwrap().round(), 200.0);
        assert_eq!(found.tokens_per_second.unwrap().round(), 160.0);
        assert_eq!((found.ttft_ms.p50, found.ttft_ms.p99), (Some(10.0), Some(20.0)));
        assert_eq!(found.inter_token_ms.p99, Some(10.0));
        assert_eq!((found.computed_tokens, found.usage.prompt_tokens), (110, 200));
        assert_eq!((found.verdicts["COLD"], found.verdicts["JOINED"]), (1, 1));
    }

    #[test]
    fn agents_that_never_generate_together_have_no_rate_of_that() {
        let mut figures = Figures::default();
        figures.add(&[reply(&[10.0, 20.0], 0), reply(&[30.0, 40.0], 0)]);
        assert_eq!(figures.findings().decode_tokens_per_second, None);
        assert_eq!(figures.findings().tokens_per_second.unwrap().round(), 100.0);
    }

    #[test]
    fn gaps_are_of_one_reply() {
        let agent =
            [reply(&[1.0, 2.0], 0), reply(&[60.0, 61.0], 0)].into_iter().flatten().collect();
        assert_eq!(Spread::of_gaps(&[agent]).p99, Some(1.0));
    }
}
