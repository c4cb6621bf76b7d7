//! Activations, elementwise.

use crate::elementary::{exp, normal_tail};
use crate::isa::{Isa, dispatched};
use crate::lanes::map;

/// `out = silu(gate) * up` with `silu(x) = x / (1 + exp(-x))`.
///
/// # Panics
/// When the lengths differ.
pub fn silu_mul(gate: &[f32], up: &[f32], out: &mut [f32]) {
    assert!(gate.len() == up.len() && up.len() == out.len(), "rows of one shape");
    silu_mul_on(Isa::best(), gate, up, out);
}

/// `x = x * P(X <= x)` for a standard normal `X`: GELU with the exact error function, not the
/// tanh form, to an absolute 2e-7.
pub fn gelu_erf(x: &mut [f32]) {
    gelu_erf_on(Isa::best(), x);
}

dispatched! { pub(crate) fn silu_mul_on(gate: &[f32], up: &[f32], out: &mut [f32]) = silu_mul_rows; }
dispatched! { pub(crate) fn gelu_erf_on(x: &mut [f32]) = gelu_erf_rows; }

#[inline(always)]
fn silu_mul_rows(_isa: Isa, gate: &[f32], up: &[f32], out: &mut [f32]) {
    out.copy_from_slice(gate);
    map(out, silu);
    for (out, &up) in out.iter_mut().zip(up) {
        *out *= up;
    }
}

#[inline(always)]
fn gelu_erf_rows(_isa: Isa, x: &mut [f32]) {
    map(x, gelu);
}

/// `x / (1 + exp(-x))`.
#[inline(always)]
pub(crate) fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// `x P(X <= x)`, from the tail on the side of `x` so that nothing cancels.
#[inline(always)]
pub(crate) fn gelu(x: f32) -> f32 {
    let tail = normal_tail(x.abs());
    x * if x < 0.0 { tail } else { 1.0 - tail }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::{bits, isas, noise};

    /// P(X <= x) for a standard normal X, by Simpson's rule.
    fn normal(x: f64) -> f64 {
        const STEPS: u32 = 2_000;
        let h = x / f64::from(STEPS);
        let density = |i: u32| (-(f64::from(i) * h).powi(2) / 2.0).exp();
        let weight = |i: u32| if i == 0 || i == STEPS { 1.0 } else { f64::from(2 + 2 * (i % 2)) };
        let sum: f64 = (0..=STEPS).map(|i| weight(i) * density(i)).sum();
        0.5 + sum * h / 3.0 / (2.0 * std::f64::consts::PI).sqrt()
    }

    #[test]
    fn gelu_is_within_2e7_of_the_exact_one() {
        for i in -1_200..=1_200 {
            let x = i as f32 / 150.0;
            let mut got = [x];
            gelu_erf(&mut got);
            let want = f64::from(x) * normal(f64::from(x));
            let error = (f64::from(got[0]) - want).abs();
            let rounding = want.abs() * f64::from(f32::EPSILON);
            assert!(error < 2e-7_f64.max(rounding), "gelu({x}) = {} not {want}", got[0]);
        }
    }

    #[test]
    fn silu_is_within_three_ulp() {
        for i in -8_000..=8_000 {
            let x = i as f32 / 100.0;
            let want = f64::from(x) / (1.0 + f64::from(-x).exp());
            let error = (f64::from(silu(x)) - want).abs();
            assert!(error <= want.abs() * 4e-7 + 1e-37, "silu({x}) = {} not {want}", silu(x));
        }
    }

    #[test]
    fn rows_have_the_bits_of_single_elements_in_every_instantiation() {
        for len in [1, 15, 16, 17, 100] {
            let gate: Vec<f32> = noise(1, len).iter().map(|x| x * 20.0).collect();
            let up = noise(2, len);
            let products: Vec<f32> = gate.iter().zip(&up).map(|(&g, u)| silu(g) * u).collect();
            let gelus: Vec<f32> = gate.iter().map(|&x| gelu(x)).collect();
            for isa in isas() {
                let mut out = vec![0.0; len];
                silu_mul_on(isa, &gate, &up, &mut out);
                assert_eq!(bits(&out), bits(&products), "{isa:?}");
                out.copy_from_slice(&gate);
                gelu_erf_on(isa, &mut out);
                assert_eq!(bits(&out), bits(&gelus), "{isa:?}");
            }
        }
    }

    #[test]
    fn activations_hold_at_the_ends() {
        let mut x = [f32::MAX, f32::MIN, 0.0, 100.0, -100.0];
        gelu_erf(&mut x);
        assert_eq!(x, [f32::MAX, 0.0, 0.0, 100.0, 0.0]);
        assert_eq!(silu(-200.0), 0.0);
        assert_eq!(silu(200.0), 200.0);
    }
}
