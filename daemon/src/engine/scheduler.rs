//! Who runs in the next step, and how many rows each.
//!
//! The scheduler knows only each sequence's debt; prefill and decode are names in reports.
//! Decodes first, then prefill slices in order of arrival under a row budget, smaller while a
//! decode is live so that a long prompt does not hold up everyone else's text.

/// Rows of one step without a live decode.
const ROWS: usize = 512;
/// Prefill rows of one step beside live decodes.
const ROWS_BESIDE_DECODES: usize = 128;
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

/// Rows for each of `runnable` (in order of arrival) in the next step.
pub(super) fn plan(runnable: &[Runnable]) -> Vec<usize> {
    let decodes = runnable.iter().any(|sequence| sequence.decodes);
    let mut left = if decodes { ROWS_BESIDE_DECODES } else { ROWS };
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

    #[test]
    fn prefill_takes_what_the_budget_leaves_in_order_of_arrival() {
        assert_eq!(plan(&[prefill(1000)]), [512]);
        assert_eq!(plan(&[prefill(500), prefill(40), prefill(9)]), [500, 12, 0]);
    }

    #[test]
    fn every_decode_runs_and_prefill_is_shorter_beside_one() {
        assert_eq!(plan(&[prefill(1000), DECODE, DECODE]), [128, 1, 1]);
    }

    #[test]
    fn rows_with_logits_come_in_small_slices() {
        let scored = Runnable { all_logits: true, ..prefill(1000) };
        assert_eq!(plan(&[scored, prefill(1000)]), [64, 448]);
    }
}
