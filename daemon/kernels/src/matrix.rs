//! Weights `[N][K]`, packed for the product kernel.
//!
//! Sixteen output rows make a tile; inside a tile the sixteen weights of one `k` lie together, so
//! that one load feeds sixteen outputs:
//!
//! ```text
//! tile 0                                        tile 1            last tile: rows >= N are zero
//! [k = 0: rows 0..16][k = 1: rows 0..16] ..     [k = 0: rows 16..32] ..
//! ```
//!
//! 16-bit weights stay 16 bits wide and quantised ones stay integers with scales (and minima) per
//! group of `k`, packed `[tile][K / group][16]`; the kernel widens them on the way to registers.
//! The packed copy is the only one: a matrix never looks at its source again, so a model file that
//! is overwritten in place cannot mix with it. It may be kept in a file of its own (`matrix::kept`).

mod buffer;
mod format;
mod groups;
mod kept;
mod outline;
mod tile;

use std::convert::Infallible;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use bytemuck::Pod;

use crate::code::{BLOCK, Code};
use crate::convert::{BF16, F16, Narrow};
use crate::disjoint::Disjoint;
use crate::isa::Isa;
use crate::lanes::{LANES, Lanes};
use crate::matrix::buffer::{Buffer, Draft};
pub use crate::matrix::buffer::{Memory, Piece, heap};
pub use crate::matrix::format::Format;
pub(crate) use crate::matrix::format::{Coded, Values};
pub use crate::matrix::groups::Scales;
pub(crate) use crate::matrix::groups::{Groups, Of, Scale};
pub use crate::matrix::kept::PACKING;
pub use crate::matrix::tile::Tile;
use crate::pool::Pool;

/// `N` outputs by `K` inputs of weights, immutable once packed. Clones share the weights.
#[derive(Clone)]
pub struct Matrix {
    n: usize,
    k: usize,
    format: Format,
    weights: Buffer,
    scales: Buffer,
    mins: Buffer,
    /// What scales and minima are kept as.
    kept: Scales,
}

impl Matrix {
    /// Packs row-major f32 weights `[N][K]`.
    ///
    /// # Panics
    /// When `rows` does not hold `n * k` weights.
    pub fn from_f32(n: usize, k: usize, rows: &[f32]) -> Matrix {
        assert_eq!(rows.len(), n * k, "[N][K] weights");
        build_here(n, k, Format::F32, |r, tile| tile.f32(&rows[r.start * k..r.end * k]))
    }

    /// Packs row-major f16 weights `[N][K]`, given as bits.
    ///
    /// # Panics
    /// When `rows` does not hold `n * k` weights.
    pub fn from_f16(n: usize, k: usize, rows: &[u16]) -> Matrix {
        assert_eq!(rows.len(), n * k, "[N][K] weights");
        build_here(n, k, Format::F16, |r, tile| tile.f16(&rows[r.start * k..r.end * k]))
    }

    /// Packs row-major bf16 weights `[N][K]`, given as bits.
    ///
    /// # Panics
    /// When `rows` does not hold `n * k` weights.
    pub fn from_bf16(n: usize, k: usize, rows: &[u16]) -> Matrix {
        assert_eq!(rows.len(), n * k, "[N][K] weights");
        build_here(n, k, Format::BF16, |r, tile| tile.bf16(&rows[r.start * k..r.end * k]))
    }

    /// Packs quantised weights: `q` `[N][K]`, `scale` and `min` `[N][K / group]`.
    ///
    /// # Panics
    /// When the group is not 16, 32, 64 or 128, does not divide `k`, or a length does not fit.
    pub fn from_affine(
        n: usize,
        k: usize,
        (code, group): (Code, usize),
        q: &[i8],
        scale: &[f32],
        min: Option<&[f32]>,
    ) -> Matrix {
        assert_eq!(q.len(), n * k, "[N][K] weights");
        let groups = k / group;
        build_here(n, k, Format::Affine { code, group, min: min.is_some() }, |r, tile| {
            let of_groups = r.start * groups..r.end * groups;
            let min = min.map(|min| &min[of_groups.clone()]);
            tile.affine(&q[r.start * k..r.end * k], &scale[of_groups], min);
        })
    }

    /// The same from codes as they are, `[N][K]`, of any format that has some.
    ///
    /// # Panics
    /// As for [`from_affine`](Self::from_affine), or when the format has no codes.
    pub fn from_codes(
        n: usize,
        k: usize,
        format: Format,
        codes: &[u8],
        scale: &[f32],
        min: Option<&[f32]>,
    ) -> Matrix {
        assert_eq!(codes.len(), n * k, "[N][K] weights");
        let (groups, _) = format.groups(k);
        build_here(n, k, format, |r, tile| {
            let of_groups = r.start * groups..r.end * groups;
            let min = min.map(|min| &min[of_groups.clone()]);
            tile.codes(&codes[r.start * k..r.end * k], &scale[of_groups], min);
        })
    }

    /// Builds a matrix tile by tile on the pool, so that a loader never holds a whole decoded copy.
    ///
    /// `fill(rows, tile)` is called once for each run of up to 16 consecutive output rows, from
    /// any thread and in any order; it decodes those rows and hands them to the [`Tile`] in the
    /// given format. What is packed lies in `memory`.
    ///
    /// # Errors
    /// The first error of `fill`; tiles not yet begun are then skipped.
    ///
    /// # Panics
    /// When the format does not suit `k`, or `memory` gives bytes that do not begin with a line.
    pub fn build<E: Send>(
        pool: &Pool,
        memory: Memory<'_>,
        n: usize,
        k: usize,
        format: Format,
        fill: impl Fn(Range<usize>, &mut Tile<'_>) -> Result<(), E> + Sync,
    ) -> Result<Matrix, E> {
        format.check(k);
        let [weights, scales, mins] = Matrix::part_bytes(n, k, format, Scales::F32);
        let weights = Draft::within(memory, weights);
        let mut drafts = [weights, Draft::zeroed(scales), Draft::zeroed(mins)];
        let (scale_groups, min_groups) = format.groups(k);
        let tile_bytes = format.tile_bytes(k);
        let [weights, scales, mins] = &mut drafts;
        let weights = Disjoint::new(weights.cast_mut::<u8>());
        let scales = Disjoint::new(scales.cast_mut::<Lanes>());
        let mins = Disjoint::new(mins.cast_mut::<Lanes>());
        let failed = Mutex::new(None);
        pool.run(n.div_ceil(LANES), &|i| {
            if lock(&failed).is_some() {
                return;
            }
            let rows = i * LANES..n.min((i + 1) * LANES);
            #[expect(unsafe_code, reason = "tiles do not overlap")]
            // SAFETY: task `i` alone takes tile `i` of each buffer.
            let (weights, scales, mins) = unsafe {
                (
                    weights.part(i * tile_bytes..(i + 1) * tile_bytes),
                    scales.part(i * scale_groups..(i + 1) * scale_groups),
                    mins.part(i * min_groups..(i + 1) * min_groups),
                )
            };
            let mut tile = Tile { rows: rows.len(), k, format, weights, scales, mins };
            if let Err(error) = fill(rows, &mut tile) {
                lock(&failed).get_or_insert(error);
            }
        });
        match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None => Ok(Matrix::narrowed(memory, n, k, format, drafts)),
        }
    }

    /// A packed matrix, with scales and minima in 16 bits if each of them fits.
    fn narrowed(
        memory: Memory<'_>,
        n: usize,
        k: usize,
        format: Format,
        [weights, scales, mins]: [Draft; 3],
    ) -> Matrix {
        let (kept, scales, mins) = narrowed::<F16>(memory, &scales, &mins)
            .map(|[scales, mins]| (Scales::F16, scales, mins))
            .or_else(|| {
                narrowed::<BF16>(memory, &scales, &mins)
                    .map(|[scales, mins]| (Scales::BF16, scales, mins))
            })
            .unwrap_or_else(|| (Scales::F32, scales.moved_to(memory), mins.moved_to(memory)));
        let [weights, scales, mins] = [weights, scales, mins].map(Draft::finish);
        Matrix { n, k, format, weights, scales, mins, kept }
    }

    /// Outputs.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Inputs.
    pub fn k(&self) -> usize {
        self.k
    }

    /// How the weights are kept.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Whether the weights are integers with scales: what products of integers take.
    pub fn is_quantised(&self) -> bool {
        matches!(self.format, Format::Affine { .. } | Format::Table { .. })
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        self.parts().into_iter().map(<[u8]>::len).sum()
    }

    /// Writes output row `n` (an embedding), `[K]`: exactly the values that products use.
    ///
    /// # Panics
    /// When there is no such row, or `out` is not `K` long.
    pub fn row(&self, n: usize, out: &mut [f32]) {
        assert!(n < self.n, "row {n} of {}", self.n);
        assert_eq!(out.len(), self.k, "a row of K values");
        let (tile, lane) = (n / LANES, n % LANES);
        match self.format {
            Format::F32 => gather::<f32>(self.tile(tile), lane, out),
            Format::F16 => gather::<F16>(self.tile(tile), lane, out),
            Format::BF16 => gather::<BF16>(self.tile(tile), lane, out),
            _ => self.coded_row(tile, lane, out),
        }
    }

    fn coded_row(&self, tile: usize, lane: usize, out: &mut [f32]) {
        let (coded, groups) = (self.coded(), self.tile_groups(tile));
        let blocks = self.tile_codes(tile).chunks_exact(coded.code.block_bytes());
        for (block, (codes, out)) in blocks.zip(out.chunks_exact_mut(BLOCK)).enumerate() {
            for (i, out) in out.iter_mut().enumerate() {
                let at = (block * BLOCK + i) / coded.group;
                let min = groups.mins(Isa::PLAIN, at).map_or(0.0, |min| min[lane]);
                let scale = groups.scales(Isa::PLAIN, at)[lane];
                *out = coded.number(codes, lane, i).mul_add(scale, min);
            }
        }
    }

    /// How the codes of a matrix are read that has some.
    #[inline(always)]
    pub(crate) fn coded(&self) -> Coded {
        self.format.coded().unwrap_or_else(|| panic!("the codes of {self:?}"))
    }

    /// The integer of a quantised weight.
    pub(crate) fn integer(&self, n: usize, k: usize) -> i32 {
        let coded = self.coded();
        let bytes = coded.code.block_bytes();
        let block = &self.tile_codes(n / LANES)[k / BLOCK * bytes..][..bytes];
        coded.integer(block, n % LANES, k % BLOCK)
    }

    /// The scale and the minimum of a group of output `n`.
    pub(crate) fn scale(&self, n: usize, group: usize) -> (f32, Option<f32>) {
        let (groups, lane) = (self.tile_groups(n / LANES), n % LANES);
        let min = groups.mins(Isa::PLAIN, group).map(|mins| mins[lane]);
        (groups.scales(Isa::PLAIN, group)[lane], min)
    }

    /// The weights of a tile, sixteen for each `k`.
    #[inline(always)]
    pub(crate) fn tile<T: Pod>(&self, tile: usize) -> &[[T; LANES]] {
        &self.weights.cast::<[T; LANES]>()[tile * self.k..(tile + 1) * self.k]
    }

    /// The codes of a tile, block after block.
    #[inline(always)]
    pub(crate) fn tile_codes(&self, tile: usize) -> &[u8] {
        let bytes = self.format.tile_bytes(self.k);
        &self.weights.cast::<u8>()[tile * bytes..(tile + 1) * bytes]
    }

    /// The scales and minima of a tile; none for plain formats.
    #[inline(always)]
    pub(crate) fn tile_groups(&self, tile: usize) -> Groups<'_> {
        let (scales, mins) = self.format.groups(self.k);
        let scales = tile * scales..(tile + 1) * scales;
        let mins = tile * mins..(tile + 1) * mins;
        match self.kept {
            Scales::F32 => Groups::F32(self.groups(scales, mins)),
            Scales::F16 => Groups::F16(self.groups(scales, mins)),
            Scales::BF16 => Groups::BF16(self.groups(scales, mins)),
        }
    }

    #[inline(always)]
    fn groups<E: Pod>(&self, scales: Range<usize>, mins: Range<usize>) -> Of<'_, E> {
        Of { scales: &self.scales.cast()[scales], mins: &self.mins.cast()[mins] }
    }
}

impl std::fmt::Debug for Matrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Matrix({} x {}, {:?}, {} bytes)", self.n, self.k, self.format, self.bytes())
    }
}

/// Scales and minima in fewer bits, if each of them fits.
fn narrowed<E: Narrow>(memory: Memory<'_>, scales: &Draft, mins: &Draft) -> Option<[Draft; 2]> {
    let fits = |wide: &f32| E::nearest(*wide).value().to_bits() == wide.to_bits();
    let narrowed = |wide: &Draft| {
        let wide = wide.cast::<f32>();
        let mut narrow = Draft::within(memory, wide.len() * size_of::<E>());
        let narrow_to = |(narrow, wide): (&mut E, &f32)| *narrow = E::nearest(*wide);
        narrow.cast_mut::<E>().iter_mut().zip(wide).for_each(narrow_to);
        narrow
    };
    let drafts = [scales, mins];
    drafts.iter().all(|draft| draft.cast().iter().all(fits)).then(|| drafts.map(narrowed))
}

/// One row of a tile.
fn gather<E: Narrow>(tile: &[[E; LANES]], lane: usize, out: &mut [f32]) {
    for (out, weights) in out.iter_mut().zip(tile) {
        *out = weights[lane].value();
    }
}

/// Builds on the calling thread alone.
fn build_here(
    n: usize,
    k: usize,
    format: Format,
    fill: impl Fn(Range<usize>, &mut Tile<'_>) + Sync,
) -> Matrix {
    let here = Pool::new(NonZeroUsize::MIN);
    let built = Matrix::build(&here, &heap, n, k, format, |rows, tile| {
        fill(rows, tile);
        Ok::<(), Infallible>(())
    });
    match built {
        Ok(matrix) => matrix,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::convert::narrow_f16;
    use crate::noise::{bits, noise, pool};

    const BYTES: Code = Code { bits: 8, zero: 128 };

    fn row(matrix: &Matrix, n: usize) -> Vec<f32> {
        let mut row = vec![f32::NAN; matrix.k()];
        matrix.row(n, &mut row);
        row
    }

    #[test]
    fn a_row_comes_back_as_it_was_packed() {
        let (n, k) = (19, 64);
        let weights = noise(1, n * k);
        let mut f16 = vec![0; n * k];
        narrow_f16(&weights, &mut f16);
        let q: Vec<i8> = (0..n * k).map(|i| (i * 37 % 255) as u8 as i8).collect();
        let (scale, min) = (noise(2, n * 4), noise(3, n * 4));
        let dense = Matrix::from_f32(n, k, &weights);
        let half = Matrix::from_f16(n, k, &f16);
        let affine = Matrix::from_affine(n, k, (BYTES, 16), &q, &scale, Some(&min));
        for r in 0..n {
            let of_row = r * k..(r + 1) * k;
            assert_eq!(bits(&row(&dense, r)), bits(&weights[of_row.clone()]));
            let want: Vec<f32> =
                f16[of_row].iter().map(|&h| crate::convert::f32_from_f16(h)).collect();
            assert_eq!(bits(&row(&half, r)), bits(&want));
            let value = |i: usize| {
                f32::from(q[r * k + i]).mul_add(scale[r * 4 + i / 16], min[r * 4 + i / 16])
            };
            let want: Vec<f32> = (0..k).map(value).collect();
            assert_eq!(bits(&row(&affine, r)), bits(&want));
        }
    }

    #[test]
    fn a_matrix_reports_the_bytes_it_holds() {
        let dense = Matrix::from_f32(16, 64, &[0.0; 1024]);
        assert_eq!(dense.bytes(), 4096);
        let ragged = Matrix::from_f16(17, 64, &[0; 17 * 64]);
        assert_eq!(ragged.bytes(), 2 * 16 * 64 * 2, "two tiles");
        let affine =
            Matrix::from_affine(16, 64, (BYTES, 32), &[0; 1024], &[0.0; 32], Some(&[0.0; 32]));
        assert_eq!(affine.bytes(), 1024 + 2 * 2 * 32, "scales and minima that are f16 stay so");
        let third = [1.0 / 3.0; 32];
        let affine = Matrix::from_affine(16, 64, (BYTES, 32), &[0; 1024], &third, None);
        assert_eq!(affine.bytes(), 1024 + 2 * 64);
    }

    #[test]
    fn tiles_built_on_the_pool_make_the_same_matrix() {
        let (n, k) = (100, 64);
        let weights = noise(1, n * k);
        let built = Matrix::build(&pool(2), &heap, n, k, Format::F32, |rows, tile| {
            assert_eq!(rows.len(), tile.rows());
            tile.f32(&weights[rows.start * k..rows.end * k]);
            Ok::<(), ()>(())
        })
        .unwrap();
        for r in 0..n {
            assert_eq!(row(&built, r), weights[r * k..(r + 1) * k]);
        }
    }

    #[test]
    fn an_error_of_one_tile_is_the_error_of_the_build() {
        let built = Matrix::build(&pool(2), &heap, 160, 1, Format::F32, |rows, tile| {
            if rows.contains(&70) {
                return Err("row 70 is missing");
            }
            tile.f32(&vec![0.0; rows.len()]);
            Ok(())
        });
        assert_eq!(built.unwrap_err(), "row 70 is missing");
    }

    #[test]
    #[should_panic(expected = "groups of 32 in rows of 48")]
    fn a_group_that_does_not_divide_a_row_is_refused() {
        Matrix::from_affine(1, 48, (BYTES, 32), &[0; 48], &[0.0], None);
    }

    #[test]
    #[should_panic(expected = "the format of the matrix")]
    fn a_tile_takes_only_its_own_format() {
        let filled = Matrix::build(&pool(1), &heap, 1, 1, Format::F16, |_, tile| {
            tile.f32(&[1.0]);
            Ok::<(), ()>(())
        });
        assert!(filled.is_ok());
    }
}
