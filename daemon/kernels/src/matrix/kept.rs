//! Packed weights that are kept in a file between two processes, so that they are packed once.
//!
//! A matrix is its shape, its format, and three runs of bytes: weights, scales, minima. Whoever
//! keeps these parts gets the same matrix back, bit for bit, without a look at its source.

use bytes::Bytes;

use super::buffer::{Buffer, whole_lines};
use super::{Format, Matrix, Scales};
use crate::lanes::LANES;

/// The version of the arrangement of packed weights. Raised with every change of it, so that
/// nobody takes old bytes for new ones.
pub const PACKING: u32 = 2;

impl Matrix {
    /// What the [`parts`](Self::parts) of an `[N][K]` matrix take, with scales and minima as they
    /// are [kept](Self::scales_kept). Each is whole cache lines.
    pub fn part_bytes(n: usize, k: usize, format: Format, kept: Scales) -> [usize; 3] {
        let tiles = n.div_ceil(LANES);
        let (scales, mins) = format.groups(k);
        let group = LANES * kept.bytes();
        [format.tile_bytes(k), scales * group, mins * group].map(|tile| whole_lines(tiles * tile))
    }

    /// What scales and minima are kept as.
    pub fn scales_kept(&self) -> Scales {
        self.kept
    }

    /// Weights, scales, minima, as they lie in memory.
    pub fn parts(&self) -> [&[u8]; 3] {
        [&self.weights, &self.scales, &self.mins].map(Buffer::bytes)
    }

    /// The matrix whose [`parts`](Self::parts) lie in `bytes`, one after another.
    ///
    /// `None` when the bytes are not as many as [`part_bytes`](Self::part_bytes) says, or do not begin a cache line.
    ///
    /// # Panics
    /// When the format does not suit `k`.
    pub fn kept(n: usize, k: usize, format: Format, kept: Scales, bytes: &Bytes) -> Option<Matrix> {
        format.check(k);
        let [weights, scales, mins] = Matrix::part_bytes(n, k, format, kept);
        if bytes.len() != weights + scales + mins {
            return None;
        }
        let part = |at: usize, length: usize| Buffer::kept(bytes.slice(at..at + length));
        let (scales, mins) = (part(weights, scales)?, part(weights + scales, mins)?);
        Some(Matrix { n, k, format, weights: part(0, weights)?, scales, mins, kept })
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::code::Code;
    use crate::noise::{bits, noise};
    use crate::table::Table;

    /// Bytes at a cache line, or `off` bytes after one.
    fn kept(parts: [&[u8]; 3], off: usize) -> Bytes {
        let mut bytes = vec![0; parts.concat().len() + 128];
        let start = bytes.as_ptr().align_offset(64) + off;
        let end = start + parts.concat().len();
        bytes[start..end].copy_from_slice(&parts.concat());
        Bytes::from(bytes).slice(start..end)
    }

    fn matrices() -> Vec<Matrix> {
        let (n, k) = (19, 64);
        let nibbles: Vec<i8> = (0..n * k).map(|i| (i * 7 % 16) as i8).collect();
        let code = Code { bits: 4, zero: 0 };
        let (scale, min) = (noise(2, n * 2), noise(3, n * 2));
        let affine =
            |scale: &[f32]| Matrix::from_affine(n, k, (code, 32), &nibbles, scale, Some(&min));
        let codes: Vec<u8> = (0..n * k).map(|i| (i * 7 % 16) as u8).collect();
        let coded = |format| Matrix::from_codes(n, k, format, &codes, &[0.5; 38], None);
        vec![
            Matrix::from_f32(n, k, &noise(1, n * k)),
            Matrix::from_f16(n, k, &vec![0x3c00; n * k]),
            affine(&scale),
            Matrix::from_affine(n, k, (code, 32), &nibbles, &[0.5; 38], Some(&[0.25; 38])),
            // Too large for an f16.
            Matrix::from_affine(n, k, (code, 32), &nibbles, &[2.0_f32.powi(100); 38], None),
            coded(Format::Table { table: Table::E2M1, group: 32 }),
            coded(Format::E4M3 { group: 32 }),
        ]
    }

    #[test]
    fn a_matrix_comes_back_from_its_parts_with_the_same_bits() {
        let types: Vec<_> = matrices().iter().map(Matrix::scales_kept).collect();
        assert_eq!(types[2..5], [Scales::F32, Scales::F16, Scales::BF16]);
        for matrix in matrices() {
            let (n, k, format, scales) =
                (matrix.n(), matrix.k(), matrix.format(), matrix.scales_kept());
            assert_eq!(matrix.parts().map(<[u8]>::len), Matrix::part_bytes(n, k, format, scales));
            let again = Matrix::kept(n, k, format, scales, &kept(matrix.parts(), 0)).unwrap();
            let row = |matrix: &Matrix, r| {
                let mut row = vec![f32::NAN; k];
                matrix.row(r, &mut row);
                bits(&row)
            };
            (0..n).for_each(|r| assert_eq!(row(&again, r), row(&matrix, r), "{matrix:?}"));
        }
    }

    #[test]
    fn bytes_of_another_length_or_place_are_no_matrix() {
        for matrix in matrices() {
            let (n, k, format, scales) =
                (matrix.n(), matrix.k(), matrix.format(), matrix.scales_kept());
            let from = |n, bytes: &Bytes| Matrix::kept(n, k, format, scales, bytes).is_some();
            let whole = kept(matrix.parts(), 0);
            assert!(!from(n, &kept(matrix.parts(), 1)), "{matrix:?}");
            assert!(!from(n + 16, &whole) && !from(n - 16, &whole), "{matrix:?}");
            assert!(!from(n, &whole.slice(..whole.len() - 64)), "{matrix:?}");
        }
    }
}
