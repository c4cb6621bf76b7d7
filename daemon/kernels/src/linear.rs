//! The matrix product: `y[T][N] = x[T][K] W^T (+ bias[N])`.
//!
//! Each output is one chain of fused multiply-adds from 0 over ascending `k`, then its bias is
//! added. The work is cut into tiles of sixteen outputs; inside a tile, weights of a run of `k` are
//! widened once into a panel that stays in the first-level cache while strips of up to six rows
//! pass over it, six by sixteen sums in registers. Between runs the sums rest in `y`, which rounds
//! nothing: they are f32 in registers too.

use std::cell::RefCell;
use std::ops::Range;

use crate::convert::{BF16, F16};
use crate::disjoint::Disjoint;
use crate::isa::Isa;
use crate::lanes::{LANES, Lanes};
use crate::matrix::{Format, Matrix};
use crate::panel::{Coded, Packed, Plain, RUN, multiply_on};
use crate::pool::Pool;

/// Rows that pass over a panel together.
const STRIP: usize = 6;

/// Multiply-adds worth a task of their own.
const TASK: usize = 64 * 1024;

thread_local! {
    /// A panel.
    static SCRATCH: RefCell<Vec<Lanes>> = const { RefCell::new(Vec::new()) };
}

/// `y[T][N] = x[T][K] W^T (+ bias[N])`, bit for bit the same for any `T` and number of threads.
///
/// # Panics
/// When a length does not fit `t`, `w.n()` and `w.k()`.
pub fn linear(pool: &Pool, x: &[f32], t: usize, w: &Matrix, bias: Option<&[f32]>, y: &mut [f32]) {
    linear_on(Isa::best(), pool, x, t, w, bias, y);
}

pub(crate) fn linear_on(
    isa: Isa,
    pool: &Pool,
    x: &[f32],
    t: usize,
    w: &Matrix,
    bias: Option<&[f32]>,
    y: &mut [f32],
) {
    assert_eq!(x.len(), t * w.k(), "x is [T][K]");
    assert_eq!(y.len(), t * w.n(), "y is [T][N]");
    assert!(bias.is_none_or(|bias| bias.len() == w.n()), "one bias for each output");
    if t == 0 {
        return;
    }
    let product = Product { isa, x, t, w, bias, y: Disjoint::new(y) };
    over_tiles(pool, w.n().div_ceil(LANES), t * w.k(), TASK, |tiles| {
        SCRATCH.with_borrow_mut(|scratch| {
            tiles.for_each(|tile| product.any_tile(tile, scratch));
        });
    });
}

/// Calls `each` with runs of `tiles`, each run worth about `task` multiply-adds, on all threads;
/// an output takes `work` of them.
pub(crate) fn over_tiles(
    pool: &Pool,
    tiles: usize,
    work: usize,
    task: usize,
    each: impl Fn(Range<usize>) + Sync,
) {
    let run = (task / (work.max(1) * LANES)).clamp(1, tiles.div_ceil(pool.threads()).max(1));
    pool.run(tiles.div_ceil(run), &|i| each(i * run..tiles.min((i + 1) * run)));
}

/// One call of [`linear`].
struct Product<'a> {
    isa: Isa,
    x: &'a [f32],
    t: usize,
    w: &'a Matrix,
    bias: Option<&'a [f32]>,
    y: Disjoint<'a, f32>,
}

impl<'a> Product<'a> {
    fn any_tile(&self, tile: usize, scratch: &mut Vec<Lanes>) {
        match self.w.format() {
            Format::F32 => self.tile::<Plain<'_, f32>>(tile, scratch),
            Format::F16 => self.tile::<Plain<'_, F16>>(tile, scratch),
            Format::BF16 => self.tile::<Plain<'_, BF16>>(tile, scratch),
            _ => self.tile::<Coded<'_>>(tile, scratch),
        }
    }

    /// All rows over one tile, in runs of `k`.
    fn tile<P: Packed<'a>>(&self, tile: usize, scratch: &mut Vec<Lanes>) {
        for start in (0..self.w.k().max(1)).step_by(RUN) {
            let run = start..self.w.k().min(start + RUN);
            let packed = P::new(self.w, tile, run.clone());
            match self.t {
                1 => self.strip::<1>(tile, 0, &run, |sums, x| packed.multiply(self.isa, sums, x)),
                2 => self.strip::<2>(tile, 0, &run, |sums, x| packed.multiply(self.isa, sums, x)),
                _ => self.strips(tile, &run, packed.panel(self.isa, scratch)),
            }
        }
    }

    /// All rows over one panel.
    fn strips(&self, tile: usize, run: &Range<usize>, panel: &[Lanes]) {
        for rows in even(self.t, STRIP) {
            match rows.len() {
                6 => self.pass::<6>(tile, rows.start, run, panel),
                5 => self.pass::<5>(tile, rows.start, run, panel),
                4 => self.pass::<4>(tile, rows.start, run, panel),
                3 => self.pass::<3>(tile, rows.start, run, panel),
                2 => self.pass::<2>(tile, rows.start, run, panel),
                _ => self.pass::<1>(tile, rows.start, run, panel),
            }
        }
    }

    fn pass<const R: usize>(&self, tile: usize, row: usize, run: &Range<usize>, panel: &[Lanes]) {
        self.strip::<R>(tile, row, run, |sums, x| multiply_on(self.isa, sums, &panel, x));
    }

    /// `R` rows from `row` on: takes up their sums, lets `add` go over the run, puts them down.
    fn strip<const R: usize>(
        &self,
        tile: usize,
        row: usize,
        run: &Range<usize>,
        add: impl Fn(&mut [Lanes; R], &[&[f32]; R]),
    ) {
        let (n, k) = (self.w.n(), self.w.k());
        let outputs = tile * LANES..n.min((tile + 1) * LANES);
        let mut x: [&[f32]; R] = [&[]; R];
        for r in 0..R {
            x[r] = &self.x[(row + r) * k..][run.clone()];
        }
        let mut sums = [[0.0; LANES]; R];
        for r in 0..R {
            if run.start > 0 {
                sums[r][..outputs.len()].copy_from_slice(self.outputs((row + r) * n, &outputs));
            }
        }
        add(&mut sums, &x);
        for r in 0..R {
            if let (true, Some(bias)) = (run.end == k, self.bias) {
                for (sum, &bias) in sums[r].iter_mut().zip(&bias[outputs.clone()]) {
                    *sum += bias;
                }
            }
            self.outputs((row + r) * n, &outputs).copy_from_slice(&sums[r][..outputs.len()]);
        }
    }

    /// The outputs of a tile in the row of `y` that starts at `row`.
    #[expect(clippy::mut_from_ref, reason = "each task has tiles of its own")]
    fn outputs(&self, row: usize, outputs: &Range<usize>) -> &mut [f32] {
        // SAFETY: the task of a tile alone works on its outputs, one strip of rows at a time.
        #[expect(unsafe_code, reason = "tiles do not overlap")]
        unsafe {
            self.y.part(row + outputs.start..row + outputs.end)
        }
    }
}

/// Cuts `0..len` into as few ranges of at most `most` as possible, of nearly equal lengths.
#[inline(always)]
pub(crate) fn even(len: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    let parts = len.div_ceil(most);
    (0..parts).map(move |i| len * i / parts..len * (i + 1) / parts)
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::code::Code;
    use crate::convert::{f16_from_f32, f32_from_f16, narrow_bf16, narrow_f16};
    use crate::noise::{bits, isas, noise, pool};
    use crate::reference;
    use crate::table::Table;

    /// One matrix of each format that suits `k`.
    fn matrices(n: usize, k: usize) -> Vec<Matrix> {
        let weights = noise(1, n * k);
        let (mut f16, mut bf16) = (vec![0; n * k], vec![0; n * k]);
        narrow_f16(&weights, &mut f16);
        narrow_bf16(&weights, &mut bf16);
        vec![
            Matrix::from_f32(n, k, &weights),
            Matrix::from_f16(n, k, &f16),
            Matrix::from_bf16(n, k, &bf16),
        ]
        .into_iter()
        .chain(floats(n, k))
        .chain(quantised(n, k))
        .collect()
    }

    /// 8-bit floats, all but the NaNs.
    fn floats(n: usize, k: usize) -> Vec<Matrix> {
        let codes: Vec<u8> = (0..n * k).map(|i| (i * 37 % 255) as u8).collect();
        let codes: Vec<u8> = codes.into_iter().map(|c| if c == 127 { 0 } else { c }).collect();
        coded(n, k, &[32], |group| Format::E4M3 { group }, &codes)
    }

    /// Matrices of codes with a scale for each group: f16, bf16 and f32 ones.
    fn coded(
        n: usize,
        k: usize,
        groups: &[usize],
        format: impl Fn(usize) -> Format,
        codes: &[u8],
    ) -> Vec<Matrix> {
        let mut matrices = Vec::new();
        for &group in groups.iter().filter(|&&group| k.is_multiple_of(group.max(32))) {
            let wide = noise(2, n * k / group);
            let half = wide.iter().map(|&x| as_f16(x)).collect();
            let powers = (0..n * k / group).map(|i| 2.0_f32.powi(i as i32 * 7 % 90 - 70)).collect();
            for scale in [wide, half, powers] {
                matrices.push(Matrix::from_codes(n, k, format(group), codes, &scale, None));
            }
        }
        matrices
    }

    fn as_f16(x: f32) -> f32 {
        f32_from_f16(f16_from_f32(x))
    }

    /// One matrix of each quantised format that suits `k`, with scales of each kind.
    pub(crate) fn quantised(n: usize, k: usize) -> Vec<Matrix> {
        let nibbles: Vec<u8> = (0..n * k).map(|i| (i * 7 % 23 % 16) as u8).collect();
        let entries =
            |table, groups| coded(n, k, groups, |group| Format::Table { table, group }, &nibbles);
        let mut matrices = entries(Table::E2M1, &[16, 32]);
        matrices.extend(entries(Table::IQ4NL, &[32]));
        let codes = [(2, 0), (3, 0), (4, 0), (4, 8), (5, 0), (5, 16), (6, 32), (8, 0), (8, 128)];
        for (bits, zero) in codes {
            let code = Code { bits, zero };
            let size = f32::from(1_u16 << bits);
            let codes: Vec<u8> =
                noise(1, n * k).into_iter().map(|x| ((x + 1.0) / 2.0 * size) as u8).collect();
            for group in [16, 32, 64, 128] {
                if !k.is_multiple_of(group.max(32)) {
                    continue;
                }
                let wide = [2, 3].map(|seed| noise(seed, n * k / group));
                let half = wide.clone().map(|wide| wide.into_iter().map(as_f16).collect());
                for [scale, min] in [wide, half] {
                    let min = (zero == 0).then_some(&min[..]);
                    let format = Format::Affine { code, group, min: min.is_some() };
                    matrices.push(Matrix::from_codes(n, k, format, &codes, &scale, min));
                }
            }
        }
        matrices
    }

    fn product(isa: Isa, pool: &Pool, x: &[f32], w: &Matrix, bias: Option<&[f32]>) -> Vec<u32> {
        let t = x.len() / w.k();
        let mut y = vec![f32::NAN; t * w.n()];
        linear_on(isa, pool, x, t, w, bias, &mut y);
        bits(&y)
    }

    #[test]
    fn a_product_has_the_bits_of_its_reference_in_every_shape_format_and_instantiation() {
        let pools = [pool(1), pool(2)];
        for (n, k) in [(1, 1), (17, 33), (16, 64), (15, 192), (33, 257), (48, 384), (7, 576)] {
            for w in matrices(n, k) {
                for t in [1, 2, 3, 4, 5, 6, 7, 8, 13, 65] {
                    let (x, bias) = (noise(4, t * k), noise(5, n));
                    let bias = (t % 2 == 1).then_some(&bias[..]);
                    let mut want = vec![0.0; t * n];
                    reference::linear(&x, t, &w, bias, &mut want);
                    for (isa, pool) in
                        isas().into_iter().flat_map(|i| pools.iter().map(move |p| (i, p)))
                    {
                        let got = product(isa, pool, &x, &w, bias);
                        assert_eq!(got, bits(&want), "{t} rows, {w:?}, {isa:?}, {pool:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_product_of_no_rows_or_no_inputs_is_empty_or_the_bias() {
        let w = Matrix::from_f32(3, 0, &[]);
        let mut y = [f32::NAN; 6];
        linear(&pool(2), &[], 2, &w, Some(&[1.0, 2.0, 3.0]), &mut y);
        assert_eq!(y, [1.0, 2.0, 3.0, 1.0, 2.0, 3.0]);
        linear(&pool(2), &[], 0, &w, None, &mut []);
    }

    #[test]
    #[should_panic(expected = "x is [T][K]")]
    fn rows_of_another_width_are_refused() {
        linear(&pool(1), &[0.0; 5], 2, &Matrix::from_f32(1, 3, &[0.0; 3]), None, &mut [0.0; 2]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn a_row_has_the_same_bits_whatever_rows_travel_with_it(
            cuts in proptest::collection::vec(1_usize..20, 1..6),
            format in 0_usize..200,
            threads in 1_usize..4,
        ) {
            let matrices = matrices(37, 320);
            let w = &matrices[format % matrices.len()];
            let t: usize = cuts.iter().sum();
            let x = noise(6, t * w.k());
            let whole = product(Isa::best(), &pool(1), &x, w, None);
            let mut sliced = Vec::new();
            let mut rest = &x[..];
            for cut in cuts {
                let (slice, after) = rest.split_at(cut * w.k());
                sliced.extend(product(Isa::best(), &pool(threads), slice, w, None));
                rest = after;
            }
            prop_assert_eq!(whole, sliced);
        }
    }
}
