//! The strip in plain Rust, one product after the other.

use super::Weights;
use crate::isa::Isa;
use crate::lanes::{LANES, Lanes};
use crate::quantized::Row;

/// Adds to the sums of `R` rows all pieces of a tile.
pub(super) fn strip<const R: usize>(
    sums: &mut [Lanes; R],
    weights: &Weights<'_>,
    x: &[Row<'_>; R],
) {
    debug_assert!(!weights.packed, "codes lie one to a byte");
    let len = weights.piece_len();
    for (i, codes) in weights.steps.chunks_exact(len).enumerate() {
        let (block, part) = (i / weights.pieces, i % weights.pieces);
        let group = i >> weights.group_shift;
        let scales = weights.groups.scales(Isa::PLAIN, group);
        let mins = weights.groups.mins(Isa::PLAIN, group);
        for r in 0..R {
            let (row, sum) = (&x[r][block], weights.pieces - 1 + part);
            let integers = &row.q[part * len * 4..(part + 1) * len * 4];
            for lane in 0..LANES {
                let products = integers
                    .iter()
                    .enumerate()
                    .map(|(k, &x)| i32::from(codes[k / 4][lane * 4 + k % 4]) * i32::from(x));
                let dot = (products.sum::<i32>() - weights.zero * row.sums[sum]) as f32;
                sums[r][lane] = dot.mul_add(scales[lane] * row.scale, sums[r][lane]);
                if let Some(mins) = mins {
                    sums[r][lane] = mins[lane].mul_add(row.scaled[sum], sums[r][lane]);
                }
            }
        }
    }
}
