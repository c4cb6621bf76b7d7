//! Sixteen lanes: the unit of vectorisation and the fixed tree of every row reduction.
//!
//! Sixteen f32 are one AVX-512, two AVX2 or four NEON registers. A reduction along a row adds
//! element `i` into lane `i % 16` in ascending order; the lanes are then folded by halves
//! (8 + 8, 4 + 4, 2 + 2, 1 + 1), so the order never depends on the width of the hardware.

use crate::isa::Isa;

/// Lanes of a reduction, and rows of a weight tile.
pub const LANES: usize = 16;

/// One value per lane.
pub type Lanes = [f32; LANES];

/// Folds the lanes by halves: the last step of every row reduction.
#[inline(always)]
pub fn tree(lanes: Lanes, join: impl Fn(f32, f32) -> f32) -> f32 {
    let (mut eight, mut four) = ([0.0; 8], [0.0; 4]);
    for i in 0..8 {
        eight[i] = join(lanes[i], lanes[i + 8]);
    }
    for i in 0..4 {
        four[i] = join(eight[i], eight[i + 4]);
    }
    join(join(four[0], four[2]), join(four[1], four[3]))
}

/// The sum of the lanes.
#[inline(always)]
pub fn sum(lanes: Lanes) -> f32 {
    tree(lanes, |a, b| a + b)
}

/// Folds a row of any length into lanes: `step(lane, element)` in ascending order.
#[inline(always)]
pub fn fold(row: &[f32], start: f32, step: impl Fn(f32, f32) -> f32) -> Lanes {
    let mut lanes = [start; LANES];
    let (chunks, rest) = row.as_chunks::<LANES>();
    for chunk in chunks {
        for i in 0..LANES {
            lanes[i] = step(lanes[i], chunk[i]);
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(rest) {
        *lane = step(*lane, x);
    }
    lanes
}

/// The larger of two numbers; the first when they do not compare. One instruction, unlike `f32::max`.
#[inline(always)]
pub fn larger(a: f32, b: f32) -> f32 {
    if b > a { b } else { a }
}

/// The largest element of a row, or `-inf` for an empty one. The order cannot matter.
#[inline(always)]
pub fn max(row: &[f32]) -> f32 {
    tree(fold(row, f32::NEG_INFINITY, larger), larger)
}

/// Applies `f` to every element of a row, in lanes so that the compiler vectorises it.
#[inline(always)]
pub fn map(row: &mut [f32], f: impl Fn(f32) -> f32) {
    let (chunks, rest) = row.as_chunks_mut::<LANES>();
    for chunk in chunks {
        for x in chunk {
            *x = f(*x);
        }
    }
    for x in rest {
        *x = f(*x);
    }
}

/// Sixteen weights for each `k`.
pub(crate) trait Columns {
    /// How many `k` there are.
    fn len(&self) -> usize;

    /// The weights of one `k`.
    fn at(&self, isa: Isa, k: usize) -> Lanes;
}

impl Columns for &[Lanes] {
    #[inline(always)]
    fn len(&self) -> usize {
        <[Lanes]>::len(self)
    }

    #[inline(always)]
    fn at(&self, _isa: Isa, k: usize) -> Lanes {
        self[k]
    }
}

/// `sums[r][i] = fma(x[r][k], weights[k][i], sums[r][i])` over ascending `k`: the one inner loop of
/// products and of attention. `R` rows by sixteen outputs stay in registers.
///
/// Each `x[r]` must hold at least as many elements as there are weights.
#[inline(always)]
pub(crate) fn strip<C: Columns, const R: usize>(
    isa: Isa,
    sums: &mut [Lanes; R],
    weights: &C,
    x: &[&[f32]; R],
) {
    let len = weights.len();
    let mut rows: [&[f32]; R] = [&[]; R];
    for r in 0..R {
        rows[r] = &x[r][..len];
    }
    let mut held = *sums;
    for k in 0..len {
        let weights = weights.at(isa, k);
        for r in 0..R {
            for i in 0..LANES {
                held[r][i] = rows[r][k].mul_add(weights[i], held[r][i]);
            }
        }
    }
    *sums = held;
}

/// The same with thirty-two outputs: for few rows, whose sums leave registers free.
#[inline(always)]
pub(crate) fn strip_pair<C: Columns, const R: usize>(
    isa: Isa,
    sums: &mut [[Lanes; 2]; R],
    weights: &[C; 2],
    x: &[&[f32]; R],
) {
    let len = weights[0].len();
    let mut rows: [&[f32]; R] = [&[]; R];
    for r in 0..R {
        rows[r] = &x[r][..len];
    }
    let mut held = *sums;
    for k in 0..len {
        for half in 0..2 {
            let weights = weights[half].at(isa, k);
            for r in 0..R {
                for i in 0..LANES {
                    held[r][half][i] = rows[r][k].mul_add(weights[i], held[r][half][i]);
                }
            }
        }
    }
    *sums = held;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_adds_halves() {
        let mut lanes = [0.0; LANES];
        lanes[0] = 1e8;
        lanes[8] = -1e8;
        lanes[1] = 1.0;
        assert_eq!(sum(lanes), 1.0);
        let exact: Lanes = std::array::from_fn(|i| i as f32);
        assert_eq!(sum(exact), 120.0);
    }

    #[test]
    fn a_row_that_is_no_multiple_of_sixteen_folds_its_rest_into_the_first_lanes() {
        let row: Vec<f32> = (0..19).map(|i| i as f32).collect();
        let lanes = fold(&row, 0.0, |sum, x| sum + x);
        assert_eq!(lanes[..4], [16.0, 18.0, 20.0, 3.0]);
        assert_eq!(sum(lanes), 171.0);
    }

    #[test]
    fn the_maximum_of_nothing_is_minus_infinity() {
        assert_eq!(max(&[]), f32::NEG_INFINITY);
        assert_eq!(max(&[-3.0, -1.0, -2.0]), -1.0);
    }
}
