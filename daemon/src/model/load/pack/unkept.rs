//! A pack that is yet to be written.

use std::fmt;

use tinygpt_kernels::Matrix;

use super::header::{Entry, Header};
use super::{PIECE, sum};
use crate::kv::key::Digest;

/// Matrices that were packed by this process.
pub struct Unkept {
    header: Header,
    matrices: Vec<Matrix>,
    /// The part that is written next, three to a matrix, and how much of it is.
    part: usize,
    written: usize,
}

impl Unkept {
    /// All `matrices` of the model file whose contents are `weights`, in the order of its reader.
    pub fn new(weights: Digest, matrices: Vec<Matrix>) -> Self {
        let entries = matrices.iter().map(Entry::of).collect();
        let header = Header { weights, matrices: entries, sums: Vec::new() };
        Self { header, matrices, part: 0, written: 0 }
    }

    /// The contents of the model file.
    pub fn weights(&self) -> Digest {
        self.header.weights
    }

    /// Bytes of the file.
    pub fn file_bytes(&self) -> u64 {
        let data = self.data();
        (Header::data_start(self.matrices.len(), data) + data) as u64
    }

    /// What is to be written and where, piece by piece, the header last: until then the file is
    /// none.
    pub fn pieces(mut self) -> impl Iterator<Item = (u64, Vec<u8>)> + Send {
        let data = self.data();
        let (start, pieces) = (Header::data_start(self.matrices.len(), data), data.div_ceil(PIECE));
        (0..=pieces).map(move |piece| {
            if piece == pieces {
                return (0, self.header.encode());
            }
            let bytes = self.next_piece();
            self.header.sums.push(sum(&bytes));
            ((start + piece * PIECE) as u64, bytes)
        })
    }

    fn data(&self) -> usize {
        self.matrices.iter().map(Matrix::bytes).sum()
    }

    fn next_piece(&mut self) -> Vec<u8> {
        let mut piece = Vec::with_capacity(PIECE);
        while piece.len() < PIECE && self.part < 3 * self.matrices.len() {
            let rest = &self.matrices[self.part / 3].parts()[self.part % 3][self.written..];
            let taken = rest.len().min(PIECE - piece.len());
            piece.extend(&rest[..taken]);
            match taken == rest.len() {
                true => (self.part, self.written) = (self.part + 1, 0),
                false => self.written += taken,
            }
        }
        piece
    }
}

impl fmt::Debug for Unkept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Unkept({}, {} bytes)", self.header.weights, self.file_bytes())
    }
}
