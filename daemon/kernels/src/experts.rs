//! Which experts compute which rows.

use crate::elementary::exp;
use crate::lanes::{fold, max, sum};

/// Keeps a sum of probabilities that are all 0 from being divided by.
const LEAST: f32 = 1e-9;

/// The rows of one expert, ascending, and what its results for each are multiplied with.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chosen {
    /// Indices of rows.
    pub rows: Vec<usize>,
    /// One for each.
    pub weights: Vec<f32>,
}

impl Chosen {
    /// Each row with its weight.
    pub fn iter(&self) -> impl Iterator<Item = (usize, f32)> + '_ {
        self.rows.iter().copied().zip(self.weights.iter().copied())
    }
}

/// For each of `experts` experts the rows of `scores[T][experts]` that it is among the `top` best
/// for; among equal scores the lower expert is the better one. No row is turned away.
///
/// A weight is the softmax probability of the expert over all of them; where `top` is more than
/// one, over the sum of the chosen ones' and 1e-9.
///
/// # Panics
/// When there are not `experts` scores for each row, or fewer experts than `top`.
pub fn choose(scores: &[f32], experts: usize, top: usize) -> Vec<Chosen> {
    assert!(scores.len().is_multiple_of(experts), "scores are [T][{experts}]");
    assert!((1..=experts).contains(&top), "{top} of {experts} experts");
    let mut chosen = vec![Chosen::default(); experts];
    for (row, scores) in scores.chunks_exact(experts).enumerate() {
        for (expert, weight) in best(scores, top) {
            chosen[expert].rows.push(row);
            chosen[expert].weights.push(weight);
        }
    }
    chosen
}

/// The best experts of a row, ascending, with their weights.
fn best(scores: &[f32], top: usize) -> Vec<(usize, f32)> {
    let largest = max(scores);
    let powers: Vec<f32> = scores.iter().map(|score| exp(score - largest)).collect();
    let total = sum(fold(&powers, 0.0, |sum, x| sum + x));
    let mut order: Vec<usize> = (0..scores.len()).collect();
    // Stable: of equal ones, which the two zeros are, the lower stays first.
    let score = |expert: &usize| scores[*expert] + 0.0;
    order.sort_by(|a, b| score(b).total_cmp(&score(a)));
    order.truncate(top);
    order.sort_unstable();
    let probabilities = order.into_iter().map(|expert| (expert, powers[expert] / total));
    let mut chosen: Vec<(usize, f32)> = probabilities.collect();
    if top > 1 {
        let together = chosen.iter().fold(0.0, |sum, (_, p)| sum + p) + LEAST;
        chosen.iter_mut().for_each(|(_, p)| *p /= together);
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The experts of each row with their weights.
    fn by_row(scores: &[f32], experts: usize, top: usize) -> Vec<Vec<(usize, f32)>> {
        let chosen = choose(scores, experts, top);
        let of_row = |row| {
            let expert = |(expert, chosen): (usize, &Chosen)| {
                chosen.iter().find(|(r, _)| *r == row).map(|(_, weight)| (expert, weight))
            };
            chosen.iter().enumerate().filter_map(expert).collect()
        };
        (0..scores.len() / experts).map(of_row).collect()
    }

    #[test]
    fn equal_scores_go_to_the_lower_expert() {
        let rows = by_row(&[1.0, 2.0, 2.0, 2.0, 0.0, 0.0, 0.0, 0.0], 4, 2);
        let experts = |row: &[(usize, f32)]| row.iter().map(|(e, _)| *e).collect::<Vec<_>>();
        assert_eq!(rows.iter().map(|row| experts(row)).collect::<Vec<_>>(), [[1, 2], [0, 1]]);
        assert_eq!(rows[1], [(0, 0.5), (1, 0.5)]);
    }

    #[test]
    fn one_expert_weighs_its_probability_and_several_weigh_one_together() {
        let scores = [0.0, 3.0_f32.ln(), 0.0, 4.0_f32.ln()];
        let [one, two] = [1, 2].map(|top| by_row(&scores, 4, top).remove(0));
        assert_eq!(one.len(), 1);
        assert!(one[0].0 == 3 && (one[0].1 - 4.0 / 9.0).abs() < 1e-6, "{one:?}");
        assert!(two[0].0 == 1 && (two[0].1 - 3.0 / 7.0).abs() < 1e-6, "{two:?}");
        assert!(two[1].0 == 3 && (two[1].1 - 4.0 / 7.0).abs() < 1e-6, "{two:?}");
    }

    #[test]
    fn no_row_is_turned_away_however_many_want_one_expert() {
        let chosen = choose(&[9.0, 0.0].repeat(1_000), 2, 1);
        assert_eq!((chosen[0].rows.len(), chosen[1].rows.len()), (1_000, 0));
        assert!(chosen[0].rows.is_sorted());
    }
}
