//! Packed weights that are kept in a file between two processes, so that they are packed once.
//!
//! A matrix is its shape, its format, and three runs of bytes: weights, scales, minima. Whoever
//! keeps these parts gets the same matrix back, bit for bit, without a look at its source.

use bytes::Bytes;

use super::buffer::{Buffer, whole_lines};
use super::{Format, Matrix};
use crate::lanes::{LANES, Lanes};

/// The version of the arrangement of packed weights. Raised with every change of it, so that
/// nobody takes old bytes for new ones.
pub const PACKING: u32 = 1;

impl Matrix {
    /// What the [`parts`](Self::parts) of an `[N][K]` matrix take; `half` when scales and minima
    /// are f16. Each is whole cache lines.
    pub fn part_bytes(n: usize, k: usize, format: Format, half: bool) -> [usize; 3] {
        let tiles = n.div_ceil(LANES);
        let (scales, mins) = format.groups(k);
        let group = size_of::<Lanes>() / if half { 2 } else { 1 };
        [format.tile_bytes(k), scales * group, mins * group].map(|tile| whole_lines(tiles * tile))
    }

    /// Whether scales and minima are f16, and not f32.
    pub fn is_half(&self) -> bool {
        self.half
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
    pub fn kept(n: usize, k: usize, format: Format, half: bool, bytes: &Bytes) -> Option<Matrix> {
        format.check(k);
        let [weights, scales, mins] = Matrix::part_bytes(n, k, format, half);
        if bytes.len() != weights + scales + mins {
            return None;
        }
        let part = |at: usize, length: usize| Buffer::kept(bytes.slice(at..at + length));
        let (scales, mins) = (part(weights, scales)?, part(weights + scales, mins)?);
        Some(Matrix { n, k, format, weights: part(0, weights)?, scales, mins, half })
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::code::Code;
    use crate::noise::{bits, noise};

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
        vec![
            Matrix::from_f32(n, k, &noise(1, n * k)),
            Matrix::from_f16(n, k, &vec![0x3c00; n * k]),
            affine(&scale),
            Matrix::from_affine(n, k, (code, 32), &nibbles, &[0.5; 38], Some(&[0.25; 38])),
        ]
    }

    #[test]
    fn a_matrix_comes_back_from_its_parts_with_the_same_bits() {
        let halves: Vec<bool> = matrices().iter().map(Matrix::is_half).collect();
        assert_eq!(halves, [true, true, false, true]);
        for matrix in matrices() {
            let (n, k, format, half) = (matrix.n(), matrix.k(), matrix.format(), matrix.is_half());
            assert_eq!(matrix.parts().map(<[u8]>::len), Matrix::part_bytes(n, k, format, half));
            let again = Matrix::kept(n, k, format, half, &kept(matrix.parts(), 0)).unwrap();
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
            let (n, k, format, half) = (matrix.n(), matrix.k(), matrix.format(), matrix.is_half());
            let from = |n, bytes: &Bytes| Matrix::kept(n, k, format, half, bytes).is_some();
            let whole = kept(matrix.parts(), 0);
            assert!(!from(n, &kept(matrix.parts(), 1)), "{matrix:?}");
            assert!(!from(n + 16, &whole) && !from(n - 16, &whole), "{matrix:?}");
            assert!(!from(n, &whole.slice(..whole.len() - 64)), "{matrix:?}");
        }
    }
}
