//! The strip for AVX2 and FMA.
//!
//! `vpmaddubsw` multiplies unsigned codes by signed activations and adds pairs of products into 16
//! bits. Codes of a few bits leave room there for several such sums, so that widening to 32 bits
//! is rare.

use std::arch::x86_64::*;

use super::Weights;
use crate::code::{STEPS, Step};
use crate::convert::Narrow;
use crate::isa::{Isa, Kind};
use crate::lanes::Lanes;
use crate::matrix::{Groups, Of};
use crate::quantized::{Row, Scaled};

/// What f16 scales are widened with.
const ISA: Isa = Isa(Kind::Avx2);

/// Eight lanes and the other eight.
type Pair<V> = [V; 2];

/// Adds to the sums of `R` rows all pieces of a tile.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn strip<const R: usize>(
    sums: &mut [Lanes; R],
    weights: &Weights<'_>,
    x: &[Row<'_>; R],
) {
    match &weights.groups {
        Groups::F32(groups) => strip_of(sums, weights, groups, x),
        Groups::F16(groups) => strip_of(sums, weights, groups, x),
        Groups::BF16(groups) => strip_of(sums, weights, groups, x),
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn strip_of<const R: usize, E: Narrow>(
    sums: &mut [Lanes; R],
    weights: &Weights<'_>,
    groups: &Of<'_, E>,
    x: &[Row<'_>; R],
) {
    match (weights.bits, !groups.mins.is_empty(), weights.packed) {
        (..=4, true, true) => add::<R, 4, true, true, E>(sums, weights, groups, x),
        (..=4, false, true) => add::<R, 4, false, true, E>(sums, weights, groups, x),
        (..=4, true, _) => add::<R, 4, true, false, E>(sums, weights, groups, x),
        (..=4, false, _) => add::<R, 4, false, false, E>(sums, weights, groups, x),
        (5, false, true) => add::<R, 5, false, true, E>(sums, weights, groups, x),
        (5, true, _) => add::<R, 5, true, false, E>(sums, weights, groups, x),
        (5, false, _) => add::<R, 5, false, false, E>(sums, weights, groups, x),
        (6, true, _) => add::<R, 6, true, false, E>(sums, weights, groups, x),
        (6, false, _) => add::<R, 6, false, false, E>(sums, weights, groups, x),
        (_, true, _) => add::<R, 8, true, false, E>(sums, weights, groups, x),
        (_, false, _) => add::<R, 8, false, false, E>(sums, weights, groups, x),
    }
}

/// The same for codes below `2^BITS`, with minima where `MIN` says so; `PACKED` ones lie two in a
/// byte.
#[target_feature(enable = "avx2,fma,f16c")]
fn add<const R: usize, const BITS: u8, const MIN: bool, const PACKED: bool, E: Narrow>(
    sums: &mut [Lanes; R],
    weights: &Weights<'_>,
    groups: &Of<'_, E>,
    x: &[Row<'_>; R],
) {
    // Signed codes of 8 bits have lost 128 already.
    let zero = weights.zero - if BITS == 8 { 128 } else { 0 };
    let (pieces, len) = (weights.pieces, weights.piece_len());
    let mut held = [[_mm256_setzero_ps(); 2]; R];
    for (i, codes) in weights.steps.chunks_exact(len).enumerate() {
        let (block, part) = if pieces == 1 { (i, 0) } else { (i / 2, i % 2) };
        let mut rows: [&Scaled; R] = [&x[0][block]; R];
        for r in 0..R {
            rows[r] = &x[r][block];
        }
        let mut dots = match PACKED {
            true => packed::<R, BITS>(codes, weights.entries, &rows),
            false => dot::<R, BITS>(codes, &rows, part * len),
        };
        let (group, sum) = (i >> weights.group_shift, pieces - 1 + part);
        if zero != 0 {
            for r in 0..R {
                let zero = _mm256_set1_epi32(zero * rows[r].sums[sum]);
                dots[r] = [_mm256_sub_epi32(dots[r][0], zero), _mm256_sub_epi32(dots[r][1], zero)];
            }
        }
        let scales = pair(&E::widen(ISA, &groups.scales[group]));
        for r in 0..R {
            let scale = _mm256_set1_ps(rows[r].scale);
            for half in 0..2 {
                let dot = _mm256_cvtepi32_ps(dots[r][half]);
                let scale = _mm256_mul_ps(scales[half], scale);
                held[r][half] = _mm256_fmadd_ps(dot, scale, held[r][half]);
            }
        }
        if MIN {
            let mins = pair(&E::widen(ISA, &groups.mins[group]));
            for r in 0..R {
                let offset = _mm256_set1_ps(rows[r].scaled[sum]);
                for half in 0..2 {
                    held[r][half] = _mm256_fmadd_ps(mins[half], offset, held[r][half]);
                }
            }
        }
    }
    for r in 0..R {
        sums[r] = bytemuck::cast(held[r]);
    }
}

/// The integer dot products of a piece; of signed codes `u - 128` for 8 bits.
///
/// How many steps there are is not known when this is compiled: unrolled, the loop would be turned
/// inside out, row by row, and the codes loaded again for each.
#[target_feature(enable = "avx2")]
#[inline]
fn dot<const R: usize, const BITS: u8>(
    codes: &[Step],
    x: &[&Scaled; R],
    step: usize,
) -> [Pair<__m256i>; R] {
    let mut sums = [[_mm256_setzero_si256(); 2]; R];
    let mut rows: [&[[i8; 4]]; R] = [&[]; R];
    for r in 0..R {
        rows[r] = &x[r].q.as_chunks().0[step..step + codes.len()];
    }
    if BITS == 8 {
        bytes(codes, &rows, &mut sums);
        return sums;
    }
    let mut short = sums;
    for s in 0..codes.len() {
        let codes = load(&codes[s]);
        for r in 0..R {
            let x = four(rows[r][s]);
            for half in 0..2 {
                let products = _mm256_maddubs_epi16(codes[half], x);
                short[r][half] = _mm256_add_epi16(short[r][half], products);
            }
        }
        if depth(BITS) < STEPS && (s + 1) % depth(BITS) == 0 {
            widen(&mut sums, &mut short);
        }
    }
    widen(&mut sums, &mut short);
    sums
}

/// The integer dot products of a block whose codes lie two in a byte; codes below `2^BITS` stand
/// in their places where there are `entries`.
#[target_feature(enable = "avx2")]
#[inline]
fn packed<const R: usize, const BITS: u8>(
    codes: &[Step],
    entries: [u8; 16],
    x: &[&Scaled; R],
) -> [Pair<__m256i>; R] {
    let (mut sums, mut short) =
        ([[_mm256_setzero_si256(); 2]; R], [[_mm256_setzero_si256(); 2]; R]);
    let mut rows: [[&[[i8; 4]]; 2]; R] = [[&[]; 2]; R];
    for r in 0..R {
        let (low, high) = x[r].q.as_chunks().0.split_at(codes.len());
        rows[r] = [low, &high[..codes.len()]];
    }
    let mask = _mm256_set1_epi8(15);
    let entries = _mm256_broadcastsi128_si256(bytemuck::cast(entries));
    for s in 0..codes.len() {
        let codes = load(&codes[s]);
        for half in 0..2 {
            let mut low = _mm256_and_si256(codes[half], mask);
            let mut high = _mm256_and_si256(_mm256_srli_epi16::<4>(codes[half]), mask);
            if BITS > 4 {
                low = _mm256_shuffle_epi8(entries, low);
                high = _mm256_shuffle_epi8(entries, high);
            }
            for r in 0..R {
                let products = _mm256_add_epi16(
                    _mm256_maddubs_epi16(low, four(rows[r][0][s])),
                    _mm256_maddubs_epi16(high, four(rows[r][1][s])),
                );
                short[r][half] = _mm256_add_epi16(short[r][half], products);
            }
        }
        // A step adds two such sums.
        if depth(BITS) < STEPS && (2 * s + 2) % depth(BITS) == 0 {
            widen(&mut sums, &mut short);
        }
    }
    widen(&mut sums, &mut short);
    sums
}

/// How many sums of two products of a code and an activation fit into 16 bits.
const fn depth(bits: u8) -> usize {
    i16::MAX as usize / (2 * 127 * ((1 << bits) - 1))
}

/// Moves sums of 16 bits into those of 32.
#[target_feature(enable = "avx2")]
#[inline]
fn widen<const R: usize>(sums: &mut [Pair<__m256i>; R], short: &mut [Pair<__m256i>; R]) {
    let ones = _mm256_set1_epi16(1);
    for r in 0..R {
        for half in 0..2 {
            let wide = _mm256_madd_epi16(short[r][half], ones);
            sums[r][half] = _mm256_add_epi32(sums[r][half], wide);
            short[r][half] = _mm256_setzero_si256();
        }
    }
}

/// Signed codes of 8 bits: `q * x = |q| * (x with the sign of q)`, and a sum of two such products
/// just fits into 16 bits.
#[target_feature(enable = "avx2")]
#[inline]
fn bytes<const R: usize>(codes: &[Step], x: &[&[[i8; 4]]; R], sums: &mut [Pair<__m256i>; R]) {
    let (ones, top) = (_mm256_set1_epi16(1), _mm256_set1_epi8(-128));
    for s in 0..codes.len() {
        let codes = load(&codes[s]);
        let signed = [_mm256_xor_si256(codes[0], top), _mm256_xor_si256(codes[1], top)];
        for r in 0..R {
            let x = four(x[r][s]);
            for half in 0..2 {
                let x = _mm256_sign_epi8(x, signed[half]);
                let products = _mm256_maddubs_epi16(_mm256_abs_epi8(signed[half]), x);
                let wide = _mm256_madd_epi16(products, ones);
                sums[r][half] = _mm256_add_epi32(sums[r][half], wide);
            }
        }
    }
}

#[target_feature(enable = "avx2")]
#[inline]
fn load(step: &Step) -> Pair<__m256i> {
    bytemuck::cast(*step)
}

#[target_feature(enable = "avx2")]
#[inline]
fn pair(lanes: &Lanes) -> Pair<__m256> {
    bytemuck::cast(*lanes)
}

/// Four activations in every lane.
#[target_feature(enable = "avx2")]
#[inline]
fn four(x: [i8; 4]) -> __m256i {
    _mm256_set1_epi32(bytemuck::cast(x))
}
