//! Pins: leases that keep prompts from eviction for a time.
//!
//! A lease names the end of a chain, and holds the end's record and every block before it. Leases
//! that share blocks know nothing of each other: a block is held for as long as one of them lasts.
//! Each tier has a [`Book`] of its own, holds what it has of a leased chain, and lets pins hold
//! half of each of its budgets at most ([`Share`]), so that there is always something to evict.
//!
//! Times are milliseconds since the epoch, for leases survive the process.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::key::{BlockKey, End, Fingerprint, RecordKey};

/// Most leases of a tier.
pub const MOST: usize = 1024;

/// The longest lease. Whoever wants more renews it.
pub const LONGEST: Duration = Duration::from_hours(30 * 24);

/// What is not evicted before a moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The chain's family.
    pub fingerprint: Fingerprint,
    /// Where the chain ends.
    pub end: End,
    /// When the lease does.
    pub until: u64,
}

impl Lease {
    /// A lease that begins now.
    pub fn new(fingerprint: Fingerprint, end: End, lasts: Duration) -> Self {
        Self { fingerprint, end, until: now().saturating_add(milliseconds(lasts)) }
    }

    /// The name of the prompt.
    pub fn key(&self) -> RecordKey {
        self.end.key(&self.fingerprint)
    }

    /// Whether removing `end` takes this chain along: it is the same, or it goes on from there
    /// inside of the same block.
    fn continues(&self, end: &End) -> bool {
        self.end.last == end.last && self.end.tail.starts_with(&end.tail)
    }
}

/// A lease that was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pinned {
    /// Bytes that the tier has of the prompt.
    pub bytes: u64,
    /// When the lease ends: an earlier one may last longer.
    pub until: u64,
    /// Whether the prompt was not pinned before.
    pub fresh: bool,
}

/// Why a lease was not given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("pins hold {held} {what} of the {limit} that they may, and this one needs {needed} more")]
pub struct NoRoom {
    /// What there is not enough of.
    pub what: &'static str,
    /// How much of it the lease would hold that no other does.
    pub needed: u64,
    /// How much of it other leases hold.
    pub held: u64,
    /// How much of it leases may hold.
    pub limit: u64,
}

impl NoRoom {
    /// Refuses what is too much.
    fn unless_fits(what: &'static str, needed: u64, held: u64, limit: u64) -> Result<(), Self> {
        let fits = held.saturating_add(needed) <= limit;
        if fits { Ok(()) } else { Err(Self { what, needed, held, limit }) }
    }
}

/// The part of a budget that pins may hold, which is one half, and what they hold of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// What there is a budget of.
    pub what: &'static str,
    /// How much of it leases hold.
    pub held: u64,
    /// All that there may be.
    pub budget: u64,
}

impl Share {
    /// Whether pins hold no more than they may: what is pinned may grow when it is computed again.
    pub fn is_kept(&self) -> bool {
        self.held <= self.limit()
    }

    /// Refuses a lease that would hold so much more.
    ///
    /// # Errors
    /// When that is too much.
    pub fn expect_room(&self, needed: u64) -> Result<(), NoRoom> {
        NoRoom::unless_fits(self.what, needed, self.held, self.limit())
    }

    fn limit(&self) -> u64 {
        self.budget / 2
    }
}

/// Leases by the prompts that they are on.
#[derive(Debug, Default)]
pub struct Book(BTreeMap<RecordKey, Lease>);

impl Book {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All leases.
    pub fn iter(&self) -> impl Iterator<Item = &Lease> {
        self.0.values()
    }

    /// The lease on a prompt.
    pub fn find(&self, key: &RecordKey) -> Option<&Lease> {
        self.0.get(key)
    }

    /// When the lease on a prompt ends, if it has not.
    pub fn until(&self, key: &RecordKey) -> Option<u64> {
        self.find(key).map(|lease| lease.until).filter(|until| *until > now())
    }

    /// Refuses one more than there may be.
    ///
    /// # Errors
    /// When there are [`MOST`].
    pub fn expect_room(&self) -> Result<(), NoRoom> {
        NoRoom::unless_fits("prompts", 1, self.0.len() as u64, MOST as u64)
    }

    /// Enters a lease, or extends the one that there is. When it ends.
    pub fn enter(&mut self, lease: Lease) -> u64 {
        let known = self.0.entry(lease.key()).or_insert_with(|| lease.clone());
        known.until = known.until.max(lease.until);
        known.until
    }

    /// Takes a lease out.
    pub fn remove(&mut self, key: &RecordKey) -> Option<Lease> {
        self.0.remove(key)
    }

    /// The leases that have ended.
    pub fn ended(&self, now: u64) -> Vec<RecordKey> {
        let ended = self.0.iter().filter(|(_, lease)| lease.until <= now);
        ended.map(|(key, _)| *key).collect()
    }

    /// When the first lease ends.
    pub fn first_end(&self) -> Option<u64> {
        self.iter().map(|lease| lease.until).min()
    }

    /// Whether the chain of a lease ends with the block `last` and stays when `removed` is.
    pub fn outlasts(&self, last: &BlockKey, removed: &End) -> bool {
        self.iter().any(|lease| lease.end.last == *last && !lease.continues(removed))
    }

    /// The leases on what goes when `removed` and the blocks behind it do.
    pub fn doomed(&self, removed: &End, blocks: &HashSet<BlockKey>) -> Vec<RecordKey> {
        let goes = |lease: &Lease| lease.continues(removed) || blocks.contains(&lease.end.last);
        self.0.iter().filter(|(_, lease)| goes(lease)).map(|(key, _)| *key).collect()
    }

    /// The blocks at which the chains of leases end.
    pub fn lasts(&self) -> HashSet<BlockKey> {
        self.iter().map(|lease| lease.end.last).collect()
    }
}

/// Now.
pub fn now() -> u64 {
    milliseconds(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// A duration as leases count.
pub fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::kv::key::Fields;

    fn lease(tokens: &[u32], until: u64) -> Lease {
        let fingerprint = Fields::default().fingerprint();
        Lease { fingerprint, end: End::of(&fingerprint, tokens), until }
    }

    #[test]
    fn renewing_extends_a_lease_and_never_shortens_it() {
        let mut book = Book::default();
        assert_eq!(book.enter(lease(&[1, 2], 50)), 50);
        assert_eq!(book.enter(lease(&[1, 2], 70)), 70);
        assert_eq!(book.enter(lease(&[1, 2], 60)), 70);
        assert_eq!((book.iter().count(), book.first_end()), (1, Some(70)));
        assert_eq!((book.ended(69).len(), book.ended(70).len()), (0, 1));
    }

    #[test]
    fn a_removed_end_takes_the_leases_behind_it_and_no_others() {
        let tokens: Vec<u32> = (0..100).collect();
        let mut book = Book::default();
        for length in [32, 64, 66, 70, 100] {
            book.enter(lease(&tokens[..length], 1));
        }
        let removed = lease(&tokens[..66], 1).end;
        let behind = HashSet::from([lease(&tokens[..96], 1).end.last]);
        assert_eq!(book.doomed(&removed, &behind).len(), 3);
        assert!(book.outlasts(&removed.last, &removed), "the one of 64 tokens stays");
        book.remove(&lease(&tokens[..64], 1).key()).unwrap();
        assert!(!book.outlasts(&removed.last, &removed));
    }

    #[test]
    fn what_does_not_fit_into_half_of_a_budget_is_refused_with_the_numbers() {
        let share = Share { what: "bytes on disk", held: 6, budget: 20 };
        assert!(share.is_kept() && share.expect_room(4).is_ok());
        let refused = share.expect_room(5).unwrap_err().to_string();
        let words = "pins hold 6 bytes on disk of the 10 that they may, and this one needs 5 more";
        assert_eq!(refused, words);
        assert!(!Share { held: 11, ..share }.is_kept());
        assert!(share.expect_room(u64::MAX).is_err());
    }
}
