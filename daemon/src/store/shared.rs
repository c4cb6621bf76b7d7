//! What the threads of the store have in common.

use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, Once, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::Settings;
use super::catalogue::{Catalogue, Farewell, FileId};
use super::contents::{Found, examine};
use super::damage::Fault;
use super::home::Home;
use super::name::{Name, VERSION_DIR, fields_name};
use super::shelf::Precedence;
use super::stats::Tally;
use crate::kv::key::ShortKey;
use crate::sys::lock::LockId;

/// Headers read in one go.
const HEADERS: usize = 256;

/// Numbers that users need not know and tests change.
#[derive(Debug, Clone)]
pub(super) struct Tuning {
    /// Largest segment, in bytes.
    pub(super) segment: u64,
    /// A segment below this size is small.
    pub(super) small: u64,
    /// More small neighbours than this are rewritten into one.
    pub(super) neighbours: usize,
    /// How long writing pauses after a disk was full.
    pub(super) pause: Duration,
    /// Bytes that may wait to be written.
    pub(super) queue: u64,
    /// How long the threads go on with queued work when the store closes.
    pub(super) closing: Duration,
    /// How long the writer waits for others to let go of mapped segments.
    pub(super) patience: Duration,
    /// Pretends that the disk is full when a file has grown to this many bytes.
    #[cfg(test)]
    pub(super) disk: std::sync::Arc<std::sync::atomic::AtomicU64>,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            segment: 64 << 20,
            small: 4 << 20,
            neighbours: 8,
            pause: Duration::from_secs(60),
            queue: 256 << 20,
            closing: Duration::from_secs(5),
            patience: Duration::from_millis(500),
            #[cfg(test)]
            disk: std::sync::Arc::new(u64::MAX.into()),
        }
    }
}

/// What every thread of the store sees.
pub(super) struct Shared {
    pub(super) settings: Settings,
    pub(super) tuning: Tuning,
    pub(super) tally: Tally,
    /// Set when the store closes: the moment after which queued work is dropped.
    pub(super) closing: OnceLock<Instant>,
    /// Whether the digest files were read.
    surveyed: Once,
    root: PathBuf,
    pub(super) home: Home,
    /// The daemon's one lock. Never held over I/O.
    catalogue: Mutex<Catalogue>,
    /// Signalled when a file has left.
    pub(super) left: Condvar,
}

impl Shared {
    /// `lock` is the one that is held on the directory.
    pub(super) fn new(settings: Settings, tuning: Tuning, lock: LockId) -> Self {
        Self {
            home: Home::new(settings.dir.clone(), lock),
            root: settings.dir.join(VERSION_DIR),
            catalogue: Mutex::new(Catalogue::new(settings.mappings, settings.disk_budget)),
            settings,
            tuning,
            tally: Tally::default(),
            closing: OnceLock::new(),
            surveyed: Once::new(),
            left: Condvar::new(),
        }
    }

    /// Locks the catalogue. A thread that died holding it can have left it out of date, which
    /// costs misses, and never wrong: what it says is compared with the files.
    pub(super) fn catalogue(&self) -> MutexGuard<'_, Catalogue> {
        self.catalogue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The directory of this format version.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// The directory of a family.
    pub(super) fn dir(&self, family: ShortKey) -> PathBuf {
        self.root.join(family.to_string())
    }

    /// The digest file of a family.
    pub(super) fn fields_path(&self, family: ShortKey) -> PathBuf {
        self.root.join(fields_name(family))
    }

    pub(super) fn path(&self, family: ShortKey, name: Name) -> PathBuf {
        self.dir(family).join(name.to_string())
    }

    /// Where the file of an entry lies, while the catalogue has it.
    pub(super) fn locate(&self, id: FileId) -> Option<(ShortKey, Name, PathBuf)> {
        let catalogue = self.catalogue();
        let entry = catalogue.entry(id)?;
        Some((entry.family, entry.name, self.path(entry.family, entry.name)))
    }

    /// Reads the headers of files that nobody has read yet. `false` when the system could not
    /// read one.
    pub(super) fn read_headers(&self, ids: &[FileId]) -> bool {
        let mut readable = true;
        for id in ids {
            let unread = self.catalogue().entry(*id).is_some_and(|entry| entry.contents.is_none());
            let Some((family, name, path)) = self.locate(*id).filter(|_| unread) else { continue };
            match examine(&path, family, name) {
                Ok(found) => self.enter_header(*id, found),
                Err(fault) => {
                    readable &= !matches!(fault, Fault::Io(_));
                    self.report(*id, &fault);
                }
            }
        }
        readable
    }

    /// Takes in what a header tells, unless another thread has read the same file meanwhile.
    pub(super) fn enter_header(&self, id: FileId, found: Found) {
        let (born, bytes) = (found.born, found.bytes);
        let learnt = self.catalogue().learn(id, found, Precedence::Longest);
        let Some(superfluous) = learnt else { return };
        self.tally.writes.born(born, bytes);
        superfluous.into_iter().for_each(|id| self.discard(id, Farewell::Gone));
    }

    /// Reads the headers of the next few files. Whether any are left.
    pub(super) fn read_some_headers(&self, most: usize) -> bool {
        self.surveyed.call_once(|| self.read_fields());
        let unread = self.catalogue().unread(most);
        self.read_headers(&unread);
        !unread.is_empty()
    }

    /// Reads whatever headers nobody has read yet.
    pub(super) fn read_all_headers(&self) {
        while self.read_some_headers(HEADERS) {}
    }

    /// Deals with a file that did not help: a damaged one is set aside and never tried again.
    pub(super) fn report(&self, id: FileId, fault: &Fault) {
        match fault {
            Fault::Gone => self.catalogue().forget(id, Farewell::Gone),
            Fault::Damaged(damage) => self.quarantine(id, damage),
            Fault::Io(error) => {
                let path = self.locate(id).map(|(.., path)| path);
                tracing::warn!(?path, %error, "cannot read a cache file");
                self.tally.read_errors.add(1);
                self.catalogue().skip(id);
            }
            Fault::Mappings => {}
        }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("settings", &self.settings).finish_non_exhaustive()
    }
}
