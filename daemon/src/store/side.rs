//! Side files: what others make once and want to map at the next start.
//!
//! They lie beside the families, under the budget and the lock of everything else; what is in them
//! is their owners' business, and so is not believing it. A side file is found by its key, mapped
//! whole, and never altered; one that is missing is made again by whoever wanted it.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::{Duration, UNIX_EPOCH};

use super::clean::Collected;
use super::clock::now;
use super::name::side_name;
use super::publish::{Unwritten, temporary};
use super::room::Reservation;
use super::shared::Shared;
use crate::kv::key::ShortKey;
use crate::sys::file;
use crate::sys::mmap::Map;

/// Side files may hold this part of the disk budget.
const SHARE: u64 = 2;

/// How long a side file that nobody uses is kept by a collection.
const UNUSED: Duration = Duration::from_hours(30 * 24);

/// A side file to write.
pub struct Side {
    /// Its name.
    pub key: ShortKey,
    /// Its length.
    pub bytes: u64,
    /// What is to be written and where, until there is no more. Asked for on the writer's thread,
    /// between its other work.
    pub pieces: Box<dyn Iterator<Item = (u64, Vec<u8>)> + Send>,
}

impl fmt::Debug for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Side({}, {} bytes)", self.key, self.bytes)
    }
}

/// The side files that are on the disk.
#[derive(Debug, Default)]
pub(super) struct Sides {
    named: BTreeMap<ShortKey, Entry>,
    /// Maps of files that were unlinked, whose bytes the disk still holds.
    unlinked: Vec<(Weak<Map>, u64)>,
}

#[derive(Debug)]
struct Entry {
    bytes: u64,
    /// Last use in nanoseconds since the epoch.
    used: u64,
    map: Weak<Map>,
}

impl Sides {
    /// A file that is there and that nobody maps.
    pub(super) fn add(&mut self, key: ShortKey, bytes: u64, used: u64) {
        self.named.insert(key, Entry { bytes, used, map: Weak::new() });
    }

    fn mapped(&mut self, key: ShortKey, map: &Arc<Map>, used: u64) {
        if let Some(entry) = self.named.get_mut(&key) {
            (entry.map, entry.used) = (Arc::downgrade(map), used);
        }
    }

    /// Takes a file out. Whether there was one.
    fn remove(&mut self, key: ShortKey) -> bool {
        let Some(entry) = self.named.remove(&key) else { return false };
        self.unlinked.push((entry.map, entry.bytes));
        true
    }

    /// Takes all files out.
    pub(super) fn remove_all(&mut self) {
        self.keys().into_iter().for_each(|key| _ = self.remove(key));
    }

    pub(super) fn keys(&self) -> Vec<ShortKey> {
        self.named.keys().copied().collect()
    }

    pub(super) fn count(&self) -> usize {
        self.named.len()
    }

    pub(super) fn named_bytes(&self) -> u64 {
        self.named.values().map(|entry| entry.bytes).sum()
    }

    /// Bytes of unlinked files that are still mapped.
    pub(super) fn unlinked_bytes(&mut self) -> u64 {
        self.unlinked.retain(|(map, _)| map.strong_count() > 0);
        self.unlinked.iter().map(|(_, bytes)| bytes).sum()
    }

    /// When the least recently used one that nobody maps was used, and its key.
    pub(super) fn oldest(&self) -> Option<(u64, ShortKey)> {
        let idle = self.named.iter().filter(|(_, entry)| entry.map.strong_count() == 0);
        idle.map(|(key, entry)| (entry.used, *key)).min()
    }
}

/// A side file that is being written under its temporary name, which goes with this.
#[derive(Debug)]
pub(super) struct Writing<'a> {
    shared: &'a Shared,
    side: Side,
    file: File,
    reserved: Reservation<'a>,
}

impl Shared {
    fn side_path(&self, key: ShortKey) -> PathBuf {
        self.root().join(side_name(key))
    }

    /// Maps a side file. `None` when there is none that the system can map, or that fits the quota,
    /// which may have been larger when it was written; it is dropped then.
    pub(super) fn map_side(&self, key: ShortKey) -> Option<Arc<Map>> {
        self.keep_side_quota(0)
            .inspect_err(|error| tracing::warn!(%error, "side files do not fit into the budget"))
            .ok()?;
        self.catalogue().sides.named.get(&key)?;
        let path = self.side_path(key);
        let mapped = file::open(&path).and_then(|file| {
            let length = usize::try_from(file.metadata()?.len()).map_err(std::io::Error::other)?;
            Ok((Map::open(&file, length)?, file))
        });
        match mapped {
            Ok((map, file)) => {
                let (map, mut catalogue) = (Arc::new(map), self.catalogue());
                let used = catalogue.tick();
                catalogue.sides.mapped(key, &map, used);
                drop(catalogue);
                // It only orders evictions.
                let time = UNIX_EPOCH + Duration::from_nanos(used);
                let _ = self.home.permit().map(|permit| permit.set_modified(&file, time));
                Some(map)
            }
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "cannot map a side file");
                self.tally.read_errors.add(1);
                self.drop_side(key);
                None
            }
        }
    }

    /// Unlinks a side file. Whether it is gone.
    pub(super) fn drop_side(&self, key: ShortKey) -> bool {
        let taken = self.catalogue().sides.remove(key);
        !taken || self.unlink(&self.side_path(key))
    }

    /// Removes all side files. How many stay.
    pub(super) fn drop_sides(&self) -> u64 {
        let keys = self.catalogue().sides.keys();
        keys.into_iter().map(|key| u64::from(!self.drop_side(key))).sum()
    }

    /// Removes side files that nobody has used for long.
    pub(super) fn collect_sides(&self) -> Collected {
        let mut collected = Collected::default();
        let before = now().saturating_sub(u64::try_from(UNUSED.as_nanos()).unwrap_or(u64::MAX));
        loop {
            let oldest = self.catalogue().sides.oldest();
            let Some((_, key)) = oldest.filter(|(used, _)| *used < before) else {
                return collected;
            };
            match self.drop_side(key) {
                true => collected.files += 1,
                false => collected.kept += 1,
            }
        }
    }

    /// Starts a side file, unless it is there.
    pub(super) fn begin_side(&self, side: Side) -> Result<Option<Writing<'_>>, Unwritten> {
        self.expect_root()?;
        if self.catalogue().sides.named.contains_key(&side.key) {
            return Ok(None);
        }
        // Nothing is written or evicted before it is known what is there.
        self.read_all_headers();
        self.keep_side_quota(side.bytes)?;
        let reserved = self.reserve(side.bytes)?;
        let file = self.create(&temporary(&self.side_path(side.key)), false)?;
        Ok(Some(Writing { shared: self, side, file, reserved }))
    }

    /// Evicts side files, least recently used first, until `needed` more bytes fit their quota.
    fn keep_side_quota(&self, needed: u64) -> Result<(), Unwritten> {
        let budget = self.settings.disk_budget / SHARE;
        loop {
            let catalogue = self.catalogue();
            if catalogue.sides.named_bytes() + needed <= budget {
                return Ok(());
            }
            let oldest = catalogue.sides.oldest().filter(|_| needed <= budget);
            drop(catalogue);
            let Some((_, key)) = oldest else { return Err(Unwritten::Budget { needed, budget }) };
            self.evict_side(key)?;
        }
    }

    pub(super) fn evict_side(&self, key: ShortKey) -> Result<(), Unwritten> {
        self.expect_home()?;
        self.drop_side(key);
        self.tally.evictions.add(1);
        Ok(())
    }

    /// A side file was not written: it may be later, and what is smaller may fit now.
    pub(super) fn forgo_side(&self, unwritten: &Unwritten) {
        tracing::warn!(reason = %unwritten, "a side file was not written");
        if let Unwritten::Io(_) = unwritten {
            self.tally.write_errors.add(1);
            if unwritten.is_full() {
                self.pause();
            }
        }
    }
}

impl<'a> Writing<'a> {
    pub(super) fn key(&self) -> ShortKey {
        self.side.key
    }

    /// Writes the next piece. `None` when the file is whole and has its name.
    pub(super) fn go_on(mut self) -> Result<Option<Writing<'a>>, Unwritten> {
        match self.side.pieces.next() {
            Some((at, bytes)) => {
                self.shared.write_at(&self.file, &bytes, at)?;
                Ok(Some(self))
            }
            None => self.finish().map(|()| None),
        }
    }

    fn finish(&mut self) -> Result<(), Unwritten> {
        let (shared, Side { key, bytes, .. }) = (self.shared, &self.side);
        shared.give_name(&shared.side_path(*key), *bytes, false)?;
        let mut catalogue = shared.catalogue();
        let used = catalogue.tick();
        catalogue.sides.add(*key, *bytes, used);
        self.reserved.settle(&mut catalogue);
        Ok(())
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        // It is not there when the file has its name.
        self.shared.sweep(&temporary(&self.shared.side_path(self.side.key)));
    }
}
