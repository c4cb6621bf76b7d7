//! Metadata values of a GGUF file, borrowed from it.
//!
//! An array stays a slice of the file until it is asked for: a file of bytes that claims to be one
//! long array must not grow by the size of a value per byte.

use crate::model::load::LoadError;
use crate::model::load::cursor::Cursor;

/// Deepest nesting of arrays that is followed.
const NESTING: usize = 4;

/// One value; numbers are widened without loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value<'a> {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    /// Not checked to be UTF-8 until it is used as text.
    String(&'a [u8]),
    Array(Array<'a>),
}

/// A homogeneous array whose bytes have been walked once, so that reading them cannot fail.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Array<'a> {
    kind: u32,
    count: usize,
    bytes: &'a [u8],
}

impl Value<'_> {
    /// The kind of value, for messages.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Unsigned(value) => format!("the number {value}"),
            Self::Signed(value) => format!("the number {value}"),
            Self::Float(value) => format!("the number {value}"),
            Self::Bool(value) => format!("the boolean {value}"),
            Self::String(bytes) => format!("a string of {} bytes", bytes.len()),
            Self::Array(array) => format!("an array of {}", array.count),
        }
    }
}

impl<'a> Array<'a> {
    /// The elements in order.
    pub(super) fn values(self, key: &str) -> impl Iterator<Item = Result<Value<'a>, LoadError>> {
        let mut cursor = Cursor::new(self.bytes);
        let key = key.to_owned();
        (0..self.count).map(move |_| value(&mut cursor, self.kind, &key, NESTING))
    }
}

/// Reads a value type and a value of it.
pub(super) fn typed<'a>(cursor: &mut Cursor<'a>, key: &str) -> Result<Value<'a>, LoadError> {
    let kind = cursor.u32("a metadata value type")?;
    value(cursor, kind, key, NESTING)
}

/// Reads a length-prefixed string.
pub(super) fn string<'a>(
    cursor: &mut Cursor<'a>,
    what: &'static str,
) -> Result<&'a [u8], LoadError> {
    let length = cursor.u64(what)?;
    cursor.take(length, what)
}

fn value<'a>(
    cursor: &mut Cursor<'a>,
    kind: u32,
    key: &str,
    nesting: usize,
) -> Result<Value<'a>, LoadError> {
    const WHAT: &str = "a metadata value";
    Ok(match kind {
        0 => Value::Unsigned(cursor.array::<1>(WHAT).map(u8::from_le_bytes)?.into()),
        1 => Value::Signed(cursor.array(WHAT).map(i8::from_le_bytes)?.into()),
        2 => Value::Unsigned(cursor.array(WHAT).map(u16::from_le_bytes)?.into()),
        3 => Value::Signed(cursor.array(WHAT).map(i16::from_le_bytes)?.into()),
        4 => Value::Unsigned(cursor.u32(WHAT)?.into()),
        5 => Value::Signed(cursor.array(WHAT).map(i32::from_le_bytes)?.into()),
        6 => Value::Float(cursor.array(WHAT).map(f32::from_le_bytes)?.into()),
        7 => Value::Bool(boolean(cursor.array(WHAT)?, key)?),
        8 => Value::String(string(cursor, "a metadata string")?),
        9 => Value::Array(array(cursor, key, nesting)?),
        10 => Value::Unsigned(cursor.u64(WHAT)?),
        11 => Value::Signed(cursor.array(WHAT).map(i64::from_le_bytes)?),
        12 => Value::Float(cursor.array(WHAT).map(f64::from_le_bytes)?),
        found => return Err(LoadError::ValueType { key: key.into(), found }),
    })
}

fn boolean([byte]: [u8; 1], key: &str) -> Result<bool, LoadError> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        found => Err(LoadError::Boolean { key: key.into(), found }),
    }
}

fn array<'a>(cursor: &mut Cursor<'a>, key: &str, nesting: usize) -> Result<Array<'a>, LoadError> {
    let Some(nesting) = nesting.checked_sub(1) else {
        return Err(LoadError::Nesting { key: key.into(), limit: NESTING });
    };
    let kind = cursor.u32("an array's element type")?;
    let claimed = cursor.u64("an array's length")?;
    let each = smallest(kind).ok_or(LoadError::ValueType { key: key.into(), found: kind })?;
    let count = cursor.fits(claimed, each, "array elements")?;
    let mut walk = cursor.clone();
    for _ in 0..count {
        value(&mut walk, kind, key, nesting)?;
    }
    let size = cursor.left() - walk.left();
    Ok(Array { kind, count, bytes: cursor.take(size as u64, "an array")? })
}

/// Bytes of the smallest value of a kind.
fn smallest(kind: u32) -> Option<usize> {
    Some(match kind {
        0 | 1 | 7 => 1,
        2 | 3 => 2,
        4..=6 => 4,
        8 | 10..=12 => 8,
        9 => 12,
        _ => return None,
    })
}
