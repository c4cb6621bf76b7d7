//! Who runs in the next step, and how many rows each.
//!
//! The scheduler knows only each sequence's debt; prefill and decode are names in reports.
//! Decodes first, then prefill slices in the order of their turns. A slice is as long as a step may
//! take, by what passes cost lately ([`Pace`]): cancels and deadlines are noticed between steps, and
//! a long prompt must not hold up everyone else's text.

use std::time::Duration;

use super::pace::{Pace, Work};

/// How long a step may take that only computes prompts; or twice what it takes whatever is in it.
const ALONE: Duration = Duration::from_millis(250);
/// How long prompts may hold up live decodes, all but a few times; or as long as these take, so that
/// on a slow machine prompts get half of the time.
const BESIDE_DECODES: Duration = Duration::from_millis(50);
/// Most rows of prompts in a step.
const ROWS: usize = 512;
/// Rows of prompts in a step before anything is known.
const FIRST_ROWS: usize = 32;
/// Rows of a slice whose logits are all wanted: a row of logits is a whole vocabulary.
pub(super) const ROWS_WITH_LOGITS: usize = 64;

/// What the scheduler knows of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Runnable {
    /// Rows that it has.
    pub(super) start: usize,
    /// Rows it has to compute; 1 for a decode, 0 when it cannot run.
    pub(super) debt: usize,
    /// Whether it is generating.
    pub(super) decodes: bool,
    /// Whether it wants logits for each of its rows.
    pub(super) all_logits: bool,
}

impl Runnable {
    /// What its next `rows` rows are to compute.
    fn work(&self, rows: usize) -> Work {
        let logits = if self.all_logits || self.decodes { rows } else { 0 };
        Work::slice(self.start, rows, logits)
    }

    /// Most rows of a slice, in one of `most`.
    fn limit(&self, most: usize) -> usize {
        let logits = if self.all_logits { ROWS_WITH_LOGITS } else { most };
        self.debt.min(most).min(logits)
    }
}

/// What prompts may still have of a step.
struct Left {
    time: Duration,
    rows: usize,
}

/// Sets `rows` to the rows of each of `sequences` in the next step. `turns` are the places of those
/// that prefill, the first one first; a place that comes again changes nothing. The first one gets a
/// row whatever that costs.
pub(super) fn plan(sequences: &[Runnable], turns: &[usize], pace: &Pace, rows: &mut Vec<usize>) {
    rows.clear();
    rows.extend(sequences.iter().map(|one| if one.decodes { one.debt } else { 0 }));
    let mut left = left_beside(sequences, rows, pace);
    let mut least = 1;
    for at in turns {
        if rows[*at] == 0 {
            rows[*at] = left.take(&sequences[*at], least, pace);
            least -= least.min(rows[*at]);
        }
    }
}

/// What decodes leave.
fn left_beside(sequences: &[Runnable], rows: &[usize], pace: &Pace) -> Left {
    let mut work = Work::PASS;
    for (sequence, rows) in sequences.iter().zip(rows).filter(|(_, rows)| **rows > 0) {
        work += sequence.work(*rows);
    }
    let Some(taken) = pace.time(work) else {
        return Left { time: Duration::MAX, rows: FIRST_ROWS };
    };
    let time = match rows.iter().any(|rows| *rows > 0) {
        true => BESIDE_DECODES.div_f64(pace.longest()).max(taken),
        false => ALONE.saturating_sub(taken).max(taken),
    };
    Left { time, rows: ROWS }
}

impl Left {
    /// Takes the longest slice of `sequence` that there is room for, `least` rows of it at least.
    fn take(&mut self, sequence: &Runnable, least: usize, pace: &Pace) -> usize {
        let most = sequence.limit(self.rows);
        let time = |rows| pace.time(sequence.work(rows)).unwrap_or_default();
        // The fewest rows that are too many.
        let (mut fit, mut over) = (least.min(most), most + 1);
        while over - fit > 1 {
            let middle = fit.midpoint(over);
            match time(middle) <= self.time {
                true => fit = middle,
                false => over = middle,
            }
        }
        self.rows -= fit;
        self.time = self.time.saturating_sub(time(fit));
        fit
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use proptest::prelude::*;

    use super::*;

    fn prefill(debt: usize) -> Runnable {
        Runnable { start: 0, debt, decodes: false, all_logits: false }
    }

    const DECODE: Runnable = Runnable { start: 0, debt: 1, decodes: true, all_logits: false };

    /// The rows when the turns are in order of arrival.
    fn plan(sequences: &[Runnable], pace: &Pace) -> Vec<usize> {
        let mut rows = Vec::new();
        let turns: Vec<_> = (0..sequences.len()).filter(|at| !sequences[*at].decodes).collect();
        super::plan(sequences, &turns, pace, &mut rows);
        rows
    }

    /// A machine that computes a row in so many microseconds, wherever it stands.
    fn pace(row: u32) -> Pace {
        Pace::of([0.0, row.into(), 0.0, 0.0, 0.0])
    }

    #[test]
    fn prefill_takes_what_the_budget_leaves_in_order_of_arrival() {
        let fast = pace(10);
        assert_eq!(plan(&[prefill(1000)], &fast), [512]);
        assert_eq!(plan(&[prefill(500), prefill(40), prefill(9)], &fast), [500, 12, 0]);
    }

    #[test]
    fn a_slice_lasts_a_quarter_of_a_second_or_a_twentieth_beside_a_decode() {
        assert_eq!(plan(&[prefill(1000)], &pace(1000)), [250]);
        assert_eq!(plan(&[prefill(1000), DECODE, DECODE], &pace(1000)), [50, 1, 1]);
    }

    #[test]
    fn a_row_costs_more_the_more_lies_before_it() {
        let pace = Pace::of([0.0, 1000.0, 0.0, 1.0, 0.0]);
        let deep = |start| Runnable { start, ..prefill(1000) };
        assert_eq!(plan(&[prefill(1000), DECODE], &pace), [48, 1]);
        assert_eq!(plan(&[deep(4000), DECODE], &pace), [9, 1]);
        assert_eq!(plan(&[deep(8000), DECODE], &pace), [5, 1]);
    }

    #[test]
    fn reading_a_context_is_paid_once_for_a_slice() {
        let pace = Pace::of([0.0, 1000.0, 5.0, 0.0, 0.0]);
        let deep = Runnable { start: 4000, ..prefill(1000) };
        assert_eq!(plan(&[deep, DECODE], &pace), [29, 1]);
    }

    #[test]
    fn decodes_that_take_longer_than_a_slice_give_prompts_half_of_the_time() {
        assert_eq!(plan(&[prefill(1000), DECODE, DECODE, DECODE], &pace(40_000)), [3, 1, 1, 1]);
    }

    #[test]
    fn the_first_in_turn_gets_a_row_whatever_it_costs_and_the_others_none() {
        let deep = Runnable { start: 100_000, ..prefill(1000) };
        let pace = Pace::of([0.0, 1000.0, 0.0, 10.0, 0.0]);
        assert_eq!(plan(&[deep, prefill(1000), DECODE], &pace), [1, 0, 1]);
    }

    #[test]
    fn before_anything_is_known_a_step_is_small() {
        let pace = Pace::default();
        assert_eq!(plan(&[prefill(1000), DECODE], &pace), [FIRST_ROWS, 1]);
    }

    #[test]
    fn a_decode_that_waits_for_its_reader_shortens_no_slice() {
        let waiting = Runnable { debt: 0, ..DECODE };
        assert_eq!(plan(&[prefill(1000), waiting], &pace(1000)), [250, 0]);
    }

    #[test]
    fn prompts_get_their_rows_in_the_order_of_their_turns() {
        let mut rows = vec![7; 9];
        let all = [prefill(500), prefill(40), DECODE, prefill(9)];
        super::plan(&all, &[3, 1, 3, 0], &pace(500), &mut rows);
        assert_eq!(rows, [51, 40, 1, 9]);
    }

    #[test]
    fn rows_with_logits_come_in_small_slices_and_cost_their_logits() {
        let scored = Runnable { all_logits: true, ..prefill(1000) };
        assert_eq!(plan(&[scored, prefill(1000)], &pace(10)), [64, 448]);
        let pace = Pace::of([0.0, 1000.0, 0.0, 0.0, 1000.0]);
        assert_eq!(plan(&[scored, DECODE], &pace), [25, 1]);
    }

    /// A machine, and what is known of it.
    struct Machine {
        truth: Pace,
        pace: Pace,
        /// By what part passes last longer, over and over again.
        noise: std::iter::Cycle<std::vec::IntoIter<f64>>,
    }

    impl Machine {
        fn run(&mut self, work: Work) {
            let noise = 1.0 + self.noise.next().unwrap_or_default();
            let took = self.truth.time(work).unwrap_or_default();
            self.pace.learn(work, took.mul_f64(noise), true);
        }

        fn decode(&mut self, decodes: &[Runnable]) {
            let mut work = Work::PASS;
            decodes.iter().for_each(|one| work += one.work(1));
            self.run(work);
        }

        /// Computes a part of a prompt beside `decodes`. Fails at a slice that lasts too long, or that
        /// a longer one would not; the first few are for learning.
        fn prefill(
            &mut self,
            part: Range<usize>,
            decodes: &[Runnable],
        ) -> Result<(), TestCaseError> {
            let mut start = part.start;
            for nth in 0.. {
                if start >= part.end {
                    break;
                }
                let prompt = Runnable { start, ..prefill(part.end - start) };
                let all: Vec<_> = [prompt].into_iter().chain(decodes.iter().copied()).collect();
                let rows = plan(&all, &self.pace)[0];
                if nth >= 5 {
                    self.expect_right(&prompt, rows, decodes)?;
                }
                let mut work = Work::PASS + prompt.work(rows);
                decodes.iter().for_each(|one| work += one.work(1));
                self.run(work);
                start += rows;
            }
            Ok(())
        }

        fn expect_right(
            &self,
            prompt: &Runnable,
            rows: usize,
            decodes: &[Runnable],
        ) -> Result<(), TestCaseError> {
            let Left { time: bound, .. } =
                left_beside(decodes, &vec![1; decodes.len()], &self.truth);
            let lasts = |rows| self.truth.time(prompt.work(rows)).unwrap_or_default();
            let short = rows < prompt.limit(ROWS) && lasts(rows + 1) < bound.mul_f64(0.75);
            let long = rows > 1 && lasts(rows) > bound.mul_f64(1.25);
            let what = (prompt.start, rows, lasts(rows), bound);
            prop_assert!(!short && !long, "start, rows, time, bound: {what:?}");
            Ok(())
        }
    }

    proptest! {
        #[test]
        fn slices_last_what_they_may_at_any_depth_and_also_when_it_jumps(
            row in 30.0..5_000.0,
            parts in (1.0..10.0, 0.0001..0.002, 0.00015..0.001, 0.1..1.5),
            noise in prop::collection::vec(-0.1..0.1, 101),
            live in prop::collection::vec(0..8_000_usize, 1..5),
        ) {
            let (pass, context, pair, logit) = parts;
            let truth = Pace::of([pass * row, row, context * row, pair * row, logit * row]);
            let noise = noise.into_iter().cycle();
            let mut machine = Machine { truth, pace: Pace::default(), noise };
            let live: Vec<_> = live.into_iter().map(|start| Runnable { start, ..DECODE }).collect();
            machine.prefill(0..1_000, &[])?;
            (0..100).for_each(|_| machine.decode(&live));
            machine.prefill(7_000..7_500, &live)?;
            machine.prefill(0..3_000, &live)?;
            machine.prefill(0..1_000, &[])?;
            machine.prefill(7_000..7_500, &live)?;
            (0..100).for_each(|_| machine.decode(&live));
            machine.prefill(3_000..3_500, &live)?;
            machine.prefill(7_000..7_500, &[])?;
        }
    }
}
