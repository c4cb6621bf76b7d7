//! What the daemon measures, as a page for Prometheus and as the counters of `Status` and `Watch`.
//!
//! Everything here is read where it is counted: no engine is asked.

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use tinygpt_proto::Label;
use tinygpt_proto::v1::{self as wire, Budget};

use super::Daemon;
use super::models::{Readiness, Slot};
use crate::metrics::page::Page;
use crate::metrics::table::{self, Metric};
use crate::metrics::{Counts, Meter, Reading, Tagged};
use crate::store::StoreHandle;

/// KV in one place: what it is called, and how much of how much.
pub(super) struct Tier {
    pub(super) name: &'static str,
    pub(super) bytes: u64,
    pub(super) budget: Option<u64>,
}

impl Daemon {
    /// A page with everything that is measured.
    pub(super) fn page(&self) -> String {
        let mut page = Page::default();
        page.number(&table::UP, u8::from(self.models.are_ready()));
        let started = self.facts.started.duration_since(UNIX_EPOCH);
        page.number(&table::START, started.unwrap_or(Duration::ZERO).as_secs_f64());
        for (metric, value) in self.numbers() {
            page.number(metric, value);
        }
        self.write_tiers(&mut page);
        self.write_models(&mut page);
        page.into_text()
    }

    /// Counters since the start, by name.
    pub(super) fn counters(&self) -> BTreeMap<String, u64> {
        let mut counters: BTreeMap<_, _> = self
            .numbers()
            .into_iter()
            .map(|(metric, value)| (metric.name.to_owned(), value))
            .collect();
        let all = self.models.all();
        let meters = || all.iter().map(|slot| slot.engine().meter());
        let sum = |count: fn(&Meter) -> u64| meters().map(count).sum();
        counters.extend([
            (table::COMPUTED.name.to_owned(), sum(|meter| meter.prompt_tokens.count())),
            (table::GENERATED.name.to_owned(), sum(|meter| meter.generated_tokens.count())),
            (table::JOINS.name.to_owned(), sum(joins)),
            (table::EVICTED.name.to_owned(), sum(|meter| meter.evicted.count())),
        ]);
        counters
    }

    /// The numbers that are the daemon's as a whole.
    fn numbers(&self) -> Vec<(&'static Metric, u64)> {
        let mut numbers: Vec<_> = self.tally.counts().collect();
        if let Some(stats) = self.store.as_ref().map(StoreHandle::stats) {
            numbers.extend([
                (&table::WRITTEN, stats.written_today),
                (&table::WRITE_QUEUE, stats.queue_bytes),
                (&table::EVICTIONS, stats.evictions),
                (&table::HITS, stats.hits),
                (&table::QUARANTINED, stats.quarantined),
                (&table::READ_ERRORS, stats.read_errors),
                (&table::DROPPED, stats.dropped_writes),
                (&table::WRITE_ERRORS, stats.write_errors),
            ]);
        }
        numbers
    }

    /// Where KV is. Every engine has a heap of its own; a mapped file is on disk, too.
    pub(super) fn tiers(&self) -> Vec<Tier> {
        let engines = self.models.all().len() as u64;
        let all = self.models.all();
        let meters = || all.iter().map(|slot| slot.engine().meter());
        let heap = engines * self.facts.engine.cache_budget.heap as u64;
        let stats = self.store.as_ref().map(StoreHandle::stats).unwrap_or_default();
        let (heaps, devices) =
            (meters().map(|m| m.heap_bytes.count()), meters().map(|m| m.device_bytes.count()));
        vec![
            Tier { name: "heap", bytes: heaps.sum(), budget: Some(heap) },
            Tier { name: "mapped", bytes: stats.mapped_bytes, budget: None },
            Tier { name: "disk", bytes: stats.bytes, budget: Some(stats.budget) },
            Tier { name: "device", bytes: devices.sum(), budget: None },
        ]
    }

    /// Bytes reserved for running requests, and their budget.
    pub(super) fn reserved(&self) -> Budget {
        let slots = &*self.models.all();
        let used = slots.iter().map(|slot| slot.engine().meter().active_bytes.count()).sum();
        let limit = slots.len() as u64 * self.facts.engine.active_budget as u64;
        Budget { used, limit: Some(limit) }
    }

    fn write_tiers(&self, page: &mut Page) {
        let tiers = self.tiers();
        let labels: Vec<_> = tiers.iter().map(|tier| [("tier", tier.name)]).collect();
        let told = || labels.iter().map(|labels| labels.as_slice()).zip(&tiers);
        page.numbers(&table::TIER, told().map(|(labels, tier)| (labels, tier.bytes)));
        let budgets = told().filter_map(|(labels, tier)| Some((labels, tier.budget?)));
        page.numbers(&table::BUDGET, budgets);
        let reserved = self.reserved();
        page.number(&table::ACTIVE, reserved.used);
        page.number(&table::ACTIVE_BUDGET, reserved.limit.unwrap_or_default());
    }

    fn write_models(&self, page: &mut Page) {
        let slots = &*self.models.all();
        let labels: Vec<_> = slots.iter().map(|slot| [("model", slot.engine().name())]).collect();
        let mut each = |metric: &Metric, count: &dyn Fn(&Slot) -> u64| {
            let samples = labels.iter().zip(slots);
            page.numbers(metric, samples.map(|(labels, slot)| (labels.as_slice(), count(slot))));
        };
        let ready = |slot: &Slot| matches!(slot.readiness(), Readiness::Ready(_));
        each(&table::MODEL_READY, &|slot| ready(slot).into());
        each(&table::RUNNING, &|slot| slot.engine().meter().running.count());
        each(&table::QUEUED, &|slot| slot.engine().waiting() as u64);
        each(&table::COMPUTED, &|slot| slot.engine().meter().prompt_tokens.count());
        each(&table::GENERATED, &|slot| slot.engine().meter().generated_tokens.count());
        each(&table::JOINS, &|slot| joins(slot.engine().meter()));
        each(&table::EVICTED, &|slot| slot.engine().meter().evicted.count());
        let readings: Vec<_> = slots.iter().map(|slot| slot.engine().meter().read()).collect();
        let mut each = |metric: &Metric, counts: fn(&Reading) -> &Counts| {
            let samples = labels.iter().zip(&readings);
            page.histograms(
                metric,
                samples.map(|(labels, read)| (labels.as_slice(), counts(read))),
            );
        };
        each(&table::QUEUE_TIME, |read| &read.queue_time);
        each(&table::FIRST_TOKEN, |read| &read.first_token);
        each(&table::TOKEN_GAP, |read| &read.token_gap);
        each(&table::STEP_TIME, |read| &read.step_time);
        each(&table::BATCH, |read| &read.batch);
        each(&table::ROWS, |read| &read.rows);
        write_tagged(page, &table::VERDICTS, "verdict", slots, verdicts);
        write_tagged(page, &table::REASONS, "reason", slots, reasons);
    }
}

/// A family with a sample for each model and each tag.
fn write_tagged(
    page: &mut Page,
    metric: &Metric,
    tag: &str,
    slots: &[Slot],
    counts: fn(&Meter) -> BTreeMap<String, u64>,
) {
    let read = |slot: &Slot| {
        let name = slot.engine().name().to_owned();
        counts(slot.engine().meter())
            .into_iter()
            .map(move |(tag, count)| (name.clone(), tag, count))
    };
    let read: Vec<_> = slots.iter().flat_map(read).collect();
    let labels: Vec<_> = read
        .iter()
        .map(|(name, value, _)| [("model", name.as_str()), (tag, value.as_str())])
        .collect();
    let counts = read.iter().map(|(_, _, count)| *count);
    page.numbers(metric, labels.iter().map(|labels| labels.as_slice()).zip(counts));
}

/// Admitted requests by what was reused for them.
pub(super) fn verdicts(meter: &Meter) -> BTreeMap<String, u64> {
    labelled::<wire::Verdict, _>(&meter.verdicts)
}

/// Admitted requests by why no more was reused.
pub(super) fn reasons(meter: &Meter) -> BTreeMap<String, u64> {
    labelled::<wire::Reason, _>(&meter.reasons)
}

fn joins(meter: &Meter) -> u64 {
    meter.verdicts.counts()[wire::Verdict::Joined as usize]
}

/// Counts by the names of what they stand for; what never occurred is there with a zero, but for
/// what is unspecified.
fn labelled<L: Label, const N: usize>(tagged: &Tagged<N>) -> BTreeMap<String, u64> {
    let counts = (0..).zip(tagged.counts()).skip(1);
    let named = counts.filter_map(|(tag, count)| Some((L::try_from(tag).ok()?, count)));
    named.map(|(tag, count)| (tag.label().to_ascii_lowercase(), count)).collect()
}
