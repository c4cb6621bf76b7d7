//! Activations, elementwise.

use crate::elementary::{exp, normal_tail, tanh};
use crate::isa::{Isa, dispatched};
use crate::lanes::map;

/// Which GELU: its two forms differ in the fourth digit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gelu {
    /// `x P(X <= x)` for a standard normal `X`, with the error function, to an absolute 2e-7.
    Erf,
    /// Its approximation with a hyperbolic tangent, `gelu_new`.
    Tanh,
}

/// What is made of the gate of a gated product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// `x / (1 + exp(-x))`
    Silu,
    /// [`Gelu::Tanh`]
    GeluTanh,
}

/// `out = how(gate) * up`.
///
/// # Panics
/// When the lengths differ.
pub fn gate(how: Gate, gate: &[f32], up: &[f32], out: &mut [f32]) {
    assert!(gate.len() == up.len() && up.len() == out.len(), "rows of one shape");
    gate_on(Isa::best(), how, gate, up, out);
}

/// `x = gelu(x)`.
pub fn gelu(how: Gelu, x: &mut [f32]) {
    gelu_on(Isa::best(), how, x);
}

/// `x = cap * tanh(x / cap)`.
pub fn softcap(x: &mut [f32], cap: f32) {
    softcap_on(Isa::best(), x, cap);
}

dispatched! { pub(crate) fn gate_on(how: Gate, gate: &[f32], up: &[f32], out: &mut [f32]) = gate_rows; }
dispatched! { pub(crate) fn gelu_on(how: Gelu, x: &mut [f32]) = gelu_rows; }
dispatched! { pub(crate) fn softcap_on(x: &mut [f32], cap: f32) = softcap_rows; }

#[inline(always)]
fn gate_rows(_isa: Isa, how: Gate, gate: &[f32], up: &[f32], out: &mut [f32]) {
    out.copy_from_slice(gate);
    match how {
        Gate::Silu => map(out, silu),
        Gate::GeluTanh => map(out, gelu_tanh),
    }
    for (out, &up) in out.iter_mut().zip(up) {
        *out *= up;
    }
}

#[inline(always)]
fn gelu_rows(_isa: Isa, how: Gelu, x: &mut [f32]) {
    match how {
        Gelu::Erf => map(x, gelu_erf),
        Gelu::Tanh => map(x, gelu_tanh),
    }
}

#[inline(always)]
fn softcap_rows(_isa: Isa, x: &mut [f32], cap: f32) {
    for x in x {
        *x = capped(*x, cap);
    }
}

/// `x / (1 + exp(-x))`.
#[inline(always)]
pub(crate) fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// `x P(X <= x)`, from the tail on the side of `x` so that nothing cancels.
#[inline(always)]
pub(crate) fn gelu_erf(x: f32) -> f32 {
    let tail = normal_tail(x.abs());
    x * if x < 0.0 { tail } else { 1.0 - tail }
}

/// `x (1 + tanh u) / 2` with `u = sqrt(2 / pi) (x + 0.044715 x^3)`, as `x / (1 + exp(-2u))`, where
/// nothing cancels.
#[inline(always)]
pub(crate) fn gelu_tanh(x: f32) -> f32 {
    /// `-2 sqrt(2 / pi)`
    const SLOPE: f32 = -1.595_769;
    x / (1.0 + exp(SLOPE * x * (0.044_715 * x).mul_add(x, 1.0)))
}

/// `cap * tanh(x / cap)`.
#[inline(always)]
pub(crate) fn capped(x: f32, cap: f32) -> f32 {
    cap * tanh(x / cap)
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
            gelu(Gelu::Erf, &mut got);
            let want = f64::from(x) * normal(f64::from(x));
            let error = (f64::from(got[0]) - want).abs();
            let rounding = want.abs() * f64::from(f32::EPSILON);
            assert!(error < 2e-7_f64.max(rounding), "gelu({x}) = {} not {want}", got[0]);
        }
    }

    #[test]
    fn the_tanh_form_is_within_3e7_of_its_definition() {
        for i in -1_200..=1_200 {
            let x = i as f32 / 150.0;
            let mut got = [x];
            gelu(Gelu::Tanh, &mut got);
            let x = f64::from(x);
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            let want = 0.5 * x * (1.0 + u.tanh());
            let error = (f64::from(got[0]) - want).abs();
            let rounding = 2.0 * want.abs() * f64::from(f32::EPSILON);
            assert!(error < 3e-7_f64.max(rounding), "gelu({x}) = {} not {want}", got[0]);
        }
    }

    #[test]
    fn a_capped_number_keeps_its_sign_and_stays_below_the_cap() {
        let mut x = [-1e30, -50.0, -1e-3, 0.0, 1e-3, 50.0, f32::INFINITY];
        softcap(&mut x, 50.0);
        let want = [-50.0, -38.079_71, -1e-3, 0.0, 1e-3, 38.079_71, 50.0_f32];
        assert!(x.iter().zip(want).all(|(x, want)| (x - want).abs() <= want.abs() * 3e-7), "{x:?}");
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
            let x: Vec<f32> = noise(1, len).iter().map(|x| x * 20.0).collect();
            let up = noise(2, len);
            let each = |f: &dyn Fn(f32) -> f32| bits(&x.iter().map(|&x| f(x)).collect::<Vec<_>>());
            let mut out = vec![0.0; len];
            for isa in isas() {
                for (how, of) in [(Gate::Silu, silu as fn(f32) -> f32), (Gate::GeluTanh, gelu_tanh)]
                {
                    gate_on(isa, how, &x, &up, &mut out);
                    let want: Vec<f32> = x.iter().zip(&up).map(|(&x, up)| of(x) * up).collect();
                    assert_eq!(bits(&out), bits(&want), "{how:?} on {isa:?}");
                }
                for (how, of) in [(Gelu::Erf, gelu_erf as fn(f32) -> f32), (Gelu::Tanh, gelu_tanh)]
                {
                    out.copy_from_slice(&x);
                    gelu_on(isa, how, &mut out);
                    assert_eq!(bits(&out), each(&of), "{how:?} on {isa:?}");
                }
                out.copy_from_slice(&x);
                softcap_on(isa, &mut out, 3.0);
                assert_eq!(bits(&out), each(&|x| capped(x, 3.0)), "{isa:?}");
            }
        }
    }

    #[test]
    fn activations_hold_at_the_ends() {
        for how in [Gelu::Erf, Gelu::Tanh] {
            let mut x = [f32::MAX, f32::MIN, 0.0, 100.0, -100.0];
            gelu(how, &mut x);
            assert_eq!(x, [f32::MAX, 0.0, 0.0, 100.0, 0.0], "{how:?}");
        }
        assert_eq!(silu(-200.0), 0.0);
        assert_eq!(silu(200.0), 200.0);
    }
}
