//! A model's packed matrices in a file of our own, so that a later start maps what this one packed.
//!
//! A [`Pack`] is the matrices of one model file in the order in which its reader asks for them.
//! The model file is still read, but for its matrices: every check of its head stays where it is,
//! and numbers, norms and the vocabulary come from it.
//!
//! A pack is a cache: it may be missing, never wrong. Its header names the contents of the model
//! file and the build that packed them, every byte is compared with a checksum once before anyone
//! sees it, and whatever does not fit is packed again. `docs/format.md` has every byte.

mod header;
mod packing;
mod unkept;

use std::io;
use std::sync::Arc;
use std::sync::OnceLock;

use bytes::Bytes;
use tinygpt_kernels::{Format, Matrix, Pool};
use twox_hash::XxHash3_128;

use self::header::Header;
pub use self::packing::Packing;
pub use self::unkept::Unkept;
use crate::kv::key::Digest;
use crate::sys::mmap::Map;

/// Bytes that have a checksum of their own.
const PIECE: usize = 1 << 20;

/// The packed matrices of a model, mapped. They may be taken before they are verified, and must not
/// be computed with.
#[derive(Debug)]
pub struct Pack {
    header: Header,
    bytes: Bytes,
    map: Arc<Map>,
}

/// Why a file is not the pack that is wanted.
#[derive(Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PackError {
    /// It is too short for a header, or begins with something else.
    #[error("not a file of packed weights: {have} bytes")]
    NotAPack {
        /// Bytes of the file.
        have: usize,
    },
    /// Another version of the daemon packed it, or packs otherwise.
    #[error("packed by another build of the daemon")]
    Build,
    /// It holds another model.
    #[error("of a model file with other contents: {found}")]
    Weights {
        /// The identity in its header.
        found: Digest,
    },
    /// The header is not one that is written, or the file has another length than it says.
    #[error("its header is damaged, or its length of {have} bytes is not what the header says")]
    Header {
        /// Bytes of the file.
        have: usize,
    },
    /// Bytes that have another checksum.
    #[error("the piece at byte {at} has another checksum")]
    Sum {
        /// Where the piece begins.
        at: usize,
    },
    /// The system could not read the file.
    #[error("cannot read the piece at byte {at}: {reason}")]
    Read {
        /// Where the piece begins.
        at: usize,
        /// What the system said.
        reason: String,
    },
}

impl Pack {
    /// The pack of the model file whose contents are `weights`.
    ///
    /// # Errors
    /// When the header is anything else than what was written for these contents by this build.
    pub fn open(map: Arc<Map>, weights: Digest) -> Result<Pack, PackError> {
        let header = Header::decode(&map, weights)?;
        Ok(Pack { header, bytes: Bytes::from_owner(Mapped(Arc::clone(&map))), map })
    }

    /// What its matrices lie in.
    pub fn map(&self) -> &Arc<Map> {
        &self.map
    }

    /// Reads and compares all of it, on the pool.
    ///
    /// # Errors
    /// When a byte is not what was written.
    pub fn verify(&self, pool: &Pool) -> Result<(), PackError> {
        let failed = OnceLock::new();
        pool.run(self.header.sums.len(), &|piece| {
            if let Err(error) = verify(&self.map, &self.header, piece) {
                failed.get_or_init(|| error);
            }
        });
        failed.into_inner().map_or(Ok(()), Err)
    }

    /// The `index`-th matrix that was packed, if it is `[N][K]` in this format.
    fn matrix(&self, index: usize, n: usize, k: usize, format: Format) -> Option<Matrix> {
        let (entry, range) = self.header.matrix(index)?;
        if !entry.is(n, k, format) {
            return None;
        }
        Matrix::kept(n, k, format, entry.scales, &self.bytes.slice(range))
    }
}

/// Brings a piece into memory and compares its checksum.
fn verify(map: &Map, header: &Header, piece: usize) -> Result<(), PackError> {
    let range = header.piece(piece);
    let at = range.start;
    let unread = |error: io::Error| PackError::Read { at, reason: error.to_string() };
    map.fault_in(range.clone()).map_err(unread)?;
    match sum(&map[range]) == header.sums[piece] {
        true => Ok(()),
        false => Err(PackError::Sum { at }),
    }
}

/// The checksum of a piece. It is to find damage, not malice, for which these bytes would have to be
/// hashed as the model file is: who can write here can write there.
fn sum(piece: &[u8]) -> u128 {
    XxHash3_128::oneshot(piece)
}

/// A map that matrices share.
struct Mapped(Arc<Map>);

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests;
