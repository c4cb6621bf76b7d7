//! Fixed-width little-endian numbers, to bytes and back.
//!
//! Everything that the store puts on a disk goes through here, so no native byte order and no
//! platform's `usize` can slip into a file.

use super::damage::Damage;

/// Appends values to bytes.
#[derive(Debug, Default)]
pub(super) struct Encoder(Vec<u8>);

impl Encoder {
    pub(super) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(super) fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(super) fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(super) fn u32s(&mut self, values: &[u32]) -> &mut Self {
        values.iter().for_each(|value| _ = self.u32(*value));
        self
    }

    /// Appends the checksum of everything so far.
    pub(super) fn sum(&mut self) -> &mut Self {
        let sum = checksum(&self.0);
        self.bytes(&sum)
    }

    /// Appends zeros up to `len` bytes.
    pub(super) fn pad(&mut self, len: usize) -> &mut Self {
        self.0.resize(len.max(self.0.len()), 0);
        self
    }

    pub(super) fn finish(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0)
    }
}

/// Takes values from the front of bytes.
#[derive(Debug)]
pub(super) struct Decoder<'a>(&'a [u8]);

impl<'a> Decoder<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) fn slice(&mut self, len: usize) -> Result<&'a [u8], Damage> {
        let short = Damage::Short { found: self.0.len() as u64, needed: len as u64 };
        let (head, rest) = self.0.split_at_checked(len).ok_or(short)?;
        self.0 = rest;
        Ok(head)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Damage> {
        let mut array = [0; N];
        array.copy_from_slice(self.slice(N)?);
        Ok(array)
    }

    /// Bytes that were not taken.
    pub(super) fn left(&self) -> usize {
        self.0.len()
    }

    pub(super) fn u32(&mut self) -> Result<u32, Damage> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Damage> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn u32s<const N: usize>(&mut self) -> Result<[u32; N], Damage> {
        let mut values = [0; N];
        for value in &mut values {
            *value = self.u32()?;
        }
        Ok(values)
    }
}

/// Bytes of a checksum.
pub(super) const SUM: usize = 32;

/// What lies before the checksum that ends the first `len` of `bytes`, which it must fit.
pub(super) fn summed(bytes: &[u8], len: usize) -> Result<&[u8], Damage> {
    let short = Damage::Short { found: bytes.len() as u64, needed: len as u64 };
    let (covered, sum) = bytes.get(..len).ok_or(short)?.split_at(len - SUM);
    // A fuzzer would not get past it.
    let whole = cfg!(fuzzing) || checksum(covered) == *sum;
    whole.then_some(covered).ok_or(Damage::HeaderSum)
}

/// The checksum of everything on disk: blake3, in full.
pub(super) fn checksum(bytes: &[u8]) -> [u8; SUM] {
    *blake3::hash(bytes).as_bytes()
}

/// Refuses a magic number or a version that is not ours.
pub(super) fn expect_kind(
    decoder: &mut Decoder<'_>,
    magic: [u8; 8],
    known: u32,
) -> Result<(), Damage> {
    if decoder.array()? != magic {
        return Err(Damage::Magic);
    }
    match decoder.u32()? {
        found if found == known => Ok(()),
        found => Err(Damage::Version { found, known }),
    }
}

/// Refuses a count outside `1..=most`.
pub(super) fn expect_count(what: &'static str, found: u32, most: u32) -> Result<usize, Damage> {
    if found == 0 || found > most {
        return Err(Damage::Count { what, found: found.into(), most: most.into() });
    }
    Ok(found as usize)
}
