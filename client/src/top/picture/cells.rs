//! Words and bars in cells.

use tinygpt_proto::v1::Budget;

use super::Look;

/// The beginning of words, with a sign that there is more.
pub(super) fn fit(words: &str, width: usize) -> String {
    if words.chars().count() <= width {
        return words.to_owned();
    }
    let mut short: String = words.chars().take(width.saturating_sub(1)).collect();
    if width > 0 {
        short.push('…');
    }
    short
}

/// A column for each value, the highest as high as a cell.
pub(super) fn levels(values: impl Iterator<Item = f64> + Clone) -> String {
    const LEVELS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = values.clone().fold(f64::MIN_POSITIVE, f64::max);
    // What is more than nothing is seen.
    let level = |value: f64| LEVELS[((value / most * 8.0).ceil().clamp(0.0, 8.0)) as usize];
    values.map(level).collect()
}

/// How much of a budget is used, and whether that is much.
pub(super) fn bar(budget: Budget, width: usize) -> (String, Look) {
    let Some(limit) = budget.limit.filter(|limit| *limit > 0) else {
        return (" ".repeat(width), Look::Plain);
    };
    let part = (budget.used as f64 / limit as f64).clamp(0.0, 1.0);
    let full = (part * width as f64).ceil() as usize;
    let look = if part < 0.9 { Look::Good } else { Look::Half };
    ("█".repeat(full) + &"░".repeat(width - full), look)
}

/// Cells for each count, all of them together; what is there has one at least where there is room.
pub(super) fn shares(counts: &[u64], width: usize) -> Vec<usize> {
    let total = counts.iter().sum::<u64>().max(1);
    let share = |count: &u64| {
        let exact = *count as f64 / total as f64 * width as f64;
        (exact.round() as usize).max(usize::from(*count > 0))
    };
    let mut shares: Vec<_> = counts.iter().map(share).collect();
    // Rounding is made up for by the largest.
    while shares.iter().sum::<usize>() > width
        && let Some(largest) = shares.iter_mut().max()
    {
        *largest -= 1;
    }
    while counts.iter().any(|count| *count > 0)
        && shares.iter().sum::<usize>() < width
        && let Some(largest) = shares.iter_mut().max()
    {
        *largest += 1;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_fill_the_width_and_forget_nobody() {
        assert_eq!(shares(&[1, 0, 1], 10), [5, 0, 5]);
        assert_eq!(shares(&[1, 10_000], 20), [1, 19]);
        assert_eq!(shares(&[0, 0], 20), [0, 0]);
        assert_eq!(shares(&[1, 1, 1, 1], 2).iter().sum::<usize>(), 2);
        for width in 0..50 {
            assert_eq!(shares(&[3, 20, 7, 10], width).iter().sum::<usize>(), width);
        }
    }

    #[test]
    fn the_highest_value_is_as_high_as_a_cell_and_the_least_is_seen() {
        assert_eq!(levels([0.0, 0.001, 50.0, 100.0].into_iter()), " ▁▄█");
        assert_eq!(levels([0.0].into_iter()), " ");
    }

    #[test]
    fn words_that_do_not_fit_say_so() {
        assert_eq!([fit("abcd", 4), fit("abcd", 3), fit("abcd", 0)], ["abcd", "ab…", ""]);
    }

    #[test]
    fn a_bar_is_as_wide_as_it_may_be() {
        let bar = |used, limit| bar(Budget { used, limit }, 4).0;
        assert_eq!(bar(2, Some(4)), "██░░");
        assert_eq!(bar(9, Some(4)), "████");
        assert_eq!([bar(9, None), bar(9, Some(0))], ["    ", "    "]);
    }
}
