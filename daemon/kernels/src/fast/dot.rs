//! Dot products of codes and 8-bit activations: exact integers, by whatever instruction there is.

use crate::code::Step;
use crate::isa::{Isa, Kind};
use crate::lanes::LANES;

/// What [`dot`] subtracts from every code, because the processor likes it so.
#[inline(always)]
pub(super) fn base(_isa: Isa, bits: u8) -> i32 {
    if bits == 8 { 128 } else { 0 }
}

/// `sums[r][lane] = sum over k of (codes[k / 4][lane][k % 4] - base) * x[r][k]` for codes below
/// `2^BITS` and activations in `-127..=127`; each `x[r]` has four values for each step.
#[inline(always)]
pub(super) fn dot<const R: usize, const BITS: u8>(
    isa: Isa,
    codes: &[Step],
    x: &[&[i8]; R],
) -> [[i32; LANES]; R] {
    match isa.0 {
        Kind::Plain => plain(codes, x, base(isa, BITS)),
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2 => {
            // SAFETY: an `Isa` of this kind only comes from `best`, which has looked.
            #[expect(unsafe_code, reason = "calls a kernel for detected features")]
            unsafe {
                avx2::dot::<R, BITS>(codes, x)
            }
        }
    }
}

#[inline(always)]
fn plain<const R: usize>(codes: &[Step], x: &[&[i8]; R], base: i32) -> [[i32; LANES]; R] {
    let mut sums = [[0; LANES]; R];
    for (s, step) in codes.iter().enumerate() {
        for r in 0..R {
            for lane in 0..LANES {
                for k in 0..4 {
                    let code = i32::from(step[lane * 4 + k]) - base;
                    sums[r][lane] += code * i32::from(x[r][s * 4 + k]);
                }
            }
        }
    }
    sums
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    use crate::code::Step;
    use crate::lanes::LANES;

    /// How many sums of two products of a code and an activation fit into 16 bits.
    const fn depth(bits: u8) -> usize {
        i16::MAX as usize / (2 * 127 * ((1 << bits) - 1))
    }

    /// Both halves of sixteen lanes.
    type Pair = [__m256i; 2];

    #[target_feature(enable = "avx2")]
    #[inline]
    pub(super) fn dot<const R: usize, const BITS: u8>(
        codes: &[Step],
        x: &[&[i8]; R],
    ) -> [[i32; LANES]; R] {
        let mut sums = [[_mm256_setzero_si256(); 2]; R];
        if BITS == 8 {
            bytes(codes, x, &mut sums);
        } else {
            let mut start = 0;
            for codes in codes.chunks(depth(BITS)) {
                shallow(codes, x, start, &mut sums);
                start += codes.len();
            }
        }
        sums.map(|sums| bytemuck::cast(sums))
    }

    /// Few enough steps that sums of 16 bits do not overflow.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn shallow<const R: usize>(codes: &[Step], x: &[&[i8]; R], start: usize, sums: &mut [Pair; R]) {
        let mut short = [[_mm256_setzero_si256(); 2]; R];
        for (s, step) in codes.iter().enumerate() {
            let codes = load(step);
            for r in 0..R {
                let x = four(x[r], start + s);
                for half in 0..2 {
                    let products = _mm256_maddubs_epi16(codes[half], x);
                    short[r][half] = _mm256_add_epi16(short[r][half], products);
                }
            }
        }
        let ones = _mm256_set1_epi16(1);
        for r in 0..R {
            for half in 0..2 {
                let wide = _mm256_madd_epi16(short[r][half], ones);
                sums[r][half] = _mm256_add_epi32(sums[r][half], wide);
            }
        }
    }

    /// Signed codes of 8 bits: `q * x = |q| * (x with the sign of q)`, and a sum of two such products
    /// just fits into 16 bits.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn bytes<const R: usize>(codes: &[Step], x: &[&[i8]; R], sums: &mut [Pair; R]) {
        let ones = _mm256_set1_epi16(1);
        for (s, step) in codes.iter().enumerate() {
            let signed = load(step).map(|codes| _mm256_xor_si256(codes, _mm256_set1_epi8(-128)));
            let size = signed.map(|signed| _mm256_abs_epi8(signed));
            for r in 0..R {
                let x = four(x[r], s);
                for half in 0..2 {
                    let x = _mm256_sign_epi8(x, signed[half]);
                    let products = _mm256_maddubs_epi16(size[half], x);
                    let wide = _mm256_madd_epi16(products, ones);
                    sums[r][half] = _mm256_add_epi32(sums[r][half], wide);
                }
            }
        }
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    fn load(step: &Step) -> Pair {
        bytemuck::cast(*step)
    }

    /// Four activations in every lane.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn four(x: &[i8], s: usize) -> __m256i {
        let four = x.as_chunks::<4>().0[s].map(|x| x as u8);
        _mm256_set1_epi32(i32::from_le_bytes(four))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::isas;

    /// Largest codes and activations, where 16-bit sums would overflow first.
    #[test]
    fn extremes_are_exact_in_every_instantiation() {
        for isa in isas() {
            extremes::<4>(isa);
            extremes::<5>(isa);
            extremes::<6>(isa);
            extremes::<8>(isa);
        }
    }

    fn extremes<const BITS: u8>(isa: Isa) {
        for code in [0, 1, (1_u16 << (BITS - 1)) as u8, ((1_u16 << BITS) - 1) as u8] {
            for x in [-127_i8, -1, 127] {
                let dots = dot::<1, BITS>(isa, &[[code; 64]; 8], &[&[x; 32]]);
                let want = 32 * (i32::from(code) - base(isa, BITS)) * i32::from(x);
                assert_eq!(dots, [[want; LANES]], "{code} of {BITS} bits by {x}, {isa:?}");
            }
        }
    }
}
