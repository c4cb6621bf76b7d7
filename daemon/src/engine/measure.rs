//! What the engine tells its meter, for whoever looks; nobody has to ask it.

use std::time::{Duration, Instant};

use super::Engine;
use super::sequence::{Phase, Sequence};
use crate::kv::device::Tier;
use crate::metrics::Meter;
use crate::model::Batch;

impl Engine {
    /// A pass over a batch, its head included.
    pub(super) fn measure(&self, batch: &Batch, took: Duration) {
        let meter = &self.shared.meter;
        meter.step_time.record_time(took);
        meter.batch.record(batch.slices.len() as u64);
        meter.rows.record(batch.tokens.len() as u64);
    }

    /// What the engine holds now.
    pub(super) fn observe(&self) {
        let meter = &self.shared.meter;
        let running = self.sequences.iter().filter(|s| s.phase != Phase::Syncing).count();
        meter.running.set(running as u64);
        meter.active_bytes.set(self.sequences.iter().map(|s| s.reserved as u64).sum());
        meter.heap_bytes.set(self.index.heap_bytes() as u64);
        let device = self.loaded.model.tier().map(Tier::usage);
        meter.device_bytes.set(device.map_or(0, |usage| usage.bytes));
    }

    /// Forgets what the budgets have no room for.
    pub(super) fn evict(&mut self) {
        let (before, _) = self.index.counts();
        self.index.evict();
        let (after, _) = self.index.counts();
        self.shared.meter.evicted.add((before - after) as u64);
    }
}

impl Sequence {
    /// A token was chosen now.
    pub(super) fn measure_token(&self, now: Instant, meter: &Meter) {
        meter.generated_tokens.add(1);
        match self.last_token {
            None => meter.first_token.record_time(now.duration_since(self.job.received)),
            Some(last) => meter.token_gap.record_time(now.duration_since(last)),
        }
    }
}
