//! What one engine, and the service for it, measure.

use super::histogram::{Counts, Histogram, Unit};
use super::number::Number;

/// Counts by a small number that stands for something: a verdict, or a reason.
#[derive(Debug)]
pub struct Tagged<const N: usize>([Number; N]);

impl<const N: usize> Default for Tagged<N> {
    fn default() -> Self {
        Self([const { Number(std::sync::atomic::AtomicU64::new(0)) }; N])
    }
}

impl<const N: usize> Tagged<N> {
    /// One more of `tag`; of one that has no place, the last.
    pub fn add(&self, tag: usize) {
        self.0[tag.min(N - 1)].add(1);
    }

    /// How many of each tag.
    pub fn counts(&self) -> [u64; N] {
        self.0.each_ref().map(Number::count)
    }
}

/// What is measured of one model since the daemon started.
#[derive(Debug)]
pub struct Meter {
    /// From receipt to admission.
    pub queue_time: Histogram,
    /// From receipt to the first token.
    pub first_token: Histogram,
    /// From one token of a text to the next.
    pub token_gap: Histogram,
    /// A pass through the model, its head included.
    pub step_time: Histogram,
    /// Sequences in a pass.
    pub batch: Histogram,
    /// Rows in a pass.
    pub rows: Histogram,
    /// Tokens of prompts that were computed, which is not those that were found.
    pub prompt_tokens: Number,
    /// Tokens that were chosen.
    pub generated_tokens: Number,
    /// Blocks that had to leave memory.
    pub evicted: Number,
    /// Requests by what was reused for them: the protocol's verdicts by their numbers.
    pub verdicts: Tagged<16>,
    /// Requests by why no more was: the protocol's reasons by their numbers.
    pub reasons: Tagged<32>,
    /// Requests with memory reserved, now.
    pub running: Number,
    /// Heap bytes of cached blocks, now.
    pub heap_bytes: Number,
    /// Bytes reserved for running requests, now.
    pub active_bytes: Number,
    /// Bytes on a device, now.
    pub device_bytes: Number,
}

impl Default for Meter {
    fn default() -> Self {
        Self {
            queue_time: Histogram::new(Unit::Nanoseconds),
            first_token: Histogram::new(Unit::Nanoseconds),
            token_gap: Histogram::new(Unit::Nanoseconds),
            step_time: Histogram::new(Unit::Nanoseconds),
            batch: Histogram::new(Unit::Things),
            rows: Histogram::new(Unit::Things),
            prompt_tokens: Number::default(),
            generated_tokens: Number::default(),
            evicted: Number::default(),
            verdicts: Tagged::default(),
            reasons: Tagged::default(),
            running: Number::default(),
            heap_bytes: Number::default(),
            active_bytes: Number::default(),
            device_bytes: Number::default(),
        }
    }
}

impl Meter {
    /// Without a model nothing is held; what was counted stays.
    pub fn empty(&self) {
        let held = [&self.running, &self.heap_bytes, &self.active_bytes, &self.device_bytes];
        held.into_iter().for_each(|gauge| gauge.set(0));
    }

    /// What has come together so far.
    pub fn read(&self) -> Reading {
        Reading {
            queue_time: self.queue_time.counts(),
            first_token: self.first_token.counts(),
            token_gap: self.token_gap.counts(),
            step_time: self.step_time.counts(),
            batch: self.batch.counts(),
            rows: self.rows.counts(),
            prompt_tokens: self.prompt_tokens.count(),
            generated_tokens: self.generated_tokens.count(),
        }
    }
}

/// What a [`Meter`] had counted at one moment, or between two.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the meter's, explained there")]
pub struct Reading {
    pub queue_time: Counts,
    pub first_token: Counts,
    pub token_gap: Counts,
    pub step_time: Counts,
    pub batch: Counts,
    pub rows: Counts,
    pub prompt_tokens: u64,
    pub generated_tokens: u64,
}

impl Default for Reading {
    /// Nothing.
    fn default() -> Self {
        let [times, things] = [Unit::Nanoseconds, Unit::Things].map(Counts::none);
        Self {
            queue_time: times.clone(),
            first_token: times.clone(),
            token_gap: times.clone(),
            step_time: times,
            batch: things.clone(),
            rows: things,
            prompt_tokens: 0,
            generated_tokens: 0,
        }
    }
}

impl Reading {
    /// What was measured after `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            queue_time: self.queue_time.since(&earlier.queue_time),
            first_token: self.first_token.since(&earlier.first_token),
            token_gap: self.token_gap.since(&earlier.token_gap),
            step_time: self.step_time.since(&earlier.step_time),
            batch: self.batch.since(&earlier.batch),
            rows: self.rows.since(&earlier.rows),
            prompt_tokens: self.prompt_tokens.saturating_sub(earlier.prompt_tokens),
            generated_tokens: self.generated_tokens.saturating_sub(earlier.generated_tokens),
        }
    }
}
