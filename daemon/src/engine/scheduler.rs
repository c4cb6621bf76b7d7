//! Who runs in the next step, and how many rows each.
//!
//! The scheduler knows only each sequence's debt; prefill and decode are names in reports.
//! Decodes first, then prefill slices in the order of their turns. A slice is as long as a step may take,
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

/// What the scheduler knows of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Runnable {
    /// Rows it has to compute; 1 for a decode, 0 when it cannot run.
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

/// Sets `rows` to the rows of each of `sequences` in the next step. `turns` are the places of those
/// that prefill, the first one first; a place that comes again changes nothing.
pub(super) fn plan(sequences: &[Runnable], turns: &[usize], pace: &Pace, rows: &mut Vec<usize>) {
    rows.clear();
    rows.extend(sequences.iter().map(|one| if one.decodes { one.debt } else { 0 }));
    let decodes = rows.iter().any(|rows| *rows > 0);
    let mut left = pace.rows(if decodes { BESIDE_DECODES } else { ALONE });
    for at in turns {
        let sequence = &sequences[*at];
        if rows[*at] == 0 {
            let most = if sequence.all_logits { ROWS_WITH_LOGITS } else { left };
            rows[*at] = sequence.debt.min(left).min(most);
            left -= rows[*at];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefill(debt: usize) -> Runnable {
        Runnable { debt, decodes: false, all_logits: false }
    }

    const DECODE: Runnable = Runnable { debt: 1, decodes: true, all_logits: false };

    /// The rows when the turns are in order of arrival.
    fn plan(sequences: &[Runnable], pace: &Pace) -> Vec<usize> {
        let mut rows = Vec::new();
        let turns: Vec<_> = (0..sequences.len()).filter(|at| !sequences[*at].decodes).collect();
        super::plan(sequences, &turns, pace, &mut rows);
        rows
    }

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
    fn rows_with_logits_come_in_small_slices() {
        let scored = Runnable { all_logits: true, ..prefill(1000) };
        assert_eq!(plan(&[scored, prefill(1000)], &pace(10)), [64, 448]);
    }
}
