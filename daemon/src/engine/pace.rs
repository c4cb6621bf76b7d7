//! What a pass over a batch costs, learned from the passes before it.
//!
//! A pass reads the weights once and multiplies each row with them; it reads the keys and values of
//! each sequence once, and attends to those before each row; it computes the logits of some rows:
//!
//! ```text
//!   time = a + b rows + c contexts + d pairs + e logits
//! ```
//!
//! So a row costs more the more lies before it, and more where it is alone. No pass tells the five
//! prices apart, and all of them drift: a Kalman filter keeps them. What the passes of late say
//! nothing about stays as it was, so that a slice of another sequence, deep in its prompt, is planned
//! by what was learned at such a depth before.
//!
//! Passes stray from that, on a busy machine by more than on a quiet one. How far all but a few of
//! those do that compute prompts beside decodes is learned, too.

use std::ops::{Add, AddAssign};
use std::time::Duration;

/// Kinds of work.
const KINDS: usize = 5;

/// What each kind costs beside the others, before anything is known of this model and machine.
const GUESS: [f64; KINDS] = [4.0, 1.0, 0.0006, 0.0006, 0.3];
/// How far times stray from what they should be, as a part of that.
const NOISE: f64 = 0.15;
/// How far all prices drift together from one pass to the next, as a part of each: others want the
/// processor, too.
const DRIFT: f64 = 0.03;
/// How far each price drifts by itself, as a part of itself or of the first guess: what drifts in parts
/// of nothing would stay nothing.
const OWN_DRIFT: f64 = 0.005;
/// The least that a kind costs, as a part of the first guess.
const LEAST: f64 = 0.01;
/// How many passes may last longer than the longest.
const FEW: f64 = 0.01;
/// How far one that does moves the longest.
const STEP: f64 = 0.05;
/// Passes whose prices are still a guess, so that nothing strays from them.
const FIRST: u64 = 20;
/// The longest is no longer than this, as a part of what is expected.
const LONGEST: f64 = 2.0;
/// The most that one pass may surprise, as a part of what was expected: it may have been held up.
const SURPRISE: f64 = 0.5;

/// How much is to be done of each kind: passes, rows, contexts, pairs of a row and a token before
/// it, logits.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Work([f64; KINDS]);

impl Work {
    /// A pass, whatever is in it.
    pub(super) const PASS: Self = Self([1.0, 0.0, 0.0, 0.0, 0.0]);

    /// `rows` rows of a sequence behind its first `start`, and the logits of `logits` of them.
    pub(super) fn slice(start: usize, rows: usize, logits: usize) -> Self {
        let [start, rows, logits] = [start, rows, logits].map(|count| count as f64);
        let context = if rows > 0.0 { start + rows } else { 0.0 };
        let pairs = rows * (start + (rows + 1.0) / 2.0);
        Self([0.0, rows, context, pairs, logits])
    }
}

impl Add for Work {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(std::array::from_fn(|kind| self.0[kind] + other.0[kind]))
    }
}

impl AddAssign for Work {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

/// What passes cost, once there was one.
#[derive(Debug, Default)]
pub(super) struct Pace(Option<Prices>);

impl Pace {
    /// A pass took so long, which computed prompts `beside` decodes or did not.
    pub(super) fn learn(&mut self, work: Work, took: Duration, beside: bool) {
        let took = took.max(Duration::from_nanos(1)).as_secs_f64();
        match &mut self.0 {
            Some(prices) => prices.learn(work, took, beside),
            None => self.0 = Some(Prices::guess(work, took)),
        }
    }

    /// What all passes beside decodes but a few take at most, as a part of what is expected.
    pub(super) fn longest(&self) -> f64 {
        self.0.as_ref().map_or(1.0, |prices| prices.longest)
    }

    /// How long something takes; `None` when there was no pass yet.
    pub(super) fn time(&self, work: Work) -> Option<Duration> {
        let time = dot(&self.0.as_ref()?.each, &work.0);
        Some(Duration::try_from_secs_f64(time).unwrap_or(Duration::MAX))
    }
}

#[derive(Debug)]
struct Prices {
    /// Seconds of each kind.
    each: [f64; KINDS],
    /// What they were thought to be at first.
    guess: [f64; KINDS],
    /// Of their errors.
    covariance: [[f64; KINDS]; KINDS],
    /// What all passes beside decodes but a few take at most, as a part of what is expected.
    longest: f64,
    passes: u64,
}

impl Prices {
    /// What fits a first pass.
    fn guess(Work(work): Work, took: f64) -> Self {
        let scale = took / dot(&GUESS, &work);
        let each = GUESS.map(|price| price * scale);
        let mut covariance = [[0.0; KINDS]; KINDS];
        (0..KINDS).for_each(|kind| covariance[kind][kind] = each[kind] * each[kind]);
        Self { each, guess: each, covariance, longest: 1.0, passes: 0 }
    }

    fn learn(&mut self, Work(work): Work, took: f64, beside: bool) {
        self.drift();
        let expected = dot(&self.each, &work);
        self.passes += 1;
        if beside && self.passes > FIRST {
            self.stray(took / expected);
        }
        let most = SURPRISE * expected;
        let surprise = (took - expected).clamp(-most, most);
        let blame = self.covariance.map(|row| dot(&row, &work));
        let noise = NOISE * expected;
        let variance = dot(&blame, &work) + noise * noise;
        for (kind, price) in self.each.iter_mut().enumerate() {
            let half = *price / 2.0;
            *price = (*price + blame[kind] / variance * surprise)
                .max(half)
                .max(LEAST * self.guess[kind]);
            for (other, covariance) in self.covariance[kind].iter_mut().enumerate() {
                *covariance -= blame[kind] * blame[other] / variance;
            }
        }
    }

    /// Up for each of the few that take longer, down for each of the others: it rests where they are
    /// as many as they should be.
    fn stray(&mut self, part: f64) {
        let up = if part > self.longest { 1.0 } else { 0.0 };
        self.longest = (self.longest + STEP * (up - FEW)).clamp(1.0, LONGEST);
    }

    fn drift(&mut self) {
        for (kind, row) in self.covariance.iter_mut().enumerate() {
            for (other, covariance) in row.iter_mut().enumerate() {
                *covariance += DRIFT * DRIFT * self.each[kind] * self.each[other];
            }
            row[kind] += (OWN_DRIFT * self.each[kind].max(self.guess[kind])).powi(2);
        }
        (0..KINDS).for_each(|kind| self.bound(kind));
    }

    /// Nothing is less sure of a price than the first guess, however long no pass has shown it.
    fn bound(&mut self, kind: usize) {
        let price = self.each[kind].max(self.guess[kind]);
        let most = price / self.covariance[kind][kind].sqrt();
        if most < 1.0 {
            self.covariance[kind].iter_mut().for_each(|covariance| *covariance *= most);
            self.covariance.iter_mut().for_each(|row| row[kind] *= most);
        }
    }
}

fn dot(one: &[f64; KINDS], other: &[f64; KINDS]) -> f64 {
    one.iter().zip(other).map(|(one, other)| one * other).sum()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    impl Pace {
        /// Of a machine whose passes cost so many microseconds of each kind.
        pub(in super::super) fn of(each: [f64; KINDS]) -> Self {
            let each = each.map(|price| price / 1e6);
            let covariance = [[0.0; KINDS]; KINDS];
            Self(Some(Prices { each, guess: [0.0; KINDS], covariance, longest: 1.0, passes: 0 }))
        }
    }

    /// What a pace that was told the time of each of `passes`, in turn, expects of `work`.
    fn expected(passes: &[(Work, u64)], work: Work) -> u64 {
        let mut pace = Pace::default();
        for (work, micros) in passes {
            pace.learn(*work, Duration::from_micros(*micros), true);
        }
        pace.time(work).unwrap().as_micros() as u64
    }

    fn rows(count: usize) -> Work {
        Work::PASS + Work::slice(0, count, 0)
    }

    #[test]
    fn nothing_is_expected_before_the_first_pass_and_that_one_is_expected_again() {
        assert_eq!(Pace::default().time(rows(1)), None);
        assert_eq!(expected(&[(rows(32), 40_000)], rows(32)), 40_000);
        let twice = expected(&[(rows(32), 40_000)], rows(64));
        assert!((70_000..80_000).contains(&twice), "the weights are read once: {twice}");
    }

    #[test]
    fn a_pass_that_was_held_up_for_ten_times_its_time_counts_for_half_of_that_at_most() {
        let mut passes = vec![(rows(100), 100_000); 20];
        passes.push((rows(100), 1_000_000));
        let after = expected(&passes, rows(100));
        assert!((100_000..150_000).contains(&after), "{after}");
        passes.extend([(rows(100), 100_000); 10]);
        let later = expected(&passes, rows(100));
        assert!((95_000..115_000).contains(&later), "{later}");
    }

    #[test]
    fn a_machine_that_is_slower_from_now_on_is_known_as_that_after_a_few_passes() {
        let mut passes = vec![(rows(100), 100_000); 20];
        passes.extend([(rows(100), 200_000); 10]);
        let few = expected(&passes, rows(20));
        let (before, after) = (expected(&passes[..20], rows(20)), few);
        assert!(after > before * 17 / 10, "what was not seen slowed down, too: {before}, {after}");
    }

    #[test]
    fn what_costs_nothing_is_never_thought_to_give_time_back() {
        let free = Work::slice(5_000, 1, 1);
        let passes = [(rows(10), 10_000), (rows(10) + free, 10_000)].repeat(2_000);
        let mut pace = Pace::default();
        for (work, micros) in passes {
            pace.learn(work, Duration::from_micros(micros), true);
            assert!(pace.time(free).is_some_and(|time| time < Duration::from_secs(1)));
        }
        assert!(pace.time(rows(10)).unwrap() > Duration::from_millis(8));
    }

    #[test]
    fn what_cost_nothing_for_long_is_known_again_when_it_does() {
        let deep = rows(10) + Work::slice(5_000, 1, 1);
        let mut passes = [(rows(10), 10_000), (deep, 10_000)].repeat(2_000);
        passes.extend([(rows(10), 10_000), (deep, 20_000)].repeat(400));
        let after = expected(&passes, deep);
        assert!((18_000..22_000).contains(&after), "{after}");
    }

    #[test]
    fn a_price_that_no_pass_has_shown_for_long_is_not_thrown_away_for_one_that_was_held_up() {
        let deep = rows(10) + Work::slice(5_000, 1, 1);
        let mut passes = [(rows(10), 10_000), (deep, 20_000)].repeat(20);
        passes.extend(vec![(rows(10), 10_000); 200_000]);
        passes.push((deep, 200_000));
        let after = expected(&passes, deep);
        assert!((20_000..30_100).contains(&after), "{after}");
    }

    #[test]
    fn the_longest_is_what_all_but_one_in_a_hundred_take_at_most() {
        let mut pace = Pace::default();
        let mut passes = |count: u64, every: u64, late: u64| {
            for nth in 0..count {
                let micros = if nth % every == 0 { late } else { 100_000 };
                pace.learn(rows(100), Duration::from_micros(micros), true);
            }
            pace.longest()
        };
        let even = passes(2_000, 200, 300_000);
        assert!(even < 1.1, "one in two hundred: {even}");
        let uneven = passes(2_000, 20, 160_000);
        assert!((1.5..1.7).contains(&uneven), "one in twenty: {uneven}");
        let torn = passes(2_000, 20, 400_000);
        assert!(torn > 1.9 && torn <= LONGEST, "{torn}");
        assert!(passes(4_000, 4_001, 100_000) < 1.1, "it is quiet again");
    }
}
