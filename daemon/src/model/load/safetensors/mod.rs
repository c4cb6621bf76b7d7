//! `.safetensors`: named tensors, a file of them or several.
//!
//! ```text
//!  0       8              8+N
//!  | u64 N | JSON (N)     | data
//!
//!  JSON: { "name": {"dtype": "BF16", "shape": [out, in], "data_offsets": [begin, end]}, .. }
//! ```
//!
//! Offsets count from the beginning of the data, which the tensors cover without holes: what
//! belongs to none could be anything.

mod dtype;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

pub(super) use self::dtype::Dtype;
use super::LoadError;
use super::cursor::Cursor;

/// A tensor that lies where it says, in a file that has all of its bytes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tensor {
    pub(super) dtype: Dtype,
    /// Outermost first.
    pub(super) shape: Vec<u64>,
    /// Its bytes in the file.
    pub(super) range: Range<usize>,
}

/// The tensors of a file of `length` bytes that begins with `head`.
pub(super) fn parse(head: &[u8], length: usize) -> Result<BTreeMap<String, Tensor>, LoadError> {
    let mut cursor = Cursor::head(head, length);
    let size = cursor.u64("the header length")?;
    let json = cursor.take(size, "the JSON header")?;
    let Header(entries) = serde_json::from_slice(json)
        .map_err(|error| LoadError::Header { reason: error.to_string() })?;
    let (data, have) = (cursor.at(), cursor.left());
    let mut tensors = BTreeMap::new();
    for (name, entry) in entries {
        let tensor = entry.place(&name, data, have)?;
        if tensors.insert(name.clone(), tensor).is_some() {
            return Err(LoadError::Duplicate { what: "tensor", name });
        }
    }
    check_cover(&tensors, data, length)?;
    Ok(tensors)
}

/// What the header says of a tensor.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

impl Entry {
    /// The tensor in a file with `have` bytes of data from byte `data` on.
    fn place(self, name: &str, data: usize, have: usize) -> Result<Tensor, LoadError> {
        let tensor = || name.to_owned();
        let unknown = || LoadError::ElementType { tensor: tensor(), found: self.dtype.clone() };
        let dtype = Dtype::named(&self.dtype).ok_or_else(unknown)?;
        let need = self.bytes(name, dtype)?;
        let [begin, end] = self.data_offsets;
        if begin > end || end > have as u64 {
            return Err(LoadError::TensorData { tensor: tensor(), begin, end, have });
        }
        let (found, shape) = (end - begin, self.shape);
        if need != found {
            let (tensor, dtype) = (tensor(), dtype.name());
            return Err(LoadError::ByteCount { tensor, dtype, shape, need, found });
        }
        Ok(Tensor { dtype, shape, range: data + begin as usize..data + end as usize })
    }

    fn bytes(&self, name: &str, dtype: Dtype) -> Result<u64, LoadError> {
        let bits = self.shape.iter().try_fold(dtype.bits(), |bits, &dim| bits.checked_mul(dim));
        let whole = bits.filter(|bits| bits.is_multiple_of(8)).map(|bits| bits / 8);
        let overflow = || LoadError::Overflow { tensor: name.into(), dims: self.shape.clone() };
        whole.ok_or_else(overflow)
    }
}

/// Whether the tensors lie side by side and without holes between `data` and `end`.
fn check_cover(
    tensors: &BTreeMap<String, Tensor>,
    data: usize,
    end: usize,
) -> Result<(), LoadError> {
    let places = tensors.iter().map(|(name, tensor)| (tensor.range.start, tensor.range.end, name));
    let mut places: Vec<_> = places.collect();
    places.sort_unstable();
    let (mut last, mut before) = (data, "");
    for (begin, end, name) in places {
        if begin < last {
            return Err(LoadError::Overlap { first: before.into(), second: name.clone() });
        }
        refuse_hole(last - data, begin - data)?;
        (last, before) = (end, name);
    }
    refuse_hole(last - data, end - data)
}

fn refuse_hole(begin: usize, end: usize) -> Result<(), LoadError> {
    if begin == end { Ok(()) } else { Err(LoadError::Hole { begin, end }) }
}

/// All entries, so that a name that comes twice is seen.
struct Header(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut entries = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    match &*name {
                        "__metadata__" => drop(map.next_value::<IgnoredAny>()?),
                        _ => entries.push((name, map.next_value()?)),
                    }
                }
                Ok(Header(entries))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}
