//! Who a model is: the hash of its file's contents.
//!
//! So a renamed or copied file is the same model and a retrained one is another, whatever its name,
//! size or times say. Hashing a large file takes as long as loading it; therefore what a file's
//! contents hashed to is [remembered](Identities) between launches, under its [`Stamp`].

mod memory;
mod stamp;
mod stamps;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

pub use self::memory::Identities;
pub use self::stamp::Stamp;
pub use self::stamps::Stamps;

use crate::kv::key::Digest;

/// Bytes that are read and hashed at a time.
const PIECE: usize = 4 << 20;

/// The identity of a model in memory.
pub fn of_bytes(bytes: &[u8]) -> Digest {
    Digest(*blake3::Hasher::new().update_rayon(bytes).finalize().as_bytes())
}

/// The identity of a file of `length` bytes.
///
/// # Errors
/// When the system cannot read the file, or it has become shorter.
pub fn of_file(file: &File, length: u64) -> io::Result<Digest> {
    let mut hasher = blake3::Hasher::new();
    let mut piece = vec![0; PIECE];
    for at in (0..length).step_by(PIECE) {
        let wanted = PIECE.min(usize::try_from(length - at).unwrap_or(PIECE));
        let piece = &mut piece[..wanted];
        let place = |error| io::Error::other(format!("{wanted} bytes at byte {at}: {error}"));
        file.read_exact_at(piece, at).map_err(place)?;
        hasher.update_rayon(piece);
    }
    Ok(Digest(*hasher.finalize().as_bytes()))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_who_its_bytes_are_however_many() {
        let bytes: Vec<u8> =
            (0..2 * PIECE as u32 + 5).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect();
        for length in [0, 1, PIECE - 1, PIECE, PIECE + 1, bytes.len()] {
            let file = tempfile::tempfile().unwrap();
            file.write_all_at(&bytes[..length], 0).unwrap();
            assert_eq!(of_file(&file, length as u64).unwrap(), of_bytes(&bytes[..length]));
        }
    }

    #[test]
    fn a_file_that_became_shorter_is_an_error_with_its_place() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(100).unwrap();
        let error = of_file(&file, 200).unwrap_err().to_string();
        assert!(error.starts_with("200 bytes at byte 0: "), "{error}");
    }
}
