//! The strip for AVX-512 with the dot-product extension.
//!
//! `vpdpbusd` multiplies unsigned codes by signed activations and adds four products into each of
//! sixteen lanes. Even and odd steps have sums of their own, so that one instruction need not wait
//! for the last.

use std::arch::x86_64::*;

use super::Weights;
use crate::code::{STEPS, Step};
use crate::lanes::Lanes;
use crate::quantized::{Piece, Row};

/// Adds to the sums of `R` rows all pieces of a tile.
#[target_feature(enable = "avx512f,avx512vnni")]
pub(super) fn strip<const R: usize>(
    sums: &mut [Lanes; R],
    weights: &Weights<'_>,
    x: &[Row<'_>; R],
) {
    let steps = weights.piece;
    let mut held = [_mm512_setzero_ps(); R];
    for step in (0..weights.steps.len()).step_by(steps) {
        let dots = dot(&weights.steps[step..step + steps], x, step);
        let (piece, group) = (Piece::at(step, steps), step >> weights.group_shift);
        let scales: __m512 = bytemuck::cast(weights.scales[group]);
        let mins = weights.mins.get(group).map(|mins| bytemuck::cast(*mins));
        for r in 0..R {
            let row = &x[r].blocks[step / STEPS];
            let zero = _mm512_set1_epi32(weights.zero * row.sum(piece));
            let dot = _mm512_cvtepi32_ps(_mm512_sub_epi32(dots[r], zero));
            let scale = _mm512_mul_ps(scales, _mm512_set1_ps(row.scale));
            held[r] = _mm512_fmadd_ps(dot, scale, held[r]);
            if let Some(mins) = mins {
                let offset = _mm512_set1_ps(row.scaled_sum(piece));
                held[r] = _mm512_fmadd_ps(mins, offset, held[r]);
            }
        }
    }
    for r in 0..R {
        sums[r] = bytemuck::cast(held[r]);
    }
}

/// The integer dot products of a piece, which has an even number of steps.
#[target_feature(enable = "avx512f,avx512vnni")]
#[inline]
fn dot<const R: usize>(codes: &[Step], x: &[Row<'_>; R], step: usize) -> [__m512i; R] {
    let mut sums = [[_mm512_setzero_si512(); 2]; R];
    let mut rows: [&[[[i8; 4]; 2]]; R] = [&[]; R];
    for r in 0..R {
        rows[r] = x[r].q.as_chunks::<4>().0[step..step + codes.len()].as_chunks().0;
    }
    for (s, codes) in codes.as_chunks::<2>().0.iter().enumerate() {
        for parity in 0..2 {
            let codes: __m512i = bytemuck::cast(codes[parity]);
            for r in 0..R {
                let x = _mm512_set1_epi32(bytemuck::cast(rows[r][s][parity]));
                sums[r][parity] = _mm512_dpbusd_epi32(sums[r][parity], codes, x);
            }
        }
    }
    let mut dots = [_mm512_setzero_si512(); R];
    for r in 0..R {
        dots[r] = _mm512_add_epi32(sums[r][0], sums[r][1]);
    }
    dots
}
