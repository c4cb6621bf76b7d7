//! `Watch`: what goes on, again and again.
//!
//! Everything is read where it is counted, so that no watcher holds an engine or waits for one.
//! What a watcher is told about the past is its own: it keeps what it has read before.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tinygpt_proto::v1::{Budget, ModelActivity, Quantiles, WatchRequest, WatchResponse};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};
use tokio_stream::wrappers::ReceiverStream;

use super::model::describe;
use crate::metrics::{Counts, Reading};
use crate::service::Daemon;
use crate::service::convert::reply::count;
use crate::service::models::Slot;
use crate::service::page::{self, Tier};
use crate::service::stream::Responses;

/// How often when nobody says.
const USUALLY: Duration = Duration::from_secs(1);
/// No more often than this.
const SHORTEST: Duration = Duration::from_millis(100);
/// No less often than this.
const LONGEST: Duration = Duration::from_secs(3600);

/// How far back quantiles look.
const LOOK_BACK: Duration = Duration::from_secs(60);
/// How often a reading is kept to look back to.
const KEPT_EVERY: Duration = Duration::from_secs(5);

/// Tells again and again, until the watcher goes or the daemon drains.
pub(super) fn watch(daemon: Arc<Daemon>, request: &WatchRequest) -> Responses<WatchResponse> {
    let (client, stream) = mpsc::channel(1);
    let every = period(request);
    tokio::spawn(async move {
        let mut watcher = Watcher::of(&daemon);
        let mut ticks = interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = client.closed() => return,
                () = daemon.drain.cancelled() => return,
                _ = ticks.tick() => {}
            }
            // A watcher that does not read holds nothing but its own place in the channel.
            let Ok(place) = client.reserve().await else { return };
            place.send(Ok(watcher.look(&daemon)));
        }
    });
    ReceiverStream::new(stream)
}

fn period(request: &WatchRequest) -> Duration {
    let asked = request.interval.map(|interval| Duration::try_from(interval).unwrap_or_default());
    asked.unwrap_or(USUALLY).clamp(SHORTEST, LONGEST)
}

/// Somebody who watches, and what they have seen.
struct Watcher {
    /// When they looked last; before the first time, when the daemon started.
    last: Instant,
    /// By name. One that is new has no past, and one that is gone leaves none.
    models: HashMap<String, Past>,
}

/// What was read of one model before.
#[derive(Default)]
struct Past {
    last: Reading,
    /// Readings of the last minute, the oldest first; nothing yet is one, too.
    kept: VecDeque<(Instant, Reading)>,
}

impl Watcher {
    fn of(daemon: &Daemon) -> Self {
        let now = Instant::now();
        let age = SystemTime::now().duration_since(daemon.facts.started).unwrap_or_default();
        Self { last: now.checked_sub(age).unwrap_or(now), models: HashMap::new() }
    }

    fn look(&mut self, daemon: &Daemon) -> WatchResponse {
        let now = Instant::now();
        let span = now - std::mem::replace(&mut self.last, now);
        let slots = daemon.models.all();
        self.models.retain(|name, _| slots.iter().any(|slot| slot.engine().name() == name));
        let models: Vec<_> = slots
            .iter()
            .map(|slot| {
                let past = self.models.entry(slot.engine().name().to_owned()).or_default();
                activity(slot, past, now, span)
            })
            .collect();
        let mut told = WatchResponse {
            time: Some(SystemTime::now().into()),
            running: models.iter().map(|model| model.running).sum(),
            queued: models.iter().map(|model| model.queued).sum(),
            counters: daemon.counters(),
            state: daemon.state().into(),
            span: span.try_into().ok(),
            models,
            active: Some(daemon.reserved()),
            warnings: daemon.warnings(),
            ..WatchResponse::default()
        };
        for Tier { name, bytes, budget } in daemon.tiers() {
            let budget = Some(Budget { used: bytes, limit: budget });
            match name {
                "heap" => told.memory = budget,
                "disk" => told.disk = budget,
                "mapped" => told.mapped_bytes = bytes,
                _ => told.device_bytes = bytes,
            }
        }
        told
    }
}

impl Past {
    /// What was measured since the last look, and over the last minute.
    fn advance(&mut self, reading: Reading, now: Instant) -> (Reading, Reading) {
        if self.kept.is_empty() {
            self.kept.push_back((now, Reading::default()));
        }
        while self.kept.get(1).is_some_and(|(at, _)| now.duration_since(*at) >= LOOK_BACK) {
            self.kept.pop_front();
        }
        let minute = self.kept.front().map(|(_, oldest)| reading.since(oldest));
        if self.kept.back().is_none_or(|(at, _)| now.duration_since(*at) >= KEPT_EVERY) {
            self.kept.push_back((now, reading.clone()));
        }
        let new = reading.since(&self.last);
        self.last = reading;
        (new, minute.unwrap_or_default())
    }
}

fn activity(slot: &Slot, past: &mut Past, now: Instant, span: Duration) -> ModelActivity {
    let meter = slot.engine().meter();
    let (new, minute) = past.advance(meter.read(), now);
    let rate = |tokens: u64| tokens as f64 / span.as_secs_f64().max(1e-9);
    ModelActivity {
        name: slot.engine().name().to_owned(),
        state: describe(slot).state,
        running: count(meter.running.count()),
        queued: count(slot.engine().waiting()),
        prompt_rate: rate(new.prompt_tokens),
        generated_rate: rate(new.generated_tokens),
        steps: new.step_time.count(),
        step_ms: milliseconds(new.step_time.mean()),
        batch: new.batch.mean().unwrap_or_default(),
        rows: new.rows.mean().unwrap_or_default(),
        queue_time: Some(quantiles(&minute.queue_time)),
        first_token: Some(quantiles(&minute.first_token)),
        token_gap: Some(quantiles(&minute.token_gap)),
        verdicts: page::verdicts(meter),
        reasons: page::reasons(meter),
    }
}

fn quantiles(times: &Counts) -> Quantiles {
    Quantiles {
        count: times.count(),
        p50_ms: milliseconds(times.quantile(0.5)),
        p99_ms: milliseconds(times.quantile(0.99)),
    }
}

/// Nanoseconds as the wire has them; nothing is zero.
fn milliseconds(nanoseconds: Option<f64>) -> f64 {
    nanoseconds.unwrap_or_default() / 1e6
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::metrics::Meter;

    #[test]
    fn an_interval_is_a_second_unless_it_is_said_and_never_too_short() {
        let asked = |interval: Option<Duration>| {
            period(&WatchRequest { interval: interval.map(|i| i.try_into().unwrap()) })
        };
        assert_eq!(asked(None), USUALLY);
        assert_eq!(asked(Some(Duration::from_secs(7))), Duration::from_secs(7));
        assert_eq!(asked(Some(Duration::from_millis(1))), SHORTEST);
        assert_eq!(asked(Some(Duration::from_secs(1 << 40))), LONGEST);
        let mut negative = WatchRequest { interval: Some(Duration::ZERO.try_into().unwrap()) };
        negative.interval.as_mut().unwrap().seconds = -5;
        assert_eq!(period(&negative), SHORTEST);
    }

    #[test]
    fn quantiles_look_back_a_minute_and_rates_to_the_last_look() {
        let (meter, start) = (Meter::default(), Instant::now());
        let mut past = Past::default();
        for second in 0..200 {
            meter.generated_tokens.add(3);
            let time = if second < 100 { 1 } else { 100 };
            meter.token_gap.record_time(Duration::from_millis(time));
            let (new, minute) = past.advance(meter.read(), start + Duration::from_secs(second));
            assert_eq!(new.generated_tokens, 3);
            let looked = minute.token_gap.count();
            assert!(second < 60 && looked == second + 1 || (60..=66).contains(&looked), "{looked}");
        }
        assert!(past.kept.len() < 15, "{}", past.kept.len());
        let (_, minute) = past.advance(meter.read(), start + Duration::from_secs(200));
        assert!(minute.token_gap.quantile(0.01).unwrap() > 8e7, "the first ones are forgotten");
    }
}
