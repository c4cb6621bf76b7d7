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

/// Turns logits `[V]` into log-probabilities in place; returns what was subtracted.
pub fn log_softmax(logits: &mut [f32]) -> f32 {
    log_softmax_on(Isa::best(), logits)
}

/// Turns logits `[V]` into probabilities in place: exponentials over their sum in lanes.
pub fn softmax(logits: &mut [f32]) {
    softmax_on(Isa::best(), logits);
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
dispatched! { fn log_softmax_on(logits: &mut [f32]) -> f32 = log_softmax_row; }
dispatched! { fn softmax_on(logits: &mut [f32]) = softmax_row; }

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
fn log_softmax_row(isa: Isa, logits: &mut [f32]) -> f32 {
    let total = logsumexp_row(isa, logits);
    for x in logits {
        *x -= total;
    }
    total
}

#[inline(always)]
fn softmax_row(_isa: Isa, logits: &mut [f32]) {
    let largest = max(logits);
    crate::lanes::map(logits, |x| exp(x - largest));
    let total = sum(fold(logits, 0.0, |sum, x| sum + x));
    for x in logits {
        *x /= total;
    }
}
