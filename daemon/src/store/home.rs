//! Whether the cache directory is still the one that was locked.
//!
//! The lock is on a file, and the work goes by path. When somebody moves or removes the directory,
//! what lies at its path afterwards is nobody's, or another daemon's. So the writer looks before
//! it writes, and writes, evicts and collects nothing until its own directory is back.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use super::name::LOCK;
use super::publish::Unwritten;
use super::shared::Shared;
use crate::sys::lock::LockId;

/// The directory's lock: where it was, and what it is.
#[derive(Debug)]
pub(super) struct Home {
    dir: PathBuf,
    lock: LockId,
    lost: AtomicBool,
}

impl Home {
    pub(super) fn new(dir: PathBuf, lock: LockId) -> Self {
        Self { dir, lock, lost: AtomicBool::new(false) }
    }

    /// Whether it was gone when somebody looked last.
    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
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

impl Shared {
    /// Called by the writer.
    pub(super) fn expect_home(&self) -> Result<(), Unwritten> {
        if self.home.is_there() { Ok(()) } else { Err(Unwritten::Moved) }
    }
}
