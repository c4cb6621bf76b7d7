//! The `fast` numerics' product: `y[T][N] = x[T][K] W^T (+ bias[N])` over 8-bit activations.
//!
//! For each output, in ascending order of the pieces of `k` that share a scale on both sides (32,
//! or 16 where the weights' groups are that small):
//!
//! ```text
//! y = fma(sum of (u - zero) * q, an exact integer; scale of the weights * scale of the row; y)
//! y = fma(minimum of the weights, scaled sum of the row's integers, y)      where there are minima
//! ```
//!
//! starting at 0; the bias is added last. Integer sums have no order, so that every processor may
//! use the instruction it has and still give the bits of [`crate::reference`].
//!
//! The codes of a tile are taken apart once, into scratch that stays near the processor, while
//! strips of up to four rows pass over it. Products of the same rows are one region of work.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "aarch64")]
mod neon;
mod plain;
#[cfg(target_arch = "x86_64")]
mod vnni;
mod weights;

use std::cell::RefCell;
use std::num::NonZeroUsize;

use self::weights::{Weights, multiply};
use crate::act::{Gate, gate_on};
use crate::code::{BLOCK, Code, Step};
use crate::disjoint::Disjoint;
use crate::isa::Isa;
use crate::lanes::{LANES, Lanes};
use crate::linear::{even, over_tiles};
use crate::matrix::{Format, Matrix};
use crate::pool::Pool;
use crate::quantized::{Quantized, Row};
use crate::table::Table;

/// Rows that pass over a tile together.
const STRIP: usize = 4;

/// Multiply-adds worth a task of their own.
const TASK: usize = 256 * 1024;

thread_local! {
    /// Codes of two tiles, taken apart.
    static SCRATCH: RefCell<[Vec<Step>; 2]> = const { RefCell::new([Vec::new(), Vec::new()]) };
}

/// A product of rows, and where it goes.
#[derive(Debug)]
pub struct Output<'a> {
    /// `[N][K]`
    pub weights: &'a Matrix,
    /// `[N]`
    pub bias: Option<&'a [f32]>,
    /// `[T][N]`
    pub y: &'a mut [f32],
    /// Whether the product is added to what is in `y`, as residual connections want it.
    pub adds: bool,
}

/// `y[T][N] = x[T][K] W^T (+ bias[N])` for each output, bit for bit the same for any `T`, company
/// and number of threads.
///
/// # Panics
/// When a length does not fit, or the weights are not quantised.
pub fn linear_fast<const P: usize>(pool: &Pool, x: &Quantized, outputs: [Output<'_>; P]) {
    linear_fast_on(Isa::best(), pool, x, outputs);
}

/// `y[T][N] = how(x[T][K] G^T) * (x[T][K] U^T)` of weights `[G, U]`, the bits of two products and
/// [`gate`](crate::act::gate).
///
/// # Panics
/// As for [`linear_fast`], or when the matrices differ in shape.
pub fn gated_fast(pool: &Pool, x: &Quantized, how: Gate, weights: [&Matrix; 2], y: &mut [f32]) {
    gated_fast_on(Isa::best(), pool, x, (how, weights), y);
}

fn linear_fast_on<const P: usize>(isa: Isa, pool: &Pool, x: &Quantized, outputs: [Output<'_>; P]) {
    let products = outputs.map(|Output { weights, bias, y, adds }| {
        assert!(bias.is_none_or(|bias| bias.len() == weights.n()), "one bias for each output");
        Product { isa, x, weights, bias, y: checked(x, weights, y), adds }
    });
    let units = products.iter().map(Product::units).sum();
    over_tiles(pool, units, isa.tiles_at_once() * x.rows() * x.k(), TASK, |units| {
        SCRATCH.with_borrow_mut(|scratch| {
            units.for_each(|unit| {
                let (product, unit) = locate(&products, unit);
                product.unit(unit, scratch);
            });
        });
    });
}

fn gated_fast_on(
    isa: Isa,
    pool: &Pool,
    x: &Quantized,
    (how, weights): (Gate, [&Matrix; 2]),
    y: &mut [f32],
) {
    let [gate, up] = weights;
    assert_eq!((gate.n(), gate.k()), (up.n(), up.k()), "gate and up have one shape");
    let gated = Gated { isa, x, how, weights, y: checked(x, gate, y) };
    over_tiles(pool, gate.n().div_ceil(LANES), 2 * x.rows() * x.k(), TASK, |tiles| {
        SCRATCH.with_borrow_mut(|scratch| tiles.for_each(|tile| gated.tile(tile, scratch)));
    });
}

fn checked<'y>(x: &Quantized, weights: &Matrix, y: &'y mut [f32]) -> Disjoint<'y, f32> {
    assert_eq!(x.k(), weights.k(), "x is [T][K]");
    assert_eq!(y.len(), x.rows() * weights.n(), "y is [T][N]");
    Disjoint::new(y)
}

/// The product that owns a unit of all products' units, and which of its own that is.
fn locate<'a, 'b>(products: &'b [Product<'a>], mut unit: usize) -> (&'b Product<'a>, usize) {
    for product in products {
        if unit < product.units() {
            return (product, unit);
        }
        unit -= product.units();
    }
    unreachable!("a unit of no product")
}

/// What passes over a tile strip by strip.
trait Strips {
    /// `R` rows from `row` on.
    fn strip<const R: usize>(&self, row: usize);
}

/// All `rows`, in strips.
fn pass(rows: usize, over: &impl Strips) {
    for rows in even(rows, STRIP) {
        match rows.len() {
            4 => over.strip::<4>(rows.start),
            3 => over.strip::<3>(rows.start),
            2 => over.strip::<2>(rows.start),
            _ => over.strip::<1>(rows.start),
        }
    }
}

/// A product.
struct Product<'a> {
    isa: Isa,
    x: &'a Quantized,
    weights: &'a Matrix,
    bias: Option<&'a [f32]>,
    y: Disjoint<'a, f32>,
    adds: bool,
}

impl Product<'_> {
    fn tiles(&self) -> usize {
        self.weights.n().div_ceil(LANES)
    }

    /// Tiles that rows pass over at once are a unit of work.
    fn units(&self) -> usize {
        self.tiles().div_ceil(self.isa.tiles_at_once())
    }

    fn unit(&self, unit: usize, [first, second]: &mut [Vec<Step>; 2]) {
        let tile = unit * self.isa.tiles_at_once();
        if self.isa.tiles_at_once() > 1 && tile + 1 < self.tiles() {
            self.pass(tile, [self.take(tile, first), self.take(tile + 1, second)]);
        } else {
            self.pass(tile, [self.take(tile, first)]);
        }
    }

    fn take<'s>(&'s self, tile: usize, scratch: &'s mut Vec<Step>) -> Weights<'s> {
        Weights::of(self.isa, self.weights, tile, self.x.rows(), scratch)
    }

    fn pass<const T: usize>(&self, first: usize, weights: [Weights<'_>; T]) {
        pass(self.x.rows(), &Tiles { product: self, first, weights });
    }
}

/// Consecutive tiles of a product.
struct Tiles<'a, const T: usize> {
    product: &'a Product<'a>,
    first: usize,
    weights: [Weights<'a>; T],
}

impl<const T: usize> Strips for Tiles<'_, T> {
    fn strip<const R: usize>(&self, row: usize) {
        let Product { isa, x, bias, adds, .. } = *self.product;
        let mut sums = [[[0.0; LANES]; R]; T];
        multiply(isa, &mut sums, &self.weights.each_ref(), &rows_of(x, row));
        for (tile, sums) in (self.first..).zip(&mut sums) {
            if let Some(bias) = bias {
                let bias = &bias[tile * LANES..];
                for sums in &mut *sums {
                    sums.iter_mut().zip(bias).for_each(|(sum, bias)| *sum += bias);
                }
            }
            let add = |y: &mut f32, sum: f32| *y = if adds { *y + sum } else { sum };
            put(&self.product.y, self.product.weights.n(), row, tile, sums, add);
        }
    }
}

/// A gated product.
struct Gated<'a> {
    isa: Isa,
    x: &'a Quantized,
    how: Gate,
    weights: [&'a Matrix; 2],
    y: Disjoint<'a, f32>,
}

impl Gated<'_> {
    fn tile(&self, tile: usize, [first, second]: &mut [Vec<Step>; 2]) {
        let of = |matrix, scratch| Weights::of(self.isa, matrix, tile, self.x.rows(), scratch);
        let weights = [of(self.weights[0], first), of(self.weights[1], second)];
        pass(self.x.rows(), &GatedTile { product: self, tile, weights });
    }
}

struct GatedTile<'a> {
    product: &'a Gated<'a>,
    tile: usize,
    weights: [Weights<'a>; 2],
}

impl Strips for GatedTile<'_> {
    fn strip<const R: usize>(&self, row: usize) {
        let (isa, rows) = (self.product.isa, rows_of(self.product.x, row));
        let mut both = [[[0.0; LANES]; R]; 2];
        multiply(isa, &mut both, &self.weights.each_ref(), &rows);
        let [gate, up] = both;
        let mut sums = [[0.0; LANES]; R];
        let how = self.product.how;
        gate_on(isa, how, gate.as_flattened(), up.as_flattened(), sums.as_flattened_mut());
        let n = self.product.weights[0].n();
        put(&self.product.y, n, row, self.tile, &sums, |y, sum| *y = sum);
    }
}

fn rows_of<const R: usize>(x: &Quantized, row: usize) -> [Row<'_>; R] {
    std::array::from_fn(|r| x.row(row + r))
}

/// Puts down the outputs of a tile with `put`: all sixteen, in one piece, or fewer at the end of a
/// matrix.
#[inline(always)]
fn put(
    y: &Disjoint<'_, f32>,
    n: usize,
    row: usize,
    tile: usize,
    sums: &[Lanes],
    put: impl Fn(&mut f32, f32),
) {
    let outputs = tile * LANES..n.min((tile + 1) * LANES);
    for (r, sums) in sums.iter().enumerate() {
        let at = (row + r) * n;
        // SAFETY: the task of a tile alone works on its outputs, one strip of rows at a time.
        #[expect(unsafe_code, reason = "tiles do not overlap")]
        let y = unsafe { y.part(at + outputs.start..at + outputs.end) };
        match <&mut Lanes>::try_from(&mut *y) {
            Ok(y) => y.iter_mut().zip(sums).for_each(|(y, sum)| put(y, *sum)),
            Err(_) => y.iter_mut().zip(sums).for_each(|(y, sum)| put(y, *sum)),
        }
    }
}

/// Whether an instantiation has the bits of the plain one on this machine, in a product of every
/// kind of code. What a processor has was not always there when this was tested.
pub(crate) fn agrees(isa: Isa) -> bool {
    let here = Pool::new(NonZeroUsize::MIN);
    // Two tiles at once, one that is not whole; strips of one to four rows, codes kept and apart.
    let (n, k) = (2 * LANES + 1, 4 * BLOCK);
    let uniform = |i: usize| crate::sample::uniform(7, 0, i as u64) - 0.5;
    let rows = [1, 2, 3, 4, 9].map(|rows| {
        let x: Vec<f32> = (0..rows * k).map(uniform).collect();
        Quantized::on(Isa::PLAIN, &here, &x, k)
    });
    // Scales that are f16 and scales that are not.
    let (half, wide) = (64.0, 63.0);
    let affine = [(4, 0, 32, half), (5, 0, 64, wide), (6, 32, 16, half), (8, 128, 32, wide)];
    let affine = affine.into_iter().map(|(bits, zero, group, parts)| {
        let format = Format::Affine { code: Code { bits, zero }, group, min: zero == 0 };
        (format, bits, group, parts)
    });
    let tables = [Table::E2M1, Table::IQ4NL].map(|table| {
        let group = 32;
        (Format::Table { table, group }, 4, group, half)
    });
    affine.chain(tables).all(|(format, bits, group, parts)| {
        let scale = |i: usize| (uniform(i) * parts).round() / parts;
        let scales: Vec<f32> = (0..n * k / group).map(scale).collect();
        let code = |i: usize| ((uniform(i) + 0.5) * f32::from(1_u16 << bits)) as u8;
        let codes: Vec<u8> = (0..n * k).map(code).collect();
        let min = matches!(format, Format::Affine { min: true, .. }).then_some(&scales[..]);
        let w = Matrix::from_codes(n, k, format, &codes, &scales, min);
        let product = |isa, x: &Quantized| {
            let mut y = vec![0.0; x.rows() * n];
            linear_fast_on(
                isa,
                &here,
                x,
                [Output { weights: &w, bias: None, y: &mut y, adds: false }],
            );
            y.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        rows.iter().all(|x| product(isa, x) == product(Isa::PLAIN, x))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::linear::tests::quantised;
    use crate::noise::{bits, isas, noise, pool};
    use crate::reference;

    fn activations(t: usize, k: usize) -> Quantized {
        Quantized::new(&pool(1), &noise(4, t * k), k)
    }

    fn product(isa: Isa, pool: &Pool, x: &Quantized, w: &Matrix, bias: Option<&[f32]>) -> Vec<u32> {
        let mut y = vec![f32::NAN; x.rows() * w.n()];
        linear_fast_on(isa, pool, x, [Output { weights: w, bias, y: &mut y, adds: false }]);
        bits(&y)
    }

    #[test]
    fn a_product_has_the_bits_of_its_reference_in_every_shape_format_and_instantiation() {
        let pools = [pool(1), pool(2)];
        for (n, k) in [(1, 32), (17, 64), (16, 384), (33, 192), (7, 576)] {
            for w in quantised(n, k) {
                for t in [1, 2, 3, 4, 5, 8, 13, 65] {
                    let (x, bias) = (activations(t, k), noise(5, n));
                    let bias = (t % 2 == 1).then_some(&bias[..]);
                    let mut want = vec![0.0; t * n];
                    reference::linear_fast(&x, &w, bias, &mut want);
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

    /// Largest codes and activations, where sums of 16 bits would overflow first.
    #[test]
    fn extremes_are_exact_in_every_instantiation() {
        for (bits, zero) in [(4, 0), (5, 0), (6, 32), (8, 128)] {
            let code = Code { bits, zero };
            for q in [-i16::from(zero), 0, (1 << bits) - 1 - i16::from(zero)] {
                let w = Matrix::from_affine(16, 64, (code, 32), &[q as i8; 1024], &[1.0; 32], None);
                for x in [-1.0, 1.0] {
                    let rows = Quantized::new(&pool(1), &[x; 64], 64);
                    let want = 64.0 * 127.0 * f32::from(q) * x * (1.0 / 127.0);
                    for isa in isas() {
                        let mut y = [0.0; 16];
                        let output = Output { weights: &w, bias: None, y: &mut y, adds: false };
                        linear_fast_on(isa, &pool(1), &rows, [output]);
                        assert!(y.iter().all(|y| (y - want).abs() <= want.abs() * 1e-6), "{y:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn products_of_the_same_rows_in_one_region_have_the_bits_of_each_alone() {
        let matrices: Vec<_> = [33, 1, 48].map(|n| quantised(n, 192)).into();
        for format in 0..matrices[0].len() {
            let [a, b, c] = [0, 1, 2].map(|i| &matrices[i][format]);
            for t in [1, 2, 9, 33] {
                let x = activations(t, 192);
                for (isa, pool) in isas().into_iter().zip([pool(1), pool(3)].iter().cycle()) {
                    let mut y = [a, b, c].map(|w| vec![f32::NAN; t * w.n()]);
                    let [ya, yb, yc] = &mut y;
                    let output = |weights, y| Output { weights, bias: None, y, adds: false };
                    let outputs = [output(a, ya), output(b, yb), output(c, yc)];
                    linear_fast_on(isa, pool, &x, outputs);
                    for (w, y) in [a, b, c].iter().zip(&y) {
                        assert_eq!(bits(y), product(isa, pool, &x, w, None), "{t} rows, {w:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_product_that_adds_has_the_bits_of_a_product_and_an_addition() {
        let (n, k) = (37, 192);
        for w in quantised(n, k) {
            for t in [1, 5] {
                let (x, y, bias) = (activations(t, k), noise(7, t * n), noise(5, n));
                let mut want = vec![0.0; t * n];
                reference::linear_fast(&x, &w, Some(&bias), &mut want);
                want.iter_mut().zip(&y).for_each(|(want, y)| *want += y);
                for isa in isas() {
                    let mut y = y.clone();
                    let bias = Some(&bias[..]);
                    let output = Output { weights: &w, bias, y: &mut y, adds: true };
                    linear_fast_on(isa, &pool(2), &x, [output]);
                    assert_eq!(bits(&y), bits(&want), "{t} rows, {w:?}, {isa:?}");
                }
            }
        }
    }

    #[test]
    fn a_gated_product_has_the_bits_of_its_parts() {
        let (n, k) = (37, 192);
        for w in quantised(n, k).windows(2) {
            for t in [1, 3, 8, 33] {
                let x = activations(t, k);
                let [gate, up] = [&w[0], &w[1]].map(|w| {
                    let mut y = vec![0.0; t * n];
                    reference::linear_fast(&x, w, None, &mut y);
                    y
                });
                let mut want = vec![0.0; t * n];
                let how = if t == 3 { Gate::GeluTanh } else { Gate::Silu };
                gate_on(Isa::PLAIN, how, &gate, &up, &mut want);
                for (isa, pool) in isas().into_iter().zip([pool(1), pool(3)].iter().cycle()) {
                    let mut y = vec![f32::NAN; t * n];
                    gated_fast_on(isa, pool, &x, (how, [&w[0], &w[1]]), &mut y);
                    assert_eq!(bits(&y), bits(&want), "{t} rows, {how:?}, {w:?}, {isa:?}");
                }
            }
        }
    }

    #[test]
    fn it_is_near_the_product_of_unrounded_activations() {
        let (t, n, k) = (5, 33, 576);
        let x = noise(4, t * k);
        for w in quantised(n, k) {
            let (mut exact, mut fast) = (vec![0.0; t * n], vec![0.0; t * n]);
            reference::linear(&x, t, &w, None, &mut exact);
            let output = Output { weights: &w, bias: None, y: &mut fast, adds: false };
            linear_fast(&pool(1), &activations(t, k), [output]);
            let square = |x: &[f32]| x.iter().map(|x| f64::from(x * x)).sum::<f64>().sqrt();
            let apart: Vec<f32> = exact.iter().zip(&fast).map(|(a, b)| a - b).collect();
            let error = square(&apart) / square(&exact);
            assert!(error < 0.01, "{error} for {w:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn a_row_has_the_same_bits_whatever_rows_travel_with_it(
            cuts in proptest::collection::vec(1_usize..20, 1..6),
            format in 0_usize..200,
            threads in 1_usize..4,
        ) {
            let matrices = quantised(37, 320);
            let w = &matrices[format % matrices.len()];
            let t: usize = cuts.iter().sum();
            let x = noise(6, t * w.k());
            let rows = |x: &[f32]| Quantized::new(&pool(threads), x, w.k());
            let whole = product(Isa::best(), &pool(1), &rows(&x), w, None);
            let mut sliced = Vec::new();
            let mut rest = &x[..];
            for cut in cuts {
                let (slice, after) = rest.split_at(cut * w.k());
                sliced.extend(product(Isa::best(), &pool(threads), &rows(slice), w, None));
                rest = after;
            }
            prop_assert_eq!(whole, sliced);
        }
    }
}
