//! How often values of each size occurred.
//!
//! Buckets are fixed and the same for everyone: the first four are one unit wide, and from there
//! each doubling has four of equal width, so that a bound is off by a quarter at most, over seven
//! decades.
//!
//! ```text
//!  units  0  1  2  3  4  5  6  7  8    10    12    14    16        20  ..  2^22
//!         ├──┼──┼──┼──┼──┼──┼──┼──┼─────┼─────┼─────┼─────┼─────────┼──     ┤ the rest
//!  bucket  0  1  2  3  4  5  6  7    8     9    10    11      12
//! ```

use std::iter;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Buckets with a bound, four for each doubling; one more has the rest.
const BOUNDED: usize = 84;

/// What values are measured in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Nanoseconds, in buckets of 25 µs at the least: up to 104 s.
    Nanoseconds,
    /// Things, one by one: up to 4 million.
    Things,
}

impl Unit {
    /// Values in a bucket that is one unit wide.
    fn width(self) -> u64 {
        match self {
            Self::Nanoseconds => 25_000,
            Self::Things => 1,
        }
    }

    /// What a value is on a page: seconds, or as many.
    pub fn scale(self) -> f64 {
        match self {
            Self::Nanoseconds => 1e-9,
            Self::Things => 1.0,
        }
    }
}

/// Values, counted by their size.
#[derive(Debug)]
pub struct Histogram {
    unit: Unit,
    buckets: [AtomicU64; BOUNDED + 1],
    sum: AtomicU64,
}

impl Histogram {
    /// One of values in `unit`.
    pub fn new(unit: Unit) -> Self {
        Self { unit, buckets: [const { AtomicU64::new(0) }; BOUNDED + 1], sum: AtomicU64::new(0) }
    }

    /// Counts a value.
    pub fn record(&self, value: u64) {
        self.buckets[bucket(value.div_ceil(self.unit.width()))].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(value, Ordering::Relaxed);
    }

    /// Counts a time.
    pub fn record_time(&self, time: Duration) {
        self.record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// What was counted so far.
    pub fn counts(&self) -> Counts {
        let buckets = self.buckets.each_ref().map(|bucket| bucket.load(Ordering::Relaxed));
        Counts { unit: self.unit, buckets, sum: self.sum.load(Ordering::Relaxed) }
    }
}

/// What a histogram had counted at one moment, or between two.
#[derive(Debug, Clone)]
pub struct Counts {
    /// What values are measured in.
    pub unit: Unit,
    buckets: [u64; BOUNDED + 1],
    /// The sum of all values.
    pub sum: u64,
}

impl Counts {
    /// Nothing.
    pub fn none(unit: Unit) -> Self {
        Self { unit, buckets: [0; BOUNDED + 1], sum: 0 }
    }

    /// How many values.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Their mean; `None` of nothing.
    pub fn mean(&self) -> Option<f64> {
        let count = self.count();
        (count > 0).then(|| self.sum as f64 / count as f64)
    }

    /// What was counted after `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut buckets = self.buckets;
        for (now, then) in buckets.iter_mut().zip(&earlier.buckets) {
            *now = now.saturating_sub(*then);
        }
        Self { unit: self.unit, buckets, sum: self.sum.saturating_sub(earlier.sum) }
    }

    /// The value below which a part `q` of all values lies, as if they lay evenly in their
    /// buckets; `None` of nothing. What lies beyond the last bound counts as that bound.
    pub fn quantile(&self, q: f64) -> Option<f64> {
        let rank = q * self.count() as f64;
        let mut below = 0;
        for (at, n) in self.buckets.iter().enumerate().filter(|(_, n)| **n > 0) {
            if (below + n) as f64 >= rank {
                let (low, high) = (lower(at), bound(at.min(BOUNDED - 1)));
                let part = (rank - below as f64) / *n as f64;
                let units = low as f64 + (high.saturating_sub(low)) as f64 * part;
                return Some(units * self.unit.width() as f64);
            }
            below += n;
        }
        None
    }

    /// Bounds with how many values are no larger: one for each doubling, all that a page shows.
    pub fn cumulative(&self) -> impl Iterator<Item = (u64, u64)> {
        let doublings = iter::once(0).chain(iter::once(1)).chain((3..BOUNDED).step_by(4));
        let below = |at: usize| self.buckets[..=at].iter().sum();
        doublings.map(move |at| (bound(at) * self.unit.width(), below(at)))
    }
}

/// The bucket of a value of so many units, the last one begun.
fn bucket(units: u64) -> usize {
    let below = units.saturating_sub(1);
    if below < 4 {
        return below as usize;
    }
    let doubling = below.ilog2() as usize;
    let quarter = (below >> (doubling - 2)) & 3;
    ((doubling - 1) * 4 + quarter as usize).min(BOUNDED)
}

/// The largest number of units in a bucket.
fn bound(bucket: usize) -> u64 {
    let (doubling, quarter) = (bucket / 4, bucket as u64 % 4);
    match doubling {
        0 => quarter + 1,
        _ => (quarter + 5) << (doubling - 1),
    }
}

/// The number of units from which a bucket begins.
fn lower(bucket: usize) -> u64 {
    bucket.checked_sub(1).map_or(0, bound)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn things(values: impl IntoIterator<Item = u64>) -> Counts {
        let histogram = Histogram::new(Unit::Things);
        values.into_iter().for_each(|value| histogram.record(value));
        histogram.counts()
    }

    #[test]
    fn every_value_is_in_the_bucket_whose_bounds_enclose_it() {
        for units in (1..5000).chain([1 << 20, (1 << 22) - 1, 1 << 22]) {
            let at = bucket(units);
            assert!(lower(at) < units && units <= bound(at), "{units} in {at}");
        }
        assert_eq!(bound(BOUNDED - 1), 1 << 22);
        assert_eq!([bucket((1 << 22) + 1), bucket(u64::MAX)], [BOUNDED; 2]);
        assert_eq!(bucket(0), 0);
    }

    #[test]
    fn a_bound_is_at_most_a_quarter_above_the_one_before() {
        for at in 4..BOUNDED {
            assert!(bound(at) * 4 <= bound(at - 1) * 5, "{at}");
        }
    }

    #[test]
    fn quantiles_lie_where_the_values_do() {
        let counts = things(1..=1000);
        for (q, near) in [(0.5, 500.0), (0.99, 990.0), (0.01, 10.0)] {
            let told = counts.quantile(q).unwrap();
            assert!((told - near).abs() <= near * 0.13, "{q}: {told}");
        }
        assert_eq!(things([]).quantile(0.5), None);
        assert_eq!(things([u64::MAX]).quantile(0.5), Some(f64::from(1 << 22)));
    }

    #[test]
    fn a_page_counts_upwards_to_all_there_are() {
        let counts = things([1, 2, 2, 4, 9, 1 << 40]);
        let shown: Vec<_> = counts.cumulative().collect();
        assert_eq!(shown[..5], [(1, 1), (2, 3), (4, 4), (8, 4), (16, 5)]);
        assert!(shown.is_sorted(), "{shown:?}");
        assert_eq!((shown[shown.len() - 1], counts.count()), ((1 << 22, 5), 6));
    }

    #[test]
    fn what_came_since_is_what_is_new() {
        let histogram = Histogram::new(Unit::Nanoseconds);
        histogram.record_time(Duration::from_millis(1));
        let before = histogram.counts();
        histogram.record_time(Duration::from_millis(3));
        let new = histogram.counts().since(&before);
        assert_eq!((new.count(), new.sum), (1, 3_000_000));
        assert_eq!(new.mean(), Some(3e6));
    }
}
