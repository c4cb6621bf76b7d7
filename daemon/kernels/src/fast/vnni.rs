//! The strip for AVX-512 with the dot-product extension.
//!
//! `vpdpbusd` multiplies unsigned codes by signed activations and adds four products into each of
//! sixteen lanes. Even and odd steps have sums of their own, so that one instruction need not wait
//! for the last.

use std::arch::x86_64::*;

use super::Weights;
use crate::code::Step;
use crate::isa::{Isa, Kind};
use crate::lanes::Lanes;
use crate::quantized::{Row, Scaled};

/// What f16 scales are widened with.
const ISA: Isa = Isa(Kind::Vnni);

/// Adds to the sums of `R` rows all pieces of a tile.
#[target_feature(enable = "avx512f,avx512vnni")]
pub(super) fn strip<const R: usize>(
    sums: &mut [Lanes; R],
    weights: &Weights<'_>,
    x: &[Row<'_>; R],
) {
    let len = weights.piece_len();
    let mut held = [_mm512_setzero_ps(); R];
    for (i, codes) in weights.steps.chunks_exact(len).enumerate() {
        let (block, part) = (i / weights.pieces, i % weights.pieces);
        let rows: [&Scaled; R] = std::array::from_fn(|r| &x[r][block]);
        let dots = dot(codes, &rows, part * len);
        let (group, sum) = (i >> weights.group_shift, weights.pieces - 1 + part);
        let scales: __m512 = bytemuck::cast(weights.groups.scales(ISA, group));
        let mins = weights.groups.mins(ISA, group).map(bytemuck::cast::<Lanes, __m512>);
        for r in 0..R {
            let zero = _mm512_set1_epi32(weights.zero * rows[r].sums[sum]);
            let dot = _mm512_cvtepi32_ps(_mm512_sub_epi32(dots[r], zero));
            let scale = _mm512_mul_ps(scales, _mm512_set1_ps(rows[r].scale));
            held[r] = _mm512_fmadd_ps(dot, scale, held[r]);
            if let Some(mins) = mins {
                held[r] = _mm512_fmadd_ps(mins, _mm512_set1_ps(rows[r].scaled[sum]), held[r]);
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
fn dot<const R: usize>(codes: &[Step], x: &[&Scaled; R], step: usize) -> [__m512i; R] {
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
