//! The head of a pack.
//!
//! ```text
//!      0   8  magic "tgkv-pak"
//!      8   4  format version, 2
//!     12   4  m: number of matrices
//!     16   8  length of the file
//!     24   8  start of the data
//!     32  32  blake3 of the model file's contents
//!     64  32  digest of the build that packed them
//!     96      m times:
//!              8  N
//!              8  K
//!              8  format: kind, bits, zero, group, whether minima, type of scales, 0, 0
//!              8  length: weights, scales, minima
//!         then for each MiB of the data:
//!             16  its checksum, XXH3
//!         32  blake3 of everything before
//!             zeros up to the start of the data
//! ```

use std::ops::Range;

use tinygpt_kernels::{Code, Format, Matrix, PACKING, Scales, Table};

use super::{PIECE, PackError};
use crate::kv::key::Digest;

const MAGIC: [u8; 8] = *b"tgkv-pak";
const VERSION: u32 = 2;
const HEAD: usize = 96;
const ENTRY: usize = 32;
/// Bytes of a piece's checksum.
const SUM: usize = size_of::<u128>();
/// Bytes of the header's own.
const DIGEST: usize = 32;

/// The data starts at a multiple of this: the largest page of the systems that map it.
const PAGE: usize = 16 << 10;

/// What comes before the data.
#[derive(Debug, PartialEq)]
pub(super) struct Header {
    pub(super) weights: Digest,
    pub(super) matrices: Vec<Entry>,
    /// A checksum for each piece of the data.
    pub(super) sums: Vec<u128>,
}

/// A matrix: its bytes follow those of the one before.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Entry {
    n: u64,
    k: u64,
    format: [u8; 5],
    pub(super) scales: Scales,
    bytes: u64,
}

/// Stands for everything besides the model file that packed bytes depend on. The daemon's version
/// is in it because readers of model files decide what is packed.
fn build() -> Digest {
    let version = format!("{PACKING} {}", env!("CARGO_PKG_VERSION"));
    Digest::of("packing", version.as_bytes())
}

impl Entry {
    pub(super) fn of(matrix: &Matrix) -> Self {
        let bytes = matrix.bytes() as u64;
        let scales = matrix.scales_kept();
        Self { scales, bytes, ..Self::like(matrix.n(), matrix.k(), matrix.format()) }
    }

    /// Whether it is `[N][K]` in this format.
    pub(super) fn is(&self, n: usize, k: usize, format: Format) -> bool {
        *self == Self { scales: self.scales, bytes: self.bytes, ..Self::like(n, k, format) }
    }

    fn like(n: usize, k: usize, format: Format) -> Self {
        let byte = |group| u8::try_from(group).unwrap_or(0);
        let format = match format {
            Format::F32 => [0; 5],
            Format::F16 => [1, 0, 0, 0, 0],
            Format::BF16 => [2, 0, 0, 0, 0],
            Format::Affine { code: Code { bits, zero }, group, min } => {
                [3, bits, zero, byte(group), min.into()]
            }
            Format::Table { table: Table::E2M1, group } => [4, 0, 0, byte(group), 0],
            Format::Table { table: Table::IQ4NL, group } => [5, 0, 0, byte(group), 0],
            Format::E4M3 { group } => [6, 0, 0, byte(group), 0],
        };
        Self { n: n as u64, k: k as u64, format, scales: Scales::F32, bytes: 0 }
    }

    fn encode(&self) -> [u8; ENTRY] {
        let [kind, bits, zero, group, min] = self.format;
        let scales = self.scales as u8;
        let format = [kind, bits, zero, group, min, scales, 0, 0];
        let words = [self.n.to_le_bytes(), self.k.to_le_bytes(), format, self.bytes.to_le_bytes()];
        let mut entry = [0; ENTRY];
        entry.copy_from_slice(words.as_flattened());
        entry
    }

    fn decode(entry: &[u8; ENTRY]) -> Self {
        let [n, k, format, bytes] = [0, 8, 16, 24].map(|at| word(entry, at));
        let [kind, bits, zero, group, min, scales, ..] = format.to_le_bytes();
        // What is none of them is not written again as it was read.
        let scales = Scales::ALL.get(usize::from(scales)).copied().unwrap_or(Scales::F32);
        Self { n, k, format: [kind, bits, zero, group, min], scales, bytes }
    }
}

impl Header {
    pub(super) fn data_bytes(matrices: &[Entry]) -> Option<usize> {
        let mut sizes = matrices.iter().map(|entry| usize::try_from(entry.bytes).ok());
        sizes.try_fold(0usize, |sum, bytes| sum.checked_add(bytes?))
    }

    /// Where the data of so many matrices and bytes starts.
    pub(super) fn data_start(matrices: usize, data: usize) -> usize {
        (HEAD + matrices * ENTRY + data.div_ceil(PIECE) * SUM + DIGEST).next_multiple_of(PAGE)
    }

    fn end(&self) -> usize {
        self.start() + Self::data_bytes(&self.matrices).unwrap_or(0)
    }

    fn start(&self) -> usize {
        Self::data_start(self.matrices.len(), Self::data_bytes(&self.matrices).unwrap_or(0))
    }

    /// Where the bytes of a piece lie in the file.
    pub(super) fn piece(&self, piece: usize) -> Range<usize> {
        let at = self.start() + piece * PIECE;
        at..self.end().min(at + PIECE)
    }

    /// A matrix, and where its bytes lie in the file.
    pub(super) fn matrix(&self, index: usize) -> Option<(&Entry, Range<usize>)> {
        let entry = self.matrices.get(index)?;
        let at = self.start() + Self::data_bytes(&self.matrices[..index])?;
        Some((entry, at..at + entry.bytes as usize))
    }

    /// Everything before the data.
    pub(super) fn encode(&self) -> Vec<u8> {
        let count = u32::try_from(self.matrices.len()).unwrap_or(u32::MAX);
        let (length, start) = (self.end() as u64, self.start() as u64);
        let mut bytes = [&MAGIC[..], &VERSION.to_le_bytes(), &count.to_le_bytes()].concat();
        bytes.extend([length.to_le_bytes(), start.to_le_bytes()].as_flattened());
        bytes.extend([self.weights.0, build().0].as_flattened());
        self.matrices.iter().for_each(|entry| bytes.extend(entry.encode()));
        self.sums.iter().for_each(|sum| bytes.extend(sum.to_le_bytes()));
        let sum = blake3::hash(&bytes);
        bytes.extend(sum.as_bytes());
        bytes.resize(self.start(), 0);
        bytes
    }

    /// The inverse of [`encode`](Self::encode), of a whole `file`. There is one way to write a
    /// header: what was read is written again and compared, checksum and zeros included.
    pub(super) fn decode(file: &[u8], weights: Digest) -> Result<Header, PackError> {
        let have = file.len();
        let head = file.first_chunk::<HEAD>().filter(|head| head.starts_with(&MAGIC));
        let head = head.ok_or(PackError::NotAPack { have })?;
        let digest = |at: usize| {
            let mut digest = [0; 32];
            digest.copy_from_slice(&head[at..at + 32]);
            Digest(digest)
        };
        if head[8..12] != VERSION.to_le_bytes() || digest(64) != build() {
            return Err(PackError::Build);
        }
        if digest(32) != weights {
            return Err(PackError::Weights { found: digest(32) });
        }
        let header = tables(file, weights).ok_or(PackError::Header { have })?;
        match header.end() == have && file.starts_with(&header.encode()) {
            true => Ok(header),
            false => Err(PackError::Header { have }),
        }
    }
}

/// The matrices and checksums, as many as the head says and the file can hold.
fn tables(file: &[u8], weights: Digest) -> Option<Header> {
    let matrices = word(file, 8) >> 32;
    let matrices = usize::try_from(matrices).ok()?;
    let entries = file.get(HEAD..HEAD + matrices * ENTRY)?.as_chunks::<ENTRY>().0;
    let matrices: Vec<Entry> = entries.iter().map(Entry::decode).collect();
    let pieces = Header::data_bytes(&matrices).filter(|data| *data <= file.len())?.div_ceil(PIECE);
    let at = HEAD + entries.as_flattened().len();
    let sums = file.get(at..at + pieces * SUM)?.as_chunks::<SUM>().0;
    let sums = sums.iter().map(|sum| u128::from_le_bytes(*sum)).collect();
    Some(Header { weights, matrices, sums })
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}
