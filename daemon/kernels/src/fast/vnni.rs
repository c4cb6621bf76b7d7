//! The strip for AVX-512 with the dot-product extension.
//!
//! `vpdpbusd` multiplies unsigned codes by signed activations and adds four products into each of
//! sixteen lanes. Four rows pass over two tiles at once: eight sums that need not wait for each
//! other, of which a step loads six vectors.

use std::arch::x86_64::*;

use super::Weights;
use crate::code::Step;
use crate::convert::{BF16, F16};
use crate::isa::{Isa, Kind};
use crate::lanes::Lanes;
use crate::matrix::{Groups, Of, Scale};
use crate::quantized::{Row, Scaled};

/// What f16 scales are widened with.
const ISA: Isa = Isa(Kind::Vnni);

/// Adds to the sums of `R` rows all pieces of `T` tiles, which are of one format.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub(super) fn strip<const R: usize, const T: usize>(
    sums: &mut [[Lanes; R]; T],
    tiles: &[&Weights<'_>; T],
    x: &[Row<'_>; R],
) {
    match tiles[0].groups {
        Groups::F32(_) => strip_of::<R, T, f32>(sums, tiles, x),
        Groups::F16(_) => strip_of::<R, T, F16>(sums, tiles, x),
        Groups::BF16(_) => strip_of::<R, T, BF16>(sums, tiles, x),
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn strip_of<const R: usize, const T: usize, E: Scale>(
    sums: &mut [[Lanes; R]; T],
    tiles: &[&Weights<'_>; T],
    x: &[Row<'_>; R],
) {
    let groups = tiles.map(|tile| E::of(&tile.groups).expect("tiles of one format"));
    match (tiles[0].groups.has_mins(), tiles[0].packed) {
        (true, true) => add::<R, T, true, true, false, E>(sums, tiles, &groups, x),
        (false, true) if tiles[0].bits > 4 => {
            add::<R, T, false, true, true, E>(sums, tiles, &groups, x)
        }
        (false, true) => add::<R, T, false, true, false, E>(sums, tiles, &groups, x),
        (true, false) => add::<R, T, true, false, false, E>(sums, tiles, &groups, x),
        (false, false) => add::<R, T, false, false, false, E>(sums, tiles, &groups, x),
    }
}

/// The same with minima where `MIN` says so, of codes that lie two in a byte where `PACKED`, and
/// stand for a table's entries where `TABLE`.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn add<
    const R: usize,
    const T: usize,
    const MIN: bool,
    const PACKED: bool,
    const TABLE: bool,
    E: Scale,
>(
    sums: &mut [[Lanes; R]; T],
    tiles: &[&Weights<'_>; T],
    groups: &[Of<'_, E>; T],
    x: &[Row<'_>; R],
) {
    let (zero, pieces, len) = (tiles[0].zero, tiles[0].pieces, tiles[0].piece_len());
    let mut held = [[_mm512_setzero_ps(); R]; T];
    for i in 0..tiles[0].steps.len() / len {
        let (block, part) = if pieces == 1 { (i, 0) } else { (i / 2, i % 2) };
        let mut rows: [&Scaled; R] = [&x[0][block]; R];
        for r in 0..R {
            rows[r] = &x[r][block];
        }
        let mut codes: [&[Step]; T] = [&[]; T];
        for t in 0..T {
            codes[t] = &tiles[t].steps[i * len..(i + 1) * len];
        }
        let mut dots = match PACKED {
            true => packed::<R, T, TABLE>(&codes, tiles[0].entries, &rows),
            false => dot::<R, T>(&codes, &rows, part * len),
        };
        let (group, sum) = (i >> tiles[0].group_shift, pieces - 1 + part);
        if zero != 0 {
            for r in 0..R {
                let zero = _mm512_set1_epi32(zero * rows[r].sums[sum]);
                for t in 0..T {
                    dots[t][r] = _mm512_sub_epi32(dots[t][r], zero);
                }
            }
        }
        for t in 0..T {
            let scales: __m512 = bytemuck::cast(E::widen(ISA, &groups[t].scales[group]));
            for r in 0..R {
                let scale = _mm512_mul_ps(scales, _mm512_set1_ps(rows[r].scale));
                held[t][r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[t][r]), scale, held[t][r]);
            }
            if MIN {
                let mins: __m512 = bytemuck::cast(E::widen(ISA, &groups[t].mins[group]));
                for r in 0..R {
                    let offset = _mm512_set1_ps(rows[r].scaled[sum]);
                    held[t][r] = _mm512_fmadd_ps(mins, offset, held[t][r]);
                }
            }
        }
    }
    for t in 0..T {
        for r in 0..R {
            sums[t][r] = bytemuck::cast(held[t][r]);
        }
    }
}

/// The integer dot products of a piece. How many steps it has is not known when this is compiled:
/// unrolled, the loop would be turned inside out and the codes loaded again for each row.
#[target_feature(enable = "avx512f,avx512vnni")]
#[inline]
fn dot<const R: usize, const T: usize>(
    codes: &[&[Step]; T],
    x: &[&Scaled; R],
    step: usize,
) -> [[__m512i; R]; T] {
    let mut sums = [[_mm512_setzero_si512(); R]; T];
    let len = codes[0].len();
    let mut rows: [&[[i8; 4]]; R] = [&[]; R];
    for r in 0..R {
        rows[r] = &x[r].q.as_chunks().0[step..step + len];
    }
    for s in 0..len {
        let mut loaded = [_mm512_setzero_si512(); T];
        for t in 0..T {
            loaded[t] = bytemuck::cast(codes[t][s]);
        }
        for r in 0..R {
            let x = four(rows[r][s]);
            for t in 0..T {
                sums[t][r] = _mm512_dpbusd_epi32(sums[t][r], loaded[t], x);
            }
        }
    }
    sums
}

/// The same of a block whose codes lie two in a byte; they stand for `entries` where `TABLE`.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
#[inline]
fn packed<const R: usize, const T: usize, const TABLE: bool>(
    codes: &[&[Step]; T],
    entries: [u8; 16],
    x: &[&Scaled; R],
) -> [[__m512i; R]; T] {
    let mut sums = [[_mm512_setzero_si512(); R]; T];
    let len = codes[0].len();
    let mut rows: [[&[[i8; 4]]; 2]; R] = [[&[]; 2]; R];
    for r in 0..R {
        let (low, high) = x[r].q.as_chunks().0.split_at(len);
        rows[r] = [low, &high[..len]];
    }
    let mask = _mm512_set1_epi8(15);
    let entries = _mm512_broadcast_i32x4(bytemuck::cast(entries));
    for s in 0..len {
        for t in 0..T {
            let codes: __m512i = bytemuck::cast(codes[t][s]);
            let mut halves = [codes, _mm512_srli_epi16::<4>(codes)];
            for (half, codes) in halves.iter_mut().enumerate() {
                *codes = _mm512_and_si512(*codes, mask);
                if TABLE {
                    *codes = _mm512_shuffle_epi8(entries, *codes);
                }
                for r in 0..R {
                    sums[t][r] = _mm512_dpbusd_epi32(sums[t][r], *codes, four(rows[r][half][s]));
                }
            }
        }
    }
    sums
}

/// Four activations in every lane.
#[target_feature(enable = "avx512f")]
#[inline]
fn four(x: [i8; 4]) -> __m512i {
    _mm512_set1_epi32(bytemuck::cast(x))
}
