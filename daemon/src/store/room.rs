//! Budgets: the one place that decides whether bytes may go to the disk, before they do.

use std::thread;
use std::time::{Duration, Instant};

use super::catalogue::{Catalogue, Farewell, FileId};
use super::clock::now;
use super::contents::Contents;
use super::publish::Unwritten;
use super::shared::Shared;
use crate::kv::key::ShortKey;
use crate::sys::directory::free_bytes;

/// Records may hold this part of the disk budget.
pub(super) const RECORD_SHARE: u64 = 20;
/// Mapped segments asked back at once.
const ASKED_BACK: usize = 64;

/// Bytes that are accounted for and not yet written; dropping it ends the reservation.
#[derive(Debug)]
pub(super) struct Reservation<'a> {
    shared: &'a Shared,
    bytes: u64,
}

impl Reservation<'_> {
    /// Ends it in the moment in which `catalogue` has what was written, lest that count twice.
    pub(super) fn settle(&mut self, catalogue: &mut Catalogue) {
        catalogue.reserved -= std::mem::take(&mut self.bytes);
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.shared.catalogue().reserved -= self.bytes;
        }
    }
}

/// What to take away next.
enum Victim {
    File(FileId),
    Side(ShortKey),
    Bad(std::path::PathBuf),
}

impl Shared {
    /// Accounts for `bytes` to be written, evicting what must go. Called by the writer only.
    pub(super) fn reserve(&self, bytes: u64) -> Result<Reservation<'_>, Unwritten> {
        self.expect_home()?;
        self.expect_awake()?;
        self.expect_daily(bytes)?;
        self.expect_floor(bytes)?;
        self.make_room(bytes)?;
        self.catalogue().reserved += bytes;
        Ok(Reservation { shared: self, bytes })
    }

    /// The same for a record, which also has a quota.
    pub(super) fn reserve_record(&self, bytes: u64) -> Result<Reservation<'_>, Unwritten> {
        self.keep_record_quota(bytes)?;
        self.reserve(bytes)
    }

    /// Evicts records that no lease holds, least recently used first, until `needed` more bytes fit
    /// their quota.
    pub(super) fn keep_record_quota(&self, needed: u64) -> Result<(), Unwritten> {
        let budget = self.settings.disk_budget / RECORD_SHARE;
        if needed > budget {
            return Err(Unwritten::Budget { needed, budget });
        }
        loop {
            let mut catalogue = self.catalogue();
            let over = catalogue.record_bytes() + needed > budget;
            if !over {
                return Ok(());
            }
            let Some(id) = catalogue.oldest_record() else {
                return Err(Unwritten::Budget { needed, budget });
            };
            drop(catalogue);
            self.evict(id)?;
        }
    }

    /// Evicts until `needed` more bytes fit the budget: damaged files first, then whatever was
    /// used least recently and is followed by nothing, used by nobody and held by no lease.
    pub(super) fn make_room(&self, needed: u64) -> Result<(), Unwritten> {
        let budget = self.settings.disk_budget;
        let no_room = Unwritten::Budget { needed, budget };
        if needed > budget {
            return Err(no_room);
        }
        let mut asked_back: Option<Instant> = None;
        loop {
            let mut catalogue = self.catalogue();
            if catalogue.bytes() + needed <= budget {
                return Ok(());
            }
            let victim = victim(&mut catalogue);
            drop(catalogue);
            match victim {
                Some(Victim::File(id)) => self.evict(id)?,
                Some(Victim::Side(key)) => self.evict_side(key)?,
                Some(Victim::Bad(path)) => self.sweep(&path),
                None if waits(*asked_back.get_or_insert_with(|| self.ask_back_files())) => {}
                None => return Err(no_room),
            }
        }
    }

    /// Stops writing for a while.
    pub(super) fn pause(&self) {
        let pause = u64::try_from(self.tuning.pause.as_nanos()).unwrap_or(u64::MAX);
        self.tally.free.set(free_bytes(self.root()).unwrap_or_default());
        self.tally.paused_until.set(now().saturating_add(pause));
    }

    pub(super) fn expect_awake(&self) -> Result<(), Unwritten> {
        let paused = self.tally.paused_until.count() > now();
        if paused { Err(Unwritten::Paused) } else { Ok(()) }
    }

    fn expect_daily(&self, needed: u64) -> Result<(), Unwritten> {
        let written = self.tally.writes.today();
        match self.settings.daily_writes {
            Some(limit) if written + needed > limit => {
                Err(Unwritten::Daily { written, limit, needed })
            }
            _ => Ok(()),
        }
    }

    fn expect_floor(&self, needed: u64) -> Result<(), Unwritten> {
        let floor = self.settings.free_floor;
        // A file system that does not tell is found full when it is.
        let Some(free) = free_bytes(self.root()) else { return Ok(()) };
        if free < floor.saturating_add(needed) {
            return Err(Unwritten::Floor { free, floor, needed });
        }
        Ok(())
    }

    fn evict(&self, id: FileId) -> Result<(), Unwritten> {
        self.expect_home()?;
        self.discard(id, Farewell::Evicted);
        self.tally.evictions.add(1);
        Ok(())
    }

    /// Asks for the segments back that eviction would take next if nobody used them.
    fn ask_back_files(&self) -> Instant {
        let oldest = self.catalogue().oldest_in_use(ASKED_BACK);
        self.ask_back(&oldest)
    }

    /// Asks for the segments back that were mapped the longest ago.
    pub(super) fn ask_back_mappings(&self) -> Instant {
        let oldest = self.catalogue().oldest_mapped(ASKED_BACK);
        self.ask_back(&oldest)
    }

    /// Asks everyone who holds blocks of these segments to let go of them. Returns until when it
    /// is worth waiting for that.
    fn ask_back(&self, ids: &[FileId]) -> Instant {
        let (keys, hooks) = {
            let catalogue = self.catalogue();
            let contents = ids.iter().filter_map(|id| catalogue.entry(*id)?.contents.as_ref());
            let keys: Vec<_> = contents.flat_map(Contents::keys).copied().collect();
            (keys, catalogue.pressure.clone())
        };
        hooks.iter().for_each(|hook| hook(&keys));
        let nobody = hooks.is_empty() || keys.is_empty();
        Instant::now() + if nobody { Duration::ZERO } else { self.tuning.patience }
    }
}

/// A damaged file, else whatever was used least recently.
fn victim(catalogue: &mut Catalogue) -> Option<Victim> {
    if let Some((path, _)) = catalogue.bad.pop_first() {
        return Some(Victim::Bad(path));
    }
    let file = catalogue.oldest().map(|(used, id)| (used, Victim::File(id)));
    let side = catalogue.sides.oldest().map(|(used, key)| (used, Victim::Side(key)));
    file.into_iter().chain(side).min_by_key(|(used, _)| *used).map(|(_, victim)| victim)
}

/// Waits for a moment, unless it is too late.
pub(super) fn waits(until: Instant) -> bool {
    let waits = Instant::now() < until;
    if waits {
        thread::sleep(Duration::from_millis(5));
    }
    waits
}
