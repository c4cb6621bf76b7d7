//! What a loader fills: up to sixteen rows, interleaved into their tile.

use bytemuck::Pod;

use crate::code::{BLOCK, Code};
use crate::lanes::{LANES, Lanes};
use crate::matrix::{Coded, Format};

/// Up to sixteen output rows of a matrix being built.
#[derive(Debug)]
pub struct Tile<'a> {
    pub(super) rows: usize,
    pub(super) k: usize,
    pub(super) format: Format,
    pub(super) weights: &'a mut [u8],
    pub(super) scales: &'a mut [Lanes],
    pub(super) mins: &'a mut [Lanes],
}

impl Tile<'_> {
    /// How many rows the tile wants: 16, or fewer at the end of a matrix.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Packs rows `[rows][K]` of f32.
    ///
    /// # Panics
    /// When the matrix has another format, or a length does not fit.
    pub fn f32(&mut self, rows: &[f32]) {
        assert_eq!(self.format, Format::F32, "the format of the matrix");
        self.pack(rows);
    }

    /// Packs rows `[rows][K]` of f16 bits.
    ///
    /// # Panics
    /// When the matrix has another format, or a length does not fit.
    pub fn f16(&mut self, rows: &[u16]) {
        assert_eq!(self.format, Format::F16, "the format of the matrix");
        self.pack(rows);
    }

    /// Packs rows `[rows][K]` of bf16 bits.
    ///
    /// # Panics
    /// When the matrix has another format, or a length does not fit.
    pub fn bf16(&mut self, rows: &[u16]) {
        assert_eq!(self.format, Format::BF16, "the format of the matrix");
        self.pack(rows);
    }

    /// Packs rows of quants `[rows][K]` with scales, and minima where the format has them,
    /// `[rows][K / group]`.
    ///
    /// # Panics
    /// When the matrix has another format, or a length does not fit.
    pub fn affine(&mut self, q: &[i8], scale: &[f32], min: Option<&[f32]>) {
        let is_affine = matches!(self.format, Format::Affine { .. });
        assert!(is_affine, "integers for a matrix of {:?}", self.format);
        self.quantised(q, scale, min, Code::of);
    }

    /// The same for codes as they are: `q = code - zero`, an entry's number, or an 8-bit float.
    ///
    /// # Panics
    /// When the matrix has another format, or a length does not fit.
    pub fn codes(&mut self, codes: &[u8], scale: &[f32], min: Option<&[f32]>) {
        self.quantised(codes, scale, min, |_, code| code);
    }

    fn quantised<Q: Copy>(
        &mut self,
        q: &[Q],
        scale: &[f32],
        min: Option<&[f32]>,
        code_of: impl Fn(Code, Q) -> u8,
    ) {
        let Some(Coded { code, .. }) = self.format.coded() else {
            panic!("quants for a matrix of {:?}", self.format);
        };
        assert_eq!(min.is_some(), self.format.has_min(), "minima where the format has them");
        assert_eq!(q.len(), self.rows * self.k, "{} rows of {}", self.rows, self.k);
        for (lane, row) in q.chunks_exact(self.k.max(1)).enumerate() {
            let blocks = self.weights.chunks_exact_mut(code.block_bytes());
            for (block, row) in blocks.zip(row.chunks_exact(BLOCK)) {
                let codes = row.iter().map(|&q| code_of(code, q)).enumerate();
                codes.for_each(|(k, q)| code.put(block, lane, k, q));
            }
        }
        interleave(scale, self.rows, self.scales);
        interleave(min.unwrap_or(&[]), self.rows, self.mins);
    }

    fn pack<T: Pod>(&mut self, rows: &[T]) {
        assert_eq!(rows.len(), self.rows * self.k, "{} rows of {}", self.rows, self.k);
        interleave(rows, self.rows, bytemuck::cast_slice_mut(self.weights));
    }
}

/// `to[k][row] = from[row][k]`; lanes without a row keep their zeros.
fn interleave<T: Copy>(from: &[T], rows: usize, to: &mut [[T; LANES]]) {
    let width = to.len();
    assert_eq!(from.len(), rows * width, "{rows} rows of {width}");
    for (lane, row) in from.chunks_exact(width.max(1)).enumerate() {
        for (to, &x) in to.iter_mut().zip(row) {
            to[lane] = x;
        }
    }
}
