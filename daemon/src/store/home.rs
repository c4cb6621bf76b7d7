//! Whether the cache directory is still the one that was locked, and leave to change what is in it.
//!
//! The lock is on a file, and the work goes by path. When somebody moves or removes the directory,
//! what lies at its path afterwards is nobody's, or another daemon's. So whoever changes a file
//! needs a [`Permit`] for it, which is given only while the directory is there: nothing is
//! written, renamed, unlinked or collected until it is back. No other file of the store calls the
//! system for that.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use super::name::LOCK;
use super::shared::Shared;
use crate::sys::directory;
use crate::sys::lock::LockId;

/// The directory's lock: where it was, and what it is.
#[derive(Debug)]
pub(super) struct Home {
    dir: PathBuf,
    lock: LockId,
    lost: AtomicBool,
}

/// The directory that was locked is not at its path.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the cache directory was moved, removed or replaced")]
pub(super) struct Moved;

/// Leave to change one thing below the directory, used up by the change.
#[derive(Debug)]
pub(super) struct Permit(());

impl Home {
    pub(super) fn new(dir: PathBuf, lock: LockId) -> Self {
        Self { dir, lock, lost: AtomicBool::new(false) }
    }

    /// Whether it was gone when somebody looked last.
    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// Looks, and gives leave for one change if the directory is there.
    pub(super) fn permit(&self) -> Result<Permit, Moved> {
        if self.is_there() { Ok(Permit(())) } else { Err(Moved) }
    }

    /// Looks, and says when something has changed.
    fn is_there(&self) -> bool {
        let there = LockId::at(&self.dir.join(LOCK)).is_ok_and(|lock| lock == self.lock);
        let dir = self.dir.display();
        match (self.lost.swap(!there, Ordering::Relaxed), there) {
            (false, false) => tracing::error!(
                %dir,
                "the cache directory was moved, removed or replaced: nothing is written until it is \
                 back or the daemon is started again"
            ),
            (true, true) => tracing::warn!(%dir, "the cache directory is back"),
            _ => {}
        }
        there
    }
}

/// Each of these fails as its namesake of the system does.
impl Permit {
    /// Creates a temporary file. Nobody has ever mapped one, so one that was left behind may be
    /// overwritten.
    pub(super) fn create(self, path: &Path) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(path)
    }

    pub(super) fn make_dir(self, dir: &Path) -> io::Result<()> {
        directory::make(dir)
    }

    pub(super) fn rename(self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    pub(super) fn set_modified(self, file: &File, time: SystemTime) -> io::Result<()> {
        file.set_modified(time)
    }

    /// Succeeds, too, when there is no such file.
    pub(super) fn unlink(self, path: &Path) -> io::Result<()> {
        match fs::remove_file(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }

    pub(super) fn remove_dir(self, dir: &Path) -> io::Result<()> {
        fs::remove_dir(dir)
    }

    pub(super) fn remove_tree(self, dir: &Path) -> io::Result<()> {
        fs::remove_dir_all(dir)
    }
}

impl Shared {
    /// Looks whether anything may be changed.
    pub(super) fn expect_home(&self) -> Result<(), Moved> {
        self.home.permit().map(drop)
    }

    /// Unlinks a file that is to go. `false`, and counted, when it may still be there.
    pub(super) fn unlink(&self, path: &Path) -> bool {
        match self.home.permit().map(|permit| permit.unlink(path)) {
            Ok(Ok(())) => return true,
            Ok(Err(error)) => {
                tracing::warn!(path = %path.display(), %error, "cannot unlink a cache file");
            }
            // It was said when it was noticed.
            Err(Moved) => {}
        }
        self.tally.kept.add(1);
        false
    }

    /// Unlinks a file that nothing depends on, if that is possible now: the next start or
    /// collection tries again.
    pub(super) fn sweep(&self, path: &Path) {
        let _ = self.home.permit().map(|permit| permit.unlink(path));
    }

    /// Removes a family's directory if nothing is in it, known to the catalogue or not.
    pub(super) fn sweep_dir(&self, dir: &Path) {
        let _ = self.home.permit().map(|permit| permit.remove_dir(dir));
    }
}
