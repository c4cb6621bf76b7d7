//! The container: header, metadata, tensor list, data section.
//!
//! ```text
//! "GGUF" | u32 version | u64 tensors | u64 keys
//! keys    times: string key | u32 type | value
//! tensors times: string name | u32 n | n x u64 dims, innermost first | u32 type | u64 offset
//! padding to general.alignment (default 32) | data
//! ```

use std::collections::BTreeMap;
use std::ops::Range;

use super::value::{Value, string, typed};
use crate::model::load::LoadError;
use crate::model::load::cursor::Cursor;
use crate::model::load::ggml::GgmlType;

/// First four bytes of a GGUF file.
pub(in crate::model::load) const MAGIC: &[u8; 4] = b"GGUF";

/// Most dimensions a tensor may have.
const DIMENSIONS: usize = 4;

/// Alignment of the data section and of each tensor in it, unless the file says otherwise.
const ALIGNMENT: u64 = 32;

/// A parsed head; everything is borrowed from its bytes.
#[derive(Debug)]
pub(super) struct Gguf<'a> {
    pub(super) metadata: BTreeMap<&'a str, Value<'a>>,
    pub(super) tensors: BTreeMap<&'a str, Tensor>,
}

/// One tensor and where its bytes are.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tensor {
    pub(super) dtype: GgmlType,
    /// Outermost first: `[rows, row length]` for a matrix.
    pub(super) shape: Vec<u64>,
    /// In the file.
    pub(super) range: Range<usize>,
}

impl<'a> Gguf<'a> {
    /// Reads the head of a file of `length` bytes.
    pub(super) fn parse(head: &'a [u8], length: usize) -> Result<Self, LoadError> {
        let mut cursor = Cursor::head(head, length);
        cursor.take(4, "the magic number")?;
        check_version(cursor.u32("the version")?)?;
        let tensors = cursor.u64("the tensor count")?;
        let keys = cursor.u64("the metadata count")?;
        let metadata = read_metadata(&mut cursor, keys)?;
        let infos = read_infos(&mut cursor, tensors)?;
        let alignment = alignment(&metadata)?;
        let padding = (cursor.at() as u64).next_multiple_of(alignment) - cursor.at() as u64;
        if tensors > 0 {
            cursor.skip(padding, "the padding before the tensor data")?;
        }
        let tensors = place(infos, cursor.at()..length, alignment)?;
        Ok(Self { metadata, tensors })
    }
}

fn check_version(found: u32) -> Result<(), LoadError> {
    let hint = match found {
        2 | 3 => return Ok(()),
        1 => "convert the file again with a current llama.cpp",
        _ if matches!(found.swap_bytes(), 1..=3) => "the file is big-endian",
        _ => "versions 2 and 3 are",
    };
    Err(LoadError::Version { format: "GGUF", found, hint })
}

fn read_metadata<'a>(
    cursor: &mut Cursor<'a>,
    count: u64,
) -> Result<BTreeMap<&'a str, Value<'a>>, LoadError> {
    let mut metadata = BTreeMap::new();
    for _ in 0..cursor.fits(count, 13, "metadata keys")? {
        let key = text(string(cursor, "a metadata key")?, || "a metadata key".into())?;
        let value = typed(cursor, key)?;
        if metadata.insert(key, value).is_some() {
            return Err(LoadError::Duplicate { what: "metadata key", name: key.into() });
        }
    }
    Ok(metadata)
}

fn alignment(metadata: &BTreeMap<&str, Value<'_>>) -> Result<u64, LoadError> {
    match metadata.get("general.alignment") {
        None => Ok(ALIGNMENT),
        Some(Value::Unsigned(value)) if value.is_power_of_two() && *value <= 1 << 20 => Ok(*value),
        Some(other) => Err(LoadError::OutOfRange {
            what: "metadata key \"general.alignment\"".into(),
            found: other.describe(),
            expected: "a power of two up to 1048576".into(),
        }),
    }
}

/// A tensor before its data has been found.
struct Info<'a> {
    name: &'a str,
    dtype: GgmlType,
    /// Innermost first, as stored.
    dims: Vec<u64>,
    size: u64,
    offset: u64,
}

fn read_infos<'a>(cursor: &mut Cursor<'a>, count: u64) -> Result<Vec<Info<'a>>, LoadError> {
    let count = cursor.fits(count, 24, "tensors")?;
    (0..count).map(|_| read_info(cursor)).collect()
}

fn read_info<'a>(cursor: &mut Cursor<'a>) -> Result<Info<'a>, LoadError> {
    let name = text(string(cursor, "a tensor name")?, || "a tensor name".into())?;
    let found = cursor.u32("a tensor's dimension count")?;
    if found as usize > DIMENSIONS {
        return Err(LoadError::Dimensions { tensor: name.into(), found, limit: DIMENSIONS });
    }
    let dims = (0..found).map(|_| cursor.u64("a tensor's dimensions"));
    let dims: Vec<u64> = dims.collect::<Result<_, _>>()?;
    let id = cursor.u32("a tensor's type")?;
    let dtype = GgmlType::from_id(id)
        .ok_or_else(|| LoadError::UnknownType { tensor: name.into(), found: id })?;
    let offset = cursor.u64("a tensor's offset")?;
    let size = size(name, dtype, &dims)?;
    Ok(Info { name, dtype, dims, size, offset })
}

/// Bytes of a tensor, whose rows must be whole blocks.
fn size(name: &str, dtype: GgmlType, dims: &[u64]) -> Result<u64, LoadError> {
    let row = dims.first().copied().unwrap_or(1);
    if !row.is_multiple_of(dtype.block() as u64) {
        return Err(LoadError::BlockSize {
            tensor: name.into(),
            row,
            block: dtype.block(),
            dtype: dtype.name(),
        });
    }
    let elements = dims.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim));
    elements
        .map(|elements| elements / dtype.block() as u64)
        .and_then(|blocks| blocks.checked_mul(dtype.block_bytes() as u64))
        .ok_or_else(|| LoadError::Overflow { tensor: name.into(), dims: dims.to_vec() })
}

/// Cuts the data section into tensors.
fn place<'a>(
    mut infos: Vec<Info<'a>>,
    data: Range<usize>,
    alignment: u64,
) -> Result<BTreeMap<&'a str, Tensor>, LoadError> {
    infos.sort_by_key(|info| info.offset);
    let mut tensors = BTreeMap::new();
    let mut last: Option<(&str, u64)> = None;
    for info in infos {
        let range = cut(&info, &data, alignment)?;
        match last {
            Some((first, end)) if end > info.offset && info.size > 0 => {
                let (first, second) = (first.into(), info.name.into());
                return Err(LoadError::Overlap { first, second });
            }
            _ => last = Some((info.name, info.offset + info.size)),
        }
        let shape = info.dims.iter().rev().copied().collect();
        let tensor = Tensor { dtype: info.dtype, shape, range };
        if tensors.insert(info.name, tensor).is_some() {
            return Err(LoadError::Duplicate { what: "tensor", name: info.name.into() });
        }
    }
    Ok(tensors)
}

fn cut(info: &Info<'_>, data: &Range<usize>, alignment: u64) -> Result<Range<usize>, LoadError> {
    let tensor = || info.name.to_owned();
    if !info.offset.is_multiple_of(alignment) {
        let offset = info.offset;
        return Err(LoadError::Misaligned { tensor: tensor(), offset, alignment });
    }
    let (begin, end) = (info.offset, info.offset.saturating_add(info.size));
    if end > data.len() as u64 {
        return Err(LoadError::TensorData { tensor: tensor(), begin, end, have: data.len() });
    }
    Ok(data.start + begin as usize..data.start + end as usize)
}

/// Bytes as text.
pub(super) fn text(bytes: &[u8], what: impl FnOnce() -> String) -> Result<&str, LoadError> {
    std::str::from_utf8(bytes).map_err(|_| LoadError::NotUtf8 { what: what() })
}
