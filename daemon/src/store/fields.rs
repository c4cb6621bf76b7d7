//! Digest files: what a family's name was made from, field by field, for the reasons of misses.
//!
//! ```text
//!      0   8  magic "tgkv-fld"
//!      8   4  format version, 1
//!     12   4  n: number of fields
//!     16  32  fingerprint
//!     48      n times: the field's tag in ASCII, zero-padded to 16 bytes, and its digest of 32
//!         32  blake3 of everything before
//! ```

use super::coding::{Decoder, Encoder, SUM, expect_kind, summed};
use super::damage::Damage;
use super::name::VERSION;
use crate::kv::key::{Digest, Field, Fields, Fingerprint};

const MAGIC: [u8; 8] = *b"tgkv-fld";
const TAG: usize = 16;

/// Bytes of every digest file.
pub(super) const LEN: usize = 48 + Fields::ALL.len() * (TAG + 32) + SUM;

/// The bytes of the file of `fields`.
pub(super) fn encode(fields: &Fields) -> Vec<u8> {
    let mut to = Encoder::default();
    to.bytes(&MAGIC).u32(VERSION).u32(Fields::ALL.len() as u32).bytes(&fields.fingerprint().0);
    for field in Fields::ALL {
        to.bytes(&tag(*field)).bytes(&fields.digest(*field).0);
    }
    to.sum().finish()
}

/// The inverse of [`encode`].
pub(super) fn decode(bytes: &[u8]) -> Result<(Fingerprint, Fields), Damage> {
    if bytes.len() != LEN {
        return Err(Damage::Length { found: bytes.len() as u64, said: LEN as u64 });
    }
    let mut from = Decoder::new(bytes);
    expect_kind(&mut from, MAGIC, VERSION)?;
    summed(bytes, LEN)?;
    if from.u32()? as usize != Fields::ALL.len() {
        return Err(Damage::Field("fields"));
    }
    let fingerprint = Fingerprint(from.array()?);
    let mut fields = Fields::default();
    for field in Fields::ALL {
        if from.array()? != tag(*field) {
            return Err(Damage::Field("tag"));
        }
        fields.set(*field, Digest(from.array()?));
    }
    let named = fields.fingerprint() == fingerprint;
    named.then_some((fingerprint, fields)).ok_or(Damage::Key(0))
}

fn tag(field: Field) -> [u8; TAG] {
    let mut tag = [0; TAG];
    tag[..field.tag().len()].copy_from_slice(field.tag().as_bytes());
    tag
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::store::coding::checksum;

    fn fields() -> Fields {
        let mut fields = Fields::default();
        for field in Fields::ALL {
            fields.set(*field, Digest::of(field.tag(), b"value"));
        }
        fields
    }

    #[test]
    fn fields_read_back_as_what_was_written() {
        let bytes = encode(&fields());
        assert_eq!(bytes.len(), LEN);
        assert_eq!(decode(&bytes).unwrap(), (fields().fingerprint(), fields()));
    }

    #[test]
    fn every_flipped_bit_and_every_other_length_is_noticed() {
        let mut bytes = encode(&fields());
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&bytes).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        bytes.push(0);
        for len in (0..LEN).chain([LEN + 1]) {
            assert!(decode(&bytes[..len]).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn digests_that_do_not_give_the_fingerprint_are_refused() {
        let mut bytes = encode(&fields());
        bytes[70] ^= 1;
        let sum = checksum(&bytes[..LEN - SUM]);
        bytes[LEN - SUM..].copy_from_slice(&sum);
        assert_eq!(decode(&bytes), Err(Damage::Key(0)));
    }
}
