//! Canonical bytes for fingerprints: tagged, length-prefixed fields, so that no two different
//! sets of values can give the same bytes.
//!
//! ```text
//! field = u32 name length | name | u64 value length | value        (little-endian)
//! ```

use crate::kv::key::Digest;

/// Collects fields in the order they are given, which is part of the result.
#[derive(Debug, Default)]
pub(super) struct Canon(Vec<u8>);

impl Canon {
    pub(super) fn bytes(mut self, name: &str, value: &[u8]) -> Self {
        self.0.extend((name.len() as u32).to_le_bytes());
        self.0.extend(name.as_bytes());
        self.0.extend((value.len() as u64).to_le_bytes());
        self.0.extend(value);
        self
    }

    pub(super) fn text(self, name: &str, value: &str) -> Self {
        self.bytes(name, value.as_bytes())
    }

    pub(super) fn number(self, name: &str, value: usize) -> Self {
        self.bytes(name, &(value as u64).to_le_bytes())
    }

    pub(super) fn float(self, name: &str, value: f32) -> Self {
        self.bytes(name, &value.to_le_bytes())
    }

    pub(super) fn floats(self, name: &str, values: &[f32]) -> Self {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.bytes(name, &bytes)
    }

    /// An absent value differs from every present one, the empty one included.
    pub(super) fn option<T>(
        self,
        name: &str,
        value: Option<T>,
        present: impl FnOnce(Self, T) -> Self,
    ) -> Self {
        match value {
            Some(value) => present(self.bytes(name, &[1]), value),
            None => self.bytes(name, &[0]),
        }
    }

    /// A list: its length as a field, then every item's text as a field of its own.
    pub(super) fn texts(self, name: &str, values: &[String]) -> Self {
        values.iter().fold(self.number(name, values.len()), |canon, value| canon.text("", value))
    }

    pub(super) fn finish(self) -> Vec<u8> {
        self.0
    }

    /// The digest of the fields, as those of `kind`.
    pub(super) fn digest(self, kind: &str) -> Digest {
        Digest::of(kind, &self.0)
    }
}
