//! Records: the end of a chain that fills no block, in one immutable file.
//!
//! ```text
//!      0   8  magic "tgkv-rec"
//!      8   4  format version, 1
//!     12   4  flags: 1 a hidden state follows, 2 the digest of the text is known
//!     16   8  length of the file
//!     24   4  tokens of the whole chain
//!     28   4  t: ids after the last block, 0..=31
//!     32   8  r: bytes of the rows
//!     40   8  h: numbers of the hidden state
//!     48  32  fingerprint
//!     80  32  digest of the layout
//!    112  32  key of the record
//!    144  32  key of the last block, or of the chain's root
//!    176  32  digest of the text, or zeros
//!    208  32  blake3 of the body
//!    240      t ids of 4 bytes
//!         32  blake3 of everything before
//!   body      r bytes of rows, h numbers of 4 bytes (f32)
//! ```
//!
//! The head has a checksum of its own, so that a list of records need not read their bodies.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::coding::{Decoder, Encoder, SUM, checksum, expect_kind, summed};
use super::damage::{Damage, Fault};
use super::name::{Name, VERSION};
use crate::kv::key::{BlockKey, Digest, Fingerprint, RecordKey};
use crate::kv::layout::BLOCK;
use crate::kv::record::Record;

const MAGIC: [u8; 8] = *b"tgkv-rec";
const HIDDEN: u32 = 1;
const TEXT: u32 = 2;
const PREFIX: usize = 240;

/// What a record says about itself; everything but its rows and its hidden state.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Head {
    pub(super) fingerprint: Fingerprint,
    pub(super) layout: Digest,
    pub(super) key: RecordKey,
    pub(super) last: BlockKey,
    pub(super) length: u32,
    pub(super) tail: Vec<u32>,
    pub(super) text: Option<Digest>,
    /// Whether it holds a hidden state.
    pub(super) complete: bool,
    rows: u64,
    hidden: u64,
    body: [u8; 32],
}

impl Head {
    /// The name that the file must have.
    pub(super) fn name(&self) -> Name {
        Name::Record { last: self.last.short(), key: self.key.short() }
    }

    /// The length that the file must have.
    pub(super) fn file_len(&self) -> Option<u64> {
        let body = self.hidden.checked_mul(4)?.checked_add(self.rows)?;
        body.checked_add(head_len(self.tail.len()) as u64)
    }

    /// Reads the head and believes none of it unchecked.
    pub(super) fn read(file: &File) -> Result<Self, Fault> {
        let found = file.metadata()?.len();
        let mut bytes = vec![0; found.min(head_len(BLOCK - 1) as u64) as usize];
        file.read_exact_at(&mut bytes, 0)?;
        Ok(Self::decode(&bytes, found)?)
    }

    /// `bytes` are the whole head at least, and `found` is the length of the file.
    pub(super) fn decode(bytes: &[u8], found: u64) -> Result<Self, Damage> {
        let mut from = Decoder::new(bytes);
        expect_kind(&mut from, MAGIC, VERSION)?;
        let (flags, said, length, t) = (from.u32()?, from.u64()?, from.u32()?, from.u32()?);
        if said != found {
            return Err(Damage::Length { found, said });
        }
        if t as usize >= BLOCK {
            return Err(Damage::Count { what: "tail ids", found: t.into(), most: 31 });
        }
        summed(bytes, head_len(t as usize))?;
        let (rows, hidden) = (from.u64()?, from.u64()?);
        let (fingerprint, layout) = (Fingerprint(from.array()?), Digest(from.array()?));
        let (key, last) = (RecordKey(from.array()?), BlockKey(from.array()?));
        let (text, body) = (Digest(from.array()?), from.array()?);
        let tail = (0..t).map(|_| from.u32()).collect::<Result<Vec<_>, _>>()?;
        let text = (flags & TEXT != 0).then_some(text);
        let complete = flags & HIDDEN != 0;
        let head = Self {
            fingerprint,
            layout,
            key,
            last,
            length,
            tail,
            text,
            complete,
            rows,
            hidden,
            body,
        };
        head.check(flags, found)?;
        Ok(head)
    }

    fn check(&self, flags: u32, found: u64) -> Result<(), Damage> {
        if flags & !(HIDDEN | TEXT) != 0 || self.complete != (self.hidden > 0) {
            return Err(Damage::Field("flags"));
        }
        if self.length as usize % BLOCK != self.tail.len() || self.length == 0 {
            return Err(Damage::Field("tokens"));
        }
        if RecordKey::new(&self.fingerprint, &self.last, &self.tail) != self.key {
            return Err(Damage::Key(0));
        }
        match self.file_len() {
            Some(said) if said == found => Ok(()),
            said => Err(Damage::Length { found, said: said.unwrap_or(u64::MAX) }),
        }
    }

    fn encode(&self) -> Vec<u8> {
        let flag = |set: bool, flag| if set { flag } else { 0 };
        let mut to = Encoder::default();
        to.bytes(&MAGIC).u32(VERSION);
        to.u32(flag(self.complete, HIDDEN) | flag(self.text.is_some(), TEXT));
        to.u64(self.file_len().expect("rows in memory are not 2^64 bytes long"));
        to.u32(self.length).u32(self.tail.len() as u32).u64(self.rows).u64(self.hidden);
        to.bytes(&self.fingerprint.0).bytes(&self.layout.0).bytes(&self.key.0).bytes(&self.last.0);
        to.bytes(&self.text.unwrap_or_default().0).bytes(&self.body).u32s(&self.tail);
        to.sum().finish()
    }
}

/// The head and the whole file of `record`.
pub(super) fn encode(fingerprint: Fingerprint, layout: Digest, record: &Record) -> (Head, Vec<u8>) {
    let hidden = record.hidden.as_deref().unwrap_or_default();
    let mut body = record.rows.clone();
    body.extend(hidden.iter().flat_map(|number| number.to_le_bytes()));
    let head = Head {
        fingerprint,
        layout,
        key: record.key,
        last: record.last,
        length: record.length,
        tail: record.tail.clone(),
        text: record.text,
        complete: !hidden.is_empty(),
        rows: record.rows.len() as u64,
        hidden: hidden.len() as u64,
        body: checksum(&body),
    };
    let mut bytes = head.encode();
    bytes.extend(body);
    (head, bytes)
}

/// Reads a whole record and checks all of it.
pub(super) fn read(file: &File) -> Result<(Head, Record), Fault> {
    // The length was compared with the file's: what is allocated is there.
    let head = Head::read(file)?;
    let start = head_len(head.tail.len()) as u64;
    let mut rows = vec![0; (head.rows + head.hidden * 4) as usize];
    file.read_exact_at(&mut rows, start)?;
    if checksum(&rows) != head.body {
        return Err(Damage::BodySum.into());
    }
    let hidden = rows.split_off(head.rows as usize);
    let (numbers, _) = hidden.as_chunks::<4>();
    let hidden = numbers.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    let record = Record {
        family: head.fingerprint,
        key: head.key,
        last: head.last,
        length: head.length,
        tail: head.tail.clone(),
        rows,
        hidden: head.complete.then_some(hidden),
        text: head.text,
    };
    Ok((head, record))
}

fn head_len(tail: usize) -> usize {
    PREFIX + tail * 4 + SUM
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn record(tail: usize, hidden: Option<Vec<f32>>, text: Option<Digest>) -> Record {
        let last = BlockKey([3; 32]);
        let tail: Vec<u32> = (0..tail as u32).collect();
        let key = RecordKey::new(&FINGERPRINT, &last, &tail);
        let (length, rows) = (64 + tail.len() as u32, vec![5; tail.len() * 4]);
        Record { family: FINGERPRINT, key, last, length, tail, rows, hidden, text }
    }

    const FINGERPRINT: Fingerprint = Fingerprint([7; 32]);
    const LAYOUT: Digest = Digest([9; 32]);

    fn file(bytes: &[u8]) -> File {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(bytes, 0).unwrap();
        file
    }

    #[test]
    fn a_record_reads_back_as_what_was_written() {
        for tail in [0, 1, 31] {
            for hidden in [None, Some(vec![1.0, -0.0, f32::MAX])] {
                for text in [None, Some(Digest([4; 32]))] {
                    let record = record(tail, hidden.clone(), text);
                    let (head, bytes) = encode(FINGERPRINT, LAYOUT, &record);
                    assert_eq!(read(&file(&bytes)).unwrap(), (head.clone(), record));
                    assert_eq!(Head::read(&file(&bytes)).unwrap(), head);
                }
            }
        }
    }

    #[test]
    fn every_flipped_bit_and_every_other_length_is_noticed() {
        let (_, bytes) = encode(FINGERPRINT, LAYOUT, &record(3, Some(vec![1.0]), None));
        let flipped = file(&bytes);
        for bit in 0..bytes.len() * 8 {
            let at = bit / 8;
            flipped.write_all_at(&[bytes[at] ^ (1 << (bit % 8))], at as u64).unwrap();
            assert!(matches!(read(&flipped), Err(Fault::Damaged(_))), "bit {bit}");
            flipped.write_all_at(&bytes[at..=at], at as u64).unwrap();
        }
        for len in (0..bytes.len()).chain([bytes.len() + 1]) {
            let cut = file(&bytes);
            cut.set_len(len as u64).unwrap();
            assert!(matches!(read(&cut), Err(Fault::Damaged(_))), "{len} bytes");
        }
    }

    #[test]
    fn a_head_with_a_right_checksum_must_also_make_sense() {
        let forged = |change: &dyn Fn(&mut Head)| {
            let (mut head, _) = encode(FINGERPRINT, LAYOUT, &record(3, Some(vec![1.0]), None));
            change(&mut head);
            let bytes = head.encode();
            let len = head.file_len().unwrap();
            Head::decode(&bytes, len).unwrap_err()
        };
        assert_eq!(forged(&|head| head.length += 1), Damage::Field("tokens"));
        assert_eq!(forged(&|head| head.complete = false), Damage::Field("flags"));
        assert_eq!(forged(&|head| head.tail[0] += 1), Damage::Key(0));
        assert_eq!(forged(&|head| head.last.0[0] ^= 1), Damage::Key(0));
        assert_eq!(forged(&|head| head.fingerprint.0[0] ^= 1), Damage::Key(0));
    }

    #[test]
    fn sizes_are_compared_with_the_file_before_memory_is_asked_for() {
        let (mut head, _) = encode(FINGERPRINT, LAYOUT, &record(3, Some(vec![1.0]), None));
        let len = head.file_len().unwrap();
        head.rows = 1 << 40;
        let mut bytes = head.encode();
        bytes[16..24].copy_from_slice(&len.to_le_bytes());
        let end = head_len(3) - SUM;
        let sum = checksum(&bytes[..end]);
        bytes[end..].copy_from_slice(&sum);
        assert!(matches!(Head::decode(&bytes, len), Err(Damage::Length { .. })));
    }
}
