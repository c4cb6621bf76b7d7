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
