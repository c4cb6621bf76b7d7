//! The strip in plain Rust, one product after the other.

use super::Weights;
use crate::code::STEPS;
use crate::lanes::{LANES, Lanes};
use crate::quantized::{Piece, Row};

/// Adds to the sums of `R` rows all pieces of a tile.
pub(super) fn strip<const R: usize>(
    sums: &mut [Lanes; R],
    weights: &Weights<'_>,
    x: &[Row<'_>; R],
) {
    debug_assert!(!weights.packed, "codes lie one to a byte");
    for (i, codes) in weights.steps.chunks_exact(weights.piece).enumerate() {
        let step = i * weights.piece;
        let group = step >> weights.group_shift;
        for r in 0..R {
            let row = &x[r].blocks[step / STEPS];
            let integers = &x[r].q[step * 4..(step + weights.piece) * 4];
            let piece = Piece::at(step, weights.piece);
            let (zero, offset) = (weights.zero * row.sum(piece), row.scaled_sum(piece));
            for lane in 0..LANES {
                let products = integers
                    .iter()
                    .enumerate()
                    .map(|(k, &x)| i32::from(codes[k / 4][lane * 4 + k % 4]) * i32::from(x));
                let dot = (products.sum::<i32>() - zero) as f32;
                let scale = weights.scales[group][lane] * row.scale;
                sums[r][lane] = dot.mul_add(scale, sums[r][lane]);
                if let Some(mins) = weights.mins.get(group) {
                    sums[r][lane] = mins[lane].mul_add(offset, sums[r][lane]);
                }
            }
        }
    }
}
