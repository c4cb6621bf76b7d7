//! Metadata by key and by the kind of value that the reader expects.

use std::collections::BTreeMap;

use super::container::text;
use super::value::{Array, Value};
use crate::model::load::LoadError;

/// The metadata of a file.
#[derive(Debug)]
pub(super) struct Metadata<'a>(pub(super) BTreeMap<&'a str, Value<'a>>);

impl<'a> Metadata<'a> {
    /// Every key, in order.
    pub(super) fn keys(&self) -> impl Iterator<Item = &'a str> {
        self.0.keys().copied()
    }

    pub(super) fn get(&self, key: &str) -> Option<Value<'a>> {
        self.0.get(key).copied()
    }

    pub(super) fn text(&self, key: &str) -> Result<&'a str, LoadError> {
        self.optional_text(key)?.ok_or_else(|| missing(key))
    }

    pub(super) fn optional_text(&self, key: &str) -> Result<Option<&'a str>, LoadError> {
        self.convert(key, "a string", |value| match value {
            Value::String(bytes) => Some(text(bytes, || format!("metadata key \"{key}\""))),
            _ => None,
        })?
        .transpose()
    }

    pub(super) fn size(&self, key: &str) -> Result<usize, LoadError> {
        self.optional_size(key)?.ok_or_else(|| missing(key))
    }

    /// A count or dimension: at most 2^32 - 1, so that a product of two cannot overflow.
    pub(super) fn optional_size(&self, key: &str) -> Result<Option<usize>, LoadError> {
        Ok(self.optional_id(key)?.map(|id| id as usize))
    }

    /// A whole number from 0 to 2^32 - 1.
    pub(super) fn optional_id(&self, key: &str) -> Result<Option<u32>, LoadError> {
        self.convert(key, "a whole number from 0 to 2^32 - 1", |value| match value {
            Value::Unsigned(number) => u32::try_from(number).ok(),
            Value::Signed(number) => u32::try_from(number).ok(),
            _ => None,
        })
    }

    pub(super) fn float(&self, key: &str) -> Result<f32, LoadError> {
        self.optional_float(key)?.ok_or_else(|| missing(key))
    }

    pub(super) fn optional_float(&self, key: &str) -> Result<Option<f32>, LoadError> {
        self.convert(key, "a finite number", |value| match value {
            Value::Float(number) => Some(number as f32).filter(|number| number.is_finite()),
            _ => None,
        })
    }

    pub(super) fn optional_bool(&self, key: &str) -> Result<Option<bool>, LoadError> {
        self.convert(key, "a boolean", |value| match value {
            Value::Bool(value) => Some(value),
            _ => None,
        })
    }

    pub(super) fn texts(&self, key: &str) -> Result<Vec<String>, LoadError> {
        self.items(key, "an array of strings", |value| match value {
            Value::String(bytes) => Some(String::from_utf8(bytes.to_vec()).map_err(|_| {
                LoadError::NotUtf8 { what: format!("an element of metadata key \"{key}\"") }
            })),
            _ => None,
        })?
        .into_iter()
        .collect()
    }

    pub(super) fn integers(&self, key: &str) -> Result<Vec<i32>, LoadError> {
        self.items(key, "an array of 32-bit integers", |value| match value {
            Value::Signed(number) => i32::try_from(number).ok(),
            Value::Unsigned(number) => i32::try_from(number).ok(),
            _ => None,
        })
    }

    pub(super) fn flags(&self, key: &str) -> Result<Vec<bool>, LoadError> {
        self.items(key, "an array of booleans", |value| match value {
            Value::Bool(value) => Some(value),
            _ => None,
        })
    }

    pub(super) fn floats(&self, key: &str) -> Result<Vec<f32>, LoadError> {
        self.items(key, "an array of numbers", |value| match value {
            Value::Float(number) => Some(number as f32),
            _ => None,
        })
    }

    /// The elements of an array, none if the key is absent.
    fn items<T>(
        &self,
        key: &str,
        expected: &'static str,
        item: impl Fn(Value<'a>) -> Option<T>,
    ) -> Result<Vec<T>, LoadError> {
        let wrong = |found: Value<'_>| LoadError::WrongKind {
            key: key.into(),
            expected,
            found: found.describe(),
        };
        let Some(value) = self.get(key) else { return Ok(Vec::new()) };
        let Value::Array(array) = value else { return Err(wrong(value)) };
        let items = Array::values(array, key);
        items.map(|value| value.and_then(|value| item(value).ok_or_else(|| wrong(value)))).collect()
    }

    fn convert<T>(
        &self,
        key: &str,
        expected: &'static str,
        convert: impl FnOnce(Value<'a>) -> Option<T>,
    ) -> Result<Option<T>, LoadError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        convert(value).map(Some).ok_or_else(|| LoadError::WrongKind {
            key: key.into(),
            expected,
            found: value.describe(),
        })
    }
}

fn missing(key: &str) -> LoadError {
    LoadError::MissingKey { key: key.into() }
}
