//! The strip for aarch64 with the dot-product extension.
//!
//! `sdot` multiplies signed bytes and adds four products into each of four lanes; `usdot`, of a later
//! extension, does so with unsigned codes as they are. The compiler's intrinsics for them are not
//! stable, hence the lines of assembly.

use std::arch::aarch64::*;
use std::arch::asm;

use super::Weights;
use crate::code::Step;
use crate::isa::{Isa, Kind};
use crate::lanes::Lanes;
use crate::quantized::{Row, Scaled};

/// What f16 scales are widened with.
const ISA: Isa = Isa(Kind::Dot);

/// Sixteen lanes.
type Quads<V> = [V; 4];

/// Adds to the sums of `R` rows all pieces of a tile. `UNSIGNED` needs the second extension.
#[target_feature(enable = "neon,dotprod")]
pub(super) fn strip<const R: usize, const UNSIGNED: bool>(
    sums: &mut [Lanes; R],
    weights: &Weights<'_>,
    x: &[Row<'_>; R],
) {
    // Codes of 8 bits are made signed where they must be, which takes 128 away.
    let top = if weights.bits == 8 && !UNSIGNED { 128 } else { 0 };
    let zero = weights.zero - i32::from(top);
    let len = weights.piece_len();
    let mut held = [[vdupq_n_f32(0.0); 4]; R];
    for (i, codes) in weights.steps.chunks_exact(len).enumerate() {
        let (block, part) = (i / weights.pieces, i % weights.pieces);
        let rows: [&Scaled; R] = std::array::from_fn(|r| &x[r][block]);
        let dots = dot::<R, UNSIGNED>(codes, top, &rows, part * len);
        let (group, sum) = (i >> weights.group_shift, weights.pieces - 1 + part);
        let scales = quads(&weights.groups.scales(ISA, group));
        let mins = weights.groups.mins(ISA, group).map(|mins| quads(&mins));
        for r in 0..R {
            let zero = vdupq_n_s32(zero * rows[r].sums[sum]);
            for quad in 0..4 {
                let dot = vcvtq_f32_s32(vsubq_s32(dots[r][quad], zero));
                let scale = vmulq_n_f32(scales[quad], rows[r].scale);
                held[r][quad] = vfmaq_f32(held[r][quad], dot, scale);
                if let Some(mins) = mins {
                    held[r][quad] = vfmaq_n_f32(held[r][quad], mins[quad], rows[r].scaled[sum]);
                }
            }
        }
    }
    for r in 0..R {
        sums[r] = bytemuck::cast(held[r]);
    }
}

/// The integer dot products of a piece, of codes that `top` makes signed.
#[target_feature(enable = "neon,dotprod")]
#[inline]
fn dot<const R: usize, const UNSIGNED: bool>(
    codes: &[Step],
    top: u8,
    x: &[&Scaled; R],
    step: usize,
) -> [Quads<int32x4_t>; R] {
    let mut sums = [[vdupq_n_s32(0); 4]; R];
    let mut rows: [&[[i8; 4]]; R] = [&[]; R];
    for r in 0..R {
        rows[r] = &x[r].q.as_chunks().0[step..step + codes.len()];
    }
    for s in 0..codes.len() {
        let codes: Quads<uint8x16_t> = bytemuck::cast(codes[s]);
        for r in 0..R {
            let x = vreinterpretq_s8_s32(vdupq_n_s32(bytemuck::cast(rows[r][s])));
            for quad in 0..4 {
                sums[r][quad] = match UNSIGNED {
                    true => usdot(sums[r][quad], codes[quad], x),
                    false => sdot(sums[r][quad], veorq_u8(codes[quad], vdupq_n_u8(top)), x),
                };
            }
        }
    }
    sums
}

#[target_feature(enable = "neon,dotprod")]
#[inline]
fn sdot(mut sum: int32x4_t, a: uint8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: arithmetic on registers, with the instruction this function is compiled for.
    #[expect(unsafe_code, reason = "the intrinsic is not stable")]
    unsafe {
        asm!(
            "sdot {sum:v}.4s, {a:v}.16b, {b:v}.16b",
            sum = inout(vreg) sum,
            a = in(vreg) a,
            b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}

#[target_feature(enable = "neon")]
#[inline]
fn usdot(mut sum: int32x4_t, a: uint8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: arithmetic on registers, with an instruction that whoever asks for it has looked for.
    #[expect(unsafe_code, reason = "the intrinsic is not stable")]
    unsafe {
        asm!(
            ".arch_extension i8mm",
            "usdot {sum:v}.4s, {a:v}.16b, {b:v}.16b",
            sum = inout(vreg) sum,
            a = in(vreg) a,
            b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}

#[target_feature(enable = "neon")]
#[inline]
fn quads(lanes: &Lanes) -> Quads<float32x4_t> {
    bytemuck::cast(*lanes)
}
