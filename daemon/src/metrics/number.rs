//! A number that any thread may change.

use std::sync::atomic::{AtomicU64, Ordering};

/// A count or a size.
#[derive(Debug, Default)]
pub struct Number(pub(super) AtomicU64);

impl Number {
    /// It grows by `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// It shrinks by `n`, which was added before.
    pub fn sub(&self, n: u64) {
        self.0.fetch_sub(n, Ordering::Relaxed);
    }

    /// It is `n` from now on.
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    /// What it is.
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
