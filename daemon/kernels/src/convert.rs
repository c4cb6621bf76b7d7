//! f32 to f16 and bf16 and back: the rounding of weights and of cached keys and values.
//!
//! Narrowing rounds to nearest, ties to even. An f16 that would overflow saturates to +-65504 and
//! is counted, because an infinite key would poison every later token; NaN stays NaN. Widening is
//! exact (a signalling NaN becomes quiet). All of it is integer arithmetic and selection, so every
//! instantiation has the same bits.

use bytemuck::{Pod, Zeroable};

#[cfg(target_arch = "x86_64")]
use crate::isa::Kind;
use crate::isa::{Isa, dispatched};
use crate::lanes::{LANES, Lanes};

/// f32 to f16. Returns how many values were saturated.
///
/// # Panics
/// When the lengths differ.
pub fn narrow_f16(from: &[f32], to: &mut [u16]) -> usize {
    assert_eq!(from.len(), to.len(), "one f16 for each f32");
    narrow_f16_on(Isa::best(), from, to)
}

/// f32 to bf16. Values beyond the largest bf16 become infinite, as IEEE rounding has it.
///
/// # Panics
/// When the lengths differ.
pub fn narrow_bf16(from: &[f32], to: &mut [u16]) {
    assert_eq!(from.len(), to.len(), "one bf16 for each f32");
    narrow_bf16_on(Isa::best(), from, to);
}

dispatched! { fn narrow_f16_on(from: &[f32], to: &mut [u16]) -> usize = narrow_f16_slice; }
dispatched! { fn narrow_bf16_on(from: &[f32], to: &mut [u16]) = narrow_bf16_slice; }
#[cfg(test)]
dispatched! { fn widen_on[E: Narrow][E](from: &[E], to: &mut [f32]) = widen_slice; }

#[inline(always)]
fn narrow_f16_slice(_isa: Isa, from: &[f32], to: &mut [u16]) -> usize {
    let saturated = from.iter().map(|&x| u32::from(saturates(x))).fold(0, u32::wrapping_add);
    zip_map(from, to, f16_from_f32);
    saturated as usize
}

#[inline(always)]
fn narrow_bf16_slice(_isa: Isa, from: &[f32], to: &mut [u16]) {
    zip_map(from, to, bf16_from_f32);
}

#[cfg(test)]
#[inline(always)]
fn widen_slice<E: Narrow>(isa: Isa, from: &[E], to: &mut [f32]) {
    let (from, from_rest) = from.as_chunks::<LANES>();
    let (to, to_rest) = to.as_chunks_mut::<LANES>();
    for (to, from) in to.iter_mut().zip(from) {
        *to = E::widen(isa, from);
    }
    for (to, from) in to_rest.iter_mut().zip(from_rest) {
        *to = from.value();
    }
}

/// An element of a weight matrix or of cached keys and values, no wider than an f32.
pub(crate) trait Narrow: Pod {
    /// The same value as an f32.
    fn value(self) -> f32;

    /// The nearest value to an f32.
    fn nearest(x: f32) -> Self;

    /// Sixteen values at once.
    #[inline(always)]
    fn widen(_isa: Isa, from: &[Self; LANES]) -> Lanes {
        widen_by_value(from)
    }

    /// The elements themselves where they are f32 already.
    #[inline(always)]
    fn wide(_from: &[[Self; LANES]]) -> Option<&[Lanes]> {
        None
    }
}

/// The bits of an f16.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(transparent)]
pub(crate) struct F16(u16);

/// The bits of a bf16.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(transparent)]
pub(crate) struct BF16(u16);

impl Narrow for f32 {
    #[inline(always)]
    fn value(self) -> f32 {
        self
    }

    fn nearest(x: f32) -> f32 {
        x
    }

    #[inline(always)]
    fn wide(from: &[Lanes]) -> Option<&[Lanes]> {
        Some(from)
    }
}

impl Narrow for BF16 {
    #[inline(always)]
    fn value(self) -> f32 {
        f32_from_bf16(self.0)
    }

    fn nearest(x: f32) -> BF16 {
        BF16(bf16_from_f32(x))
    }
}

impl Narrow for F16 {
    #[inline(always)]
    fn value(self) -> f32 {
        f32_from_f16(self.0)
    }

    fn nearest(x: f32) -> F16 {
        F16(f16_from_f32(x))
    }

    #[inline(always)]
    fn widen(isa: Isa, from: &[F16; LANES]) -> Lanes {
        match isa.0 {
            // SAFETY: an instantiation for AVX2 only runs on machines that have F16C.
            #[cfg(target_arch = "x86_64")]
            #[expect(unsafe_code, reason = "one instruction in place of twenty")]
            Kind::Avx2 => unsafe { widen_f16c(from) },
            // SAFETY: an instantiation for AVX-512 only runs on machines that have it.
            #[cfg(target_arch = "x86_64")]
            #[expect(unsafe_code, reason = "one instruction in place of twenty")]
            Kind::Vnni => unsafe { widen_avx512(from) },
            #[cfg(target_arch = "aarch64")]
            _ => widen_neon(from),
            #[cfg(not(target_arch = "aarch64"))]
            _ => widen_by_value(from),
        }
    }
}

#[inline(always)]
fn widen_by_value<E: Narrow>(from: &[E; LANES]) -> Lanes {
    let mut to = [0.0; LANES];
    for i in 0..LANES {
        to[i] = from[i].value();
    }
    to
}

/// The conversion in hardware: exact, as ours is.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx,f16c")]
#[inline]
fn widen_f16c(from: &[F16; LANES]) -> Lanes {
    use std::arch::x86_64::{__m128i, _mm256_cvtph_ps};
    let [low, high]: [__m128i; 2] = bytemuck::cast(*from);
    bytemuck::cast([_mm256_cvtph_ps(low), _mm256_cvtph_ps(high)])
}

/// The same for all lanes at once.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
#[inline]
fn widen_avx512(from: &[F16; LANES]) -> Lanes {
    use std::arch::x86_64::_mm512_cvtph_ps;
    bytemuck::cast(_mm512_cvtph_ps(bytemuck::cast(*from)))
}

/// The conversion in hardware that every aarch64 has: exact, as ours is.
#[cfg(target_arch = "aarch64")]
#[inline]
fn widen_neon(from: &[F16; LANES]) -> Lanes {
    use std::arch::aarch64::{float32x4_t, vdupq_n_f32};
    // SAFETY: arithmetic on registers.
    #[expect(unsafe_code, reason = "one instruction in place of twenty")]
    unsafe {
        let mut to: [float32x4_t; 4] = [vdupq_n_f32(0.0); 4];
        for (to, from) in to.iter_mut().zip(from.as_chunks::<4>().0) {
            let from: u64 = bytemuck::cast(*from);
            std::arch::asm!(
                "fmov {to:d}, {from}",
                "fcvtl {to:v}.4s, {to:v}.4h",
                from = in(reg) from,
                to = out(vreg) *to,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        bytemuck::cast(to)
    }
}

/// `to[i] = f(from[i])`, in chunks of lanes so that the compiler vectorises it.
#[inline(always)]
fn zip_map<A: Copy, B>(from: &[A], to: &mut [B], f: impl Fn(A) -> B) {
    let (from_chunks, from_rest) = from.as_chunks::<LANES>();
    let (to_chunks, to_rest) = to.as_chunks_mut::<LANES>();
    for (to, from) in to_chunks.iter_mut().zip(from_chunks) {
        for i in 0..LANES {
            to[i] = f(from[i]);
        }
    }
    for (to, &from) in to_rest.iter_mut().zip(from_rest) {
        *to = f(from);
    }
}

/// The smallest magnitude that rounds beyond the largest f16, as bits.
const F16_OVERFLOW: u32 = 0x477f_f000;
/// The magnitude of infinity, as bits; beyond it are the NaNs.
const INFINITE: u32 = 0x7f80_0000;

/// Whether a value is too large for an f16 (infinities are; NaNs are not).
#[inline(always)]
pub fn saturates(x: f32) -> bool {
    let magnitude = x.to_bits() & 0x7fff_ffff;
    (F16_OVERFLOW..=INFINITE).contains(&magnitude)
}

/// Rounds to the nearest f16, ties to even, saturating.
#[inline(always)]
pub fn f16_from_f32(x: f32) -> u16 {
    /// Adding it aligns the last bit of a subnormal f16 with the last bit of the f32.
    const SUBNORMAL: f32 = 0.5;
    /// The difference of the exponent biases, in the place of an f32's exponent.
    const REBIAS: u32 = (127 - 15) << 23;

    let magnitude = x.to_bits() & 0x7fff_ffff;
    let sign = (x.to_bits() >> 16) & 0x8000;
    let even = (magnitude >> 13) & 1;
    let normal = magnitude.wrapping_sub(REBIAS).wrapping_add(0xfff + even) >> 13;
    let subnormal =
        (f32::from_bits(magnitude) + SUBNORMAL).to_bits().wrapping_sub(SUBNORMAL.to_bits());
    let finite = if magnitude < (113 << 23) { subnormal } else { normal };
    let capped = if magnitude >= F16_OVERFLOW { 0x7bff } else { finite };
    let half = if magnitude > INFINITE { 0x7e00 } else { capped };
    (sign | half) as u16
}

/// Rounds to the nearest bf16, ties to even.
#[inline(always)]
pub fn bf16_from_f32(x: f32) -> u16 {
    let bits = x.to_bits();
    let even = (bits >> 16) & 1;
    let rounded = bits.wrapping_add(0x7fff + even) >> 16;
    let quiet = (bits >> 16) | 0x40;
    (if bits & 0x7fff_ffff > INFINITE { quiet } else { rounded }) as u16
}

/// The f32 of an f16.
#[inline(always)]
pub fn f32_from_f16(half: u16) -> f32 {
    /// The value that a zero f16 magnitude gets when rebiased as if it had an exponent of 1.
    const UNIT: u32 = (127 - 15 + 1) << 23;

    let sign = u32::from(half & 0x8000) << 16;
    let magnitude = u32::from(half & 0x7fff);
    let shifted = magnitude << 13;
    let normal = shifted + ((127 - 15) << 23);
    let subnormal = (f32::from_bits(shifted + UNIT) - f32::from_bits(UNIT)).to_bits();
    let quiet = if magnitude > 0x7c00 { 0x40_0000 } else { 0 };
    let special = (shifted + ((255 - 31) << 23)) | quiet;
    let finite = if magnitude < 0x400 { subnormal } else { normal };
    f32::from_bits(sign | if magnitude >= 0x7c00 { special } else { finite })
}

/// The f32 of a bf16.
#[inline(always)]
pub fn f32_from_bf16(half: u16) -> f32 {
    let quiet = if half & 0x7fff > 0x7f80 { 0x40 } else { 0 };
    f32::from_bits(u32::from(half | quiet) << 16)
}

/// An 8-bit float with four bits of exponent and three of mantissa. It has no infinities; its
/// largest magnitude stands for NaN.
#[inline(always)]
pub fn f32_from_e4m3(code: u8) -> f32 {
    wide_from_e4m3(u32::from(code))
}

/// The same of a code below 256.
#[inline(always)]
pub(crate) fn wide_from_e4m3(code: u32) -> f32 {
    /// The difference of the exponents' biases, in place.
    const BIAS: u32 = (127 - 7) << 23;
    /// The smallest subnormal.
    const STEP: f32 = 1.0 / 512.0;
    let magnitude = code & 0x7f;
    let normal = f32::from_bits((magnitude << 20) + BIAS);
    let size = if magnitude < 8 { magnitude as f32 * STEP } else { normal };
    let size = if magnitude == 0x7f { f32::NAN } else { size };
    f32::from_bits(size.to_bits() | (code & 0x80) << 24)
}

/// An 8-bit power of two, `2^(code - 127)`; the largest code stands for NaN.
pub fn f32_from_e8m0(code: u8) -> f32 {
    match code {
        0 => f32::from_bits(1 << 22),
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(code) << 23),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    fn both(check: impl Fn(Isa)) {
        crate::noise::isas().into_iter().for_each(check);
    }

    fn samples() -> Vec<f32> {
        let special = [0.0, -0.0, 1.0, 65503.0, 65504.0, 65519.99, 5.96e-8, 2.98e-8, 6.1e-5, 1e-45];
        let spread = (0..1_000_000_u32).map(|i| f32::from_bits(i.wrapping_mul(4_294_967)));
        special.into_iter().chain(spread).collect()
    }

    #[test]
    fn every_f16_and_bf16_widens_to_the_value_that_half_says() {
        let all: Vec<u16> = (0..=u16::MAX).collect();
        both(|isa| {
            let mut wide = vec![0.0; all.len()];
            widen_on::<F16>(isa, bytemuck::cast_slice(&all), &mut wide);
            for (&h, &x) in all.iter().zip(&wide) {
                let want = f16::from_bits(h);
                assert!(x.to_bits() == want.to_f32().to_bits() || (x.is_nan() && want.is_nan()));
            }
            widen_on::<BF16>(isa, bytemuck::cast_slice(&all), &mut wide);
            for (&h, &x) in all.iter().zip(&wide) {
                let want = bf16::from_bits(h);
                assert!(x.to_bits() == want.to_f32().to_bits() || (x.is_nan() && want.is_nan()));
            }
        });
    }

    #[test]
    fn narrowing_rounds_as_half_does_and_saturates() {
        let samples = samples();
        both(|isa| {
            let mut narrow = vec![0; samples.len()];
            let count = narrow_f16_on(isa, &samples, &mut narrow);
            let overflow = |x: f32| !x.is_nan() && f16::from_f32(x).is_infinite();
            assert_eq!(count, samples.iter().filter(|&&x| overflow(x)).count());
            for (&x, &h) in samples.iter().zip(&narrow) {
                let got = f16::from_bits(h);
                let want = f16::from_f32(x);
                if overflow(x) {
                    assert_eq!(got.to_f32(), 65504_f32.copysign(x));
                } else {
                    assert!(got.to_bits() == want.to_bits() || (x.is_nan() && got.is_nan()), "{x}");
                }
            }
            narrow_bf16_on(isa, &samples, &mut narrow);
            for (&x, &h) in samples.iter().zip(&narrow) {
                let (got, want) = (bf16::from_bits(h), bf16::from_f32(x));
                assert!(got.to_bits() == want.to_bits() || (x.is_nan() && got.is_nan()), "{x}");
            }
        });
    }

    #[test]
    fn an_infinite_value_saturates_and_counts() {
        let mut narrow = [0; 3];
        let count = narrow_f16(&[f32::INFINITY, f32::NEG_INFINITY, f32::NAN], &mut narrow);
        assert_eq!(count, 2);
        assert_eq!(narrow[..2], [0x7bff, 0xfbff]);
        assert!(f16::from_bits(narrow[2]).is_nan());
    }

    #[test]
    fn every_8_bit_float_is_what_its_bits_say() {
        for code in 0..=255_u8 {
            let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
            let size = match (exponent, code & 7) {
                (15, 7) => f32::NAN,
                (0, _) => mantissa / 8.0 * 2.0_f32.powi(-6),
                _ => (1.0 + mantissa / 8.0) * 2.0_f32.powi(exponent - 7),
            };
            let want = if code < 128 { size } else { -size };
            let got = f32_from_e4m3(code);
            assert!(got == want || got.is_nan() && want.is_nan(), "{code}: {got}, not {want}");
            let power = f32_from_e8m0(code);
            let want = 2.0_f64.powi(i32::from(code) - 127);
            assert!(f64::from(power) == want || code == 255 && power.is_nan(), "{code}: {power}");
        }
    }
}
