//! Row norms and the residual sum.

use crate::isa::{Isa, dispatched};
use crate::lanes::{fold, sum};

/// `out[t] = x[t] / sqrt(mean(x[t]^2) + eps) * weight` for rows of `C = weight.len()`.
///
/// # Panics
/// When `x` is not whole rows of `C`, or `out` is not as long as `x`.
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    check(x, weight, out);
    rms_norm_on(Isa::best(), x, weight, eps, out);
}

/// `out[t] = (x[t] - mean) / sqrt(variance + eps) * weight + bias`, with the biased variance
/// (divided by `C`), for rows of `C = weight.len()`. Without a bias nothing is added.
///
/// # Panics
/// When `x` is not whole rows of `C`, or `out` or `bias` does not fit.
pub fn layer_norm(x: &[f32], weight: &[f32], bias: Option<&[f32]>, eps: f32, out: &mut [f32]) {
    check(x, weight, out);
    assert!(bias.is_none_or(|bias| bias.len() == weight.len()), "one bias for each weight");
    layer_norm_on(Isa::best(), x, weight, bias, eps, out);
}

/// The residual sum, `x += y`.
///
/// # Panics
/// When the lengths differ.
pub fn add(x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len(), "rows of one shape");
    add_on(Isa::best(), x, y);
}

/// `x *= factor`.
pub fn scale(x: &mut [f32], factor: f32) {
    x.iter_mut().for_each(|x| *x *= factor);
}

/// `x += weight y`, one fused multiply-add for each element.
///
/// # Panics
/// When the lengths differ.
pub fn add_scaled(x: &mut [f32], y: &[f32], weight: f32) {
    assert_eq!(x.len(), y.len(), "rows of one shape");
    add_scaled_on(Isa::best(), x, y, weight);
}

fn check(x: &[f32], weight: &[f32], out: &[f32]) {
    assert_eq!(x.len() % weight.len(), 0, "whole rows");
    assert_eq!(x.len(), out.len(), "as many results as inputs");
}

dispatched! { pub(crate) fn rms_norm_on(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) = rms_norm_rows; }
dispatched! { pub(crate) fn layer_norm_on(x: &[f32], weight: &[f32], bias: Option<&[f32]>, eps: f32, out: &mut [f32]) = layer_norm_rows; }
dispatched! { fn add_on(x: &mut [f32], y: &[f32]) = add_rows; }
dispatched! { fn add_scaled_on(x: &mut [f32], y: &[f32], weight: f32) = add_scaled_rows; }

#[inline(always)]
fn rms_norm_rows(_isa: Isa, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let c = weight.len();
    for (x, out) in x.chunks_exact(c).zip(out.chunks_exact_mut(c)) {
        let squares = sum(fold(x, 0.0, |sum, x| x.mul_add(x, sum)));
        let scale = 1.0 / (squares / c as f32 + eps).sqrt();
        for i in 0..c {
            out[i] = x[i] * scale * weight[i];
        }
    }
}

#[inline(always)]
fn layer_norm_rows(
    isa: Isa,
    x: &[f32],
    weight: &[f32],
    bias: Option<&[f32]>,
    eps: f32,
    out: &mut [f32],
) {
    let c = weight.len();
    for (x, out) in x.chunks_exact(c).zip(out.chunks_exact_mut(c)) {
        let mean = sum(fold(x, 0.0, |sum, x| sum + x)) / c as f32;
        let squares = sum(fold(x, 0.0, |sum, x| (x - mean).mul_add(x - mean, sum)));
        let scale = 1.0 / (squares / c as f32 + eps).sqrt();
        for i in 0..c {
            out[i] = (x[i] - mean) * scale * weight[i];
        }
        if let Some(bias) = bias {
            add_rows(isa, out, bias);
        }
    }
}

#[inline(always)]
fn add_rows(_isa: Isa, x: &mut [f32], y: &[f32]) {
    for (x, &y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

#[inline(always)]
fn add_scaled_rows(_isa: Isa, x: &mut [f32], y: &[f32], weight: f32) {
    for (x, &y) in x.iter_mut().zip(y) {
        *x = weight.mul_add(y, *x);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::{bits, isas, noise};
    use crate::reference;

    const WIDTHS: [usize; 8] = [1, 5, 15, 16, 17, 64, 100, 576];

    #[test]
    fn norms_have_the_bits_of_their_references() {
        for c in WIDTHS {
            let (x, weight, bias) = (noise(1, 3 * c), noise(2, c), noise(3, c));
            let (mut got, mut want) = (vec![0.0; 3 * c], vec![0.0; 3 * c]);
            for isa in isas() {
                rms_norm_on(isa, &x, &weight, 1e-5, &mut got);
                reference::rms_norm(&x, &weight, 1e-5, &mut want);
                assert_eq!(bits(&got), bits(&want), "RMS norm of {c} on {isa:?}");
                for bias in [None, Some(&bias[..])] {
                    layer_norm_on(isa, &x, &weight, bias, 1e-5, &mut got);
                    reference::layer_norm(&x, &weight, bias, 1e-5, &mut want);
                    assert_eq!(bits(&got), bits(&want), "layer norm of {c} on {isa:?}");
                }
            }
        }
    }

    #[test]
    fn norms_agree_with_double_precision() {
        let c = 576;
        let (x, weight, bias) = (noise(1, c), noise(2, c), noise(3, c));
        let wide: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
        let mean = wide.iter().sum::<f64>() / c as f64;
        let square = wide.iter().map(|x| x * x).sum::<f64>() / c as f64;
        let variance = wide.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / c as f64;
        let (mut rms, mut layer) = (vec![0.0; c], vec![0.0; c]);
        rms_norm(&x, &weight, 1e-5, &mut rms);
        layer_norm(&x, &weight, Some(&bias), 1e-5, &mut layer);
        for i in 0..c {
            let want = wide[i] / (square + 1e-5).sqrt() * f64::from(weight[i]);
            assert!((f64::from(rms[i]) - want).abs() < 1e-6);
            let want = (wide[i] - mean) / (variance + 1e-5).sqrt() * f64::from(weight[i])
                + f64::from(bias[i]);
            assert!((f64::from(layer[i]) - want).abs() < 2e-6);
        }
    }

    #[test]
    fn the_residual_sum_adds() {
        for isa in isas() {
            let mut x = noise(1, 37);
            let (before, y) = (x.clone(), noise(2, 37));
            add_on(isa, &mut x, &y);
            assert!((0..37).all(|i| x[i] == before[i] + y[i]));
        }
    }

    #[test]
    fn a_weighted_sum_rounds_once() {
        for isa in isas() {
            let mut x = noise(1, 37);
            let (before, y) = (x.clone(), noise(2, 37));
            add_scaled_on(isa, &mut x, &y, 0.3);
            assert!((0..37).all(|i| x[i] == 0.3_f32.mul_add(y[i], before[i])));
        }
    }
}
