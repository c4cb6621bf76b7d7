//! What sampling needs of a row of logits, each in one fixed order.

use crate::elementary::{exp, ln_f64};
use crate::isa::{Isa, dispatched};
use crate::lanes::{fold, max, sum};

/// The index of the largest logit, the lowest one on ties. NaN never wins.
///
/// # Panics
/// When the row is empty.
pub fn argmax(logits: &[f32]) -> usize {
    assert!(!logits.is_empty(), "an argmax of something");
    argmax_on(Isa::best(), logits)
}

/// `ln(sum(exp(x)))` over a row `[V]`, without overflow; `-inf` for a row of nothing else.
pub fn logsumexp(logits: &[f32]) -> f32 {
    logsumexp_on(Isa::best(), logits)
}

/// `out = exp((x - max x) / temperature)` over a row `[V]`: how likely each is beside the
/// likeliest.
///
/// # Panics
/// When the lengths differ.
pub fn weights(logits: &[f32], temperature: f32, out: &mut [f32]) {
    assert_eq!(logits.len(), out.len(), "a weight for each logit");
    weights_on(Isa::best(), logits, temperature, out);
}

/// The sum of a row, in lanes.
pub fn total(row: &[f32]) -> f32 {
    total_on(Isa::best(), row)
}

/// A uniform f32 in `[0, 1)`, a multiple of 2^-24, which depends on nothing but its arguments:
/// the same request draws the same numbers whatever runs beside it, and a resumed one goes on
/// where it was.
pub fn uniform(seed: u64, choice: u32, position: u64) -> f32 {
    let mixed = mix(mix(mix(seed) ^ u64::from(choice)) ^ position);
    (mixed >> 40) as f32 * (1.0 / 16_777_216.0)
}

/// One step of the SplitMix64 generator (Steele, Lea, Flood 2014): a bijection that avalanches.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

dispatched! { fn argmax_on(logits: &[f32]) -> usize = argmax_row; }
dispatched! { fn logsumexp_on(logits: &[f32]) -> f32 = logsumexp_row; }
dispatched! { fn weights_on(logits: &[f32], temperature: f32, out: &mut [f32]) = weights_row; }
dispatched! { fn total_on(row: &[f32]) -> f32 = total_row; }

#[inline(always)]
fn argmax_row(_isa: Isa, logits: &[f32]) -> usize {
    let largest = max(logits);
    logits.iter().position(|&x| x == largest).unwrap_or(0)
}

#[inline(always)]
fn logsumexp_row(_isa: Isa, logits: &[f32]) -> f32 {
    let largest = max(logits);
    if largest == f32::NEG_INFINITY {
        return largest;
    }
    let total = sum(fold(logits, 0.0, |sum, x| sum + exp(x - largest)));
    largest + ln_f64(f64::from(total)) as f32
}

#[inline(always)]
fn weights_row(_isa: Isa, logits: &[f32], temperature: f32, out: &mut [f32]) {
    let largest = max(logits);
    out.copy_from_slice(logits);
    crate::lanes::map(out, |x| exp((x - largest) / temperature));
}

#[inline(always)]
fn total_row(_isa: Isa, row: &[f32]) -> f32 {
    sum(fold(row, 0.0, |sum, x| sum + x))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::{bits, isas, noise};

    #[test]
    fn argmax_takes_the_first_of_equals_and_never_nan() {
        for isa in isas() {
            assert_eq!(argmax_on(isa, &[1.0, 3.0, 2.0, 3.0]), 1);
            assert_eq!(argmax_on(isa, &[f32::NAN, -1.0, f32::NAN]), 1);
            assert_eq!(argmax_on(isa, &[f32::NEG_INFINITY; 3]), 0);
            let mut long = noise(1, 1_000);
            long[777] = 5.0;
            long[900] = 5.0;
            assert_eq!(argmax_on(isa, &long), 777);
        }
    }

    #[test]
    fn logsumexp_agrees_with_double_precision_and_between_instantiations() {
        for len in [1, 2, 17, 50_000] {
            let logits: Vec<f32> = noise(2, len).iter().map(|x| x * 30.0).collect();
            let want = logits.iter().map(|&x| f64::from(x).exp()).sum::<f64>().ln();
            let [plain, best] = [Isa::PLAIN, Isa::best()].map(|isa| logsumexp_on(isa, &logits));
            assert_eq!(plain.to_bits(), best.to_bits());
            assert!((f64::from(best) - want).abs() < 4e-6, "{best} not {want}");
        }
    }

    #[test]
    fn weights_are_how_likely_each_is_beside_the_likeliest() {
        let logits: Vec<f32> = noise(3, 1_001).iter().map(|x| x * 10.0).collect();
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let rows = [Isa::PLAIN, Isa::best()].map(|isa| {
            let mut row = vec![f32::NAN; logits.len()];
            weights_on(isa, &logits, 0.7, &mut row);
            for (&weight, &x) in row.iter().zip(&logits) {
                let want = ((f64::from(x) - f64::from(largest)) / 0.7).exp();
                assert!((f64::from(weight) - want).abs() < 1e-5 * want, "{weight} not {want}");
            }
            let sum: f64 = row.iter().map(|&x| f64::from(x)).sum();
            assert!((f64::from(total_on(isa, &row)) - sum).abs() < 1e-5 * sum);
            bits(&row)
        });
        assert_eq!(rows[0], rows[1]);
    }

    #[test]
    fn a_row_of_nothing_possible_sums_to_nothing() {
        assert_eq!(logsumexp(&[f32::NEG_INFINITY; 20]), f32::NEG_INFINITY);
        assert_eq!(logsumexp(&[]), f32::NEG_INFINITY);
    }

    #[test]
    fn draws_depend_on_each_argument_and_on_nothing_else() {
        let draw = uniform(1, 2, 3);
        assert_eq!(draw, uniform(1, 2, 3));
        assert_eq!(draw.to_bits(), 1_062_236_999, "the same on every machine");
        for other in [uniform(2, 2, 3), uniform(1, 3, 3), uniform(1, 2, 4), uniform(1, 3, 2)] {
            assert_ne!(draw, other);
        }
    }

    #[test]
    fn draws_are_uniform() {
        let mut counts = [0_u32; 10];
        for position in 0..100_000 {
            let draw = uniform(42, 0, position);
            assert!((0.0..1.0).contains(&draw));
            counts[(draw * 10.0) as usize] += 1;
        }
        assert!(counts.iter().all(|&count| (9_600..10_400).contains(&count)), "{counts:?}");
    }
}
