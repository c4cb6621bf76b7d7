//! Counters of the store, and what they add up to.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::clock::now;
use super::name::Name;
use super::shared::Shared;
use crate::metrics::Number;

/// What the store reports about itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stats {
    /// Segment files.
    pub segments: u64,
    /// Record files.
    pub records: u64,
    /// Files whose header is not read yet; sizes below leave them out.
    pub unread: u64,
    /// Bytes that count against the budget.
    pub bytes: u64,
    /// Most bytes on disk.
    pub budget: u64,
    /// Bytes of records.
    pub record_bytes: u64,
    /// Side files.
    pub side_files: u64,
    /// Bytes of side files.
    pub side_bytes: u64,
    /// Segments that are mapped.
    pub mapped_segments: u64,
    /// Bytes of all mapped files.
    pub mapped_bytes: u64,
    /// Bytes of unlinked files that are still mapped.
    pub unlinked_bytes: u64,
    /// Bytes written in the last 24 hours.
    pub written_today: u64,
    /// Bytes waiting to be written.
    pub queue_bytes: u64,
    /// Bytes that may wait.
    pub queue_limit: u64,
    /// Saves that were dropped: no room in the queue or on the disk, or a budget.
    pub dropped_writes: u64,
    /// Files that could not be written.
    pub write_errors: u64,
    /// Files that could not be read.
    pub read_errors: u64,
    /// Damaged files that were set aside.
    pub quarantined: u64,
    /// Files evicted to make room.
    pub evictions: u64,
    /// Prompts of which a loader found something.
    pub hits: u64,
    /// How long writing still pauses after the disk was full.
    pub paused: Option<Duration>,
    /// Bytes that were free when writing was paused last.
    pub free: u64,
    /// Bytes that are to stay free.
    pub free_floor: u64,
    /// Whether the directory was no longer the one that was locked when the writer looked last:
    /// nothing is written.
    pub lost: bool,
}

/// The store's counters.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) writes: Writes,
    pub(super) queue_bytes: Number,
    pub(super) dropped_writes: Number,
    pub(super) write_errors: Number,
    pub(super) read_errors: Number,
    pub(super) quarantined: Number,
    /// Files that were to go and could not be unlinked.
    pub(super) kept: Number,
    pub(super) evictions: Number,
    pub(super) hits: Number,
    /// Nanoseconds since the epoch until which nothing is written.
    pub(super) paused_until: Number,
    /// Bytes that were free when that was decided.
    pub(super) free: Number,
}

/// Bytes written in each of the last 24 hours.
///
/// After a restart the hours are filled from the times at which the files that are still there
/// were made, on file systems that keep them, so a restart does not refill a spent budget.
#[derive(Debug, Default)]
pub(super) struct Writes([Hour; 24]);

#[derive(Debug, Default)]
struct Hour {
    /// Hours since the epoch.
    hour: AtomicU64,
    bytes: AtomicU64,
}

impl Writes {
    pub(super) fn add(&self, bytes: u64) {
        self.at(this_hour(), bytes);
    }

    /// Counts a file that an earlier process wrote.
    pub(super) fn born(&self, born: Option<u64>, bytes: u64) {
        if let Some(hour) = born.map(hour).filter(|hour| hour + 24 > this_hour()) {
            self.at(hour, bytes);
        }
    }

    pub(super) fn today(&self) -> u64 {
        let recent = |hour: &&Hour| hour.hour.load(Ordering::Relaxed) + 24 > this_hour();
        self.0.iter().filter(recent).map(|hour| hour.bytes.load(Ordering::Relaxed)).sum()
    }

    /// Two threads that enter a new hour together may lose a few bytes of it; no more.
    fn at(&self, hour: u64, bytes: u64) {
        let slot = &self.0[(hour % 24) as usize];
        if slot.hour.swap(hour, Ordering::Relaxed) != hour {
            slot.bytes.store(0, Ordering::Relaxed);
        }
        slot.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

fn hour(nanoseconds: u64) -> u64 {
    nanoseconds / 3_600_000_000_000
}

fn this_hour() -> u64 {
    hour(now())
}

impl Shared {
    pub(super) fn stats(&self) -> Stats {
        let tally = &self.tally;
        let left = tally.paused_until.count().saturating_sub(now());
        let mut catalogue = self.catalogue();
        let (mapped, _) = catalogue.mappings.count();
        let unlinked_bytes = catalogue.unlinked_bytes();
        let is_segment = |name: &Name| matches!(name, Name::Segment { .. });
        let segments = catalogue.entries().filter(|(_, entry)| is_segment(&entry.name)).count();
        Stats {
            segments: segments as u64,
            records: (catalogue.entries().count() - segments) as u64,
            unread: catalogue.unread_count() as u64,
            bytes: catalogue.bytes(),
            budget: self.settings.disk_budget,
            record_bytes: catalogue.record_bytes(),
            side_files: catalogue.sides.count() as u64,
            side_bytes: catalogue.sides.named_bytes(),
            mapped_segments: mapped as u64,
            mapped_bytes: catalogue.mappings.bytes(),
            unlinked_bytes,
            written_today: tally.writes.today(),
            queue_bytes: tally.queue_bytes.count(),
            queue_limit: self.tuning.queue,
            dropped_writes: tally.dropped_writes.count(),
            write_errors: tally.write_errors.count(),
            read_errors: tally.read_errors.count(),
            quarantined: tally.quarantined.count(),
            evictions: tally.evictions.count(),
            hits: tally.hits.count(),
            paused: (left > 0).then(|| Duration::from_nanos(left)),
            free: tally.free.count(),
            free_floor: self.settings.free_floor,
            lost: self.home.is_lost(),
        }
    }
}
