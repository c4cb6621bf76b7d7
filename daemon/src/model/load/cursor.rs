//! A reader over untrusted bytes that cannot be led past their end or into a large allocation.

use super::LoadError;

/// Position in a file of which the beginning is at hand; every read says what it was for.
#[derive(Clone, Debug)]
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    /// Bytes of the whole file, at least those at hand.
    length: usize,
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self::head(bytes, bytes.len())
    }

    /// A reader of the first bytes of a file of `length` bytes. What lies behind them counts as
    /// there, and asking for it is [`LoadError::LongHead`].
    pub(super) fn head(bytes: &'a [u8], length: usize) -> Self {
        Self { bytes, length, at: 0 }
    }

    /// Offset of the next byte.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// Bytes not read yet.
    pub(super) fn left(&self) -> usize {
        self.length - self.at
    }

    /// The next `need` bytes, borrowed.
    pub(super) fn take(&mut self, need: u64, what: &'static str) -> Result<&'a [u8], LoadError> {
        let begin = self.at;
        self.skip(need, what)?;
        self.bytes.get(begin..self.at).ok_or(LoadError::LongHead { need: self.at })
    }

    /// Passes over the next `need` bytes, which need not be at hand.
    pub(super) fn skip(&mut self, need: u64, what: &'static str) -> Result<(), LoadError> {
        let left = self.left();
        let size = usize::try_from(need).ok().filter(|&size| size <= left);
        self.at += size.ok_or(LoadError::Truncated { what, need, at: self.at, left })?;
        Ok(())
    }

    /// The next `N` bytes as an array, for the `from_le_bytes` of any number.
    pub(super) fn array<const N: usize>(
        &mut self,
        what: &'static str,
    ) -> Result<[u8; N], LoadError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64, what)?);
        Ok(array)
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, LoadError> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, LoadError> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// Accepts `count` items of at least `each` bytes only if the rest of the file can hold them,
    /// so that a loop over them, or a vector for them, is bounded by the file's own size.
    pub(super) fn fits(
        &self,
        count: u64,
        each: usize,
        what: &'static str,
    ) -> Result<usize, LoadError> {
        let left = self.left();
        match usize::try_from(count) {
            Ok(items) if items <= left / each.max(1) => Ok(items),
            _ => Err(LoadError::Count { what, count, each, left }),
        }
    }
}
