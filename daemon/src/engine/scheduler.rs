//! Who runs in the next step, and how many rows each.
//!
//! The scheduler knows only each sequence's debt; prefill and decode are names in reports.
//! Decodes first, then prefill slices in order of arrival. A slice is as long as a step may take,
//! by what rows cost lately: cancels and deadlines are noticed between steps, and a long prompt
//! must not hold up everyone else's text.

use std::time::Duration;

/// How long a step may take that only computes prompts.
const ALONE: Duration = Duration::from_millis(250);
/// How long prompts may hold up live decodes.
const BESIDE_DECODES: Duration = Duration::from_millis(50);
/// Most rows of prompts in a step.
const ROWS: usize = 512;
/// Fewest: below this, rows share too little of the work of reading the weights.
const FEWEST_ROWS: usize = 16;
/// Rows of prompts in a step before anything is known.
const FIRST_ROWS: usize = 32;
/// Rows of a slice whose logits are all wanted: a row of logits is a whole vocabulary.
pub(super) const ROWS_WITH_LOGITS: usize = 64;

/// What the scheduler knows of a runnable sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Runnable {
    /// Rows it has to compute; 1 for a decode.
    pub(super) debt: usize,
    /// Whether it is generating.
    pub(super) decodes: bool,
    /// Whether it wants logits for each of its rows.
    pub(super) all_logits: bool,
}

/// What a row of a prompt costs, learned from the steps before.
#[derive(Debug, Default)]
pub(super) struct Pace {
    row: Option<Duration>,
}

impl Pace {
    /// A step of so many rows took so long. One of few rows says little of what many cost.
    pub(super) fn learn(&mut self, rows: usize, took: Duration) {
        if let (FEWEST_ROWS.., Ok(count)) = (rows, u32::try_from(rows)) {
            let row = took / count;
            self.row = Some(self.row.map_or(row, |known| (known + row) / 2));
        }
    }

    /// Rows that fit into `time`.
    fn rows(&self, time: Duration) -> usize {
        let Some(row) = self.row else { return FIRST_ROWS };
        let rows = time.as_nanos() / row.as_nanos().max(1);
        usize::try_from(rows).unwrap_or(ROWS).clamp(FEWEST_ROWS, ROWS)
    }
}

/// Rows for each of `runnable` (in order of arrival) in the next step.
pub(super) fn plan(runnable: &[Runnable], pace: &Pace) -> Vec<usize> {
    let decodes = runnable.iter().any(|sequence| sequence.decodes);
    let mut left = pace.rows(if decodes { BESIDE_DECODES } else { ALONE });
    let rows = |sequence: &Runnable| {
        if sequence.decodes {
            return sequence.debt;
        }
        let most = if sequence.all_logits { ROWS_WITH_LOGITS } else { left };
        let rows = sequence.debt.min(left).min(most);
        left -= rows;
        rows
    };
    runnable.iter().map(rows).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefill(debt: usize) -> Runnable {
        Runnable { debt, decodes: false, all_logits: false }
    }

    const DECODE: Runnable = Runnable { debt: 1, decodes: true, all_logits: false };

    /// A machine that computes a row in so many microseconds.
    fn pace(row: u64) -> Pace {
        Pace { row: Some(Duration::from_micros(row)) }
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
        assert_eq!(plan(&[prefill(1000), DECODE], &pace(1_000_000)), [FEWEST_ROWS, 1]);
    }

    #[test]
    fn the_pace_is_learned_from_steps_of_many_rows() {
        let mut pace = Pace::default();
        assert_eq!(plan(&[prefill(1000)], &pace), [FIRST_ROWS]);
        pace.learn(1, Duration::from_secs(9));
        assert_eq!(plan(&[prefill(1000)], &pace), [FIRST_ROWS]);
        pace.learn(100, Duration::from_millis(100));
        assert_eq!(plan(&[prefill(1000)], &pace), [250]);
        pace.learn(100, Duration::from_millis(300));
        assert_eq!(plan(&[prefill(1000)], &pace), [125]);
    }

    #[test]
    fn rows_with_logits_come_in_small_slices() {
        let scored = Runnable { all_logits: true, ..prefill(1000) };
        assert_eq!(plan(&[scored, prefill(1000)], &pace(10)), [64, 448]);
    }
}
