//! Values that the file spells as the command line does, for serde's `with`.

use std::fmt::Display;
use std::str::FromStr;

use bytesize::ByteSize;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::kv::codec::Codec;
use crate::model::Numerics;

/// A value in words that mean exactly it.
pub(super) trait Spelled {
    fn spell(&self) -> String;
}

impl Spelled for Codec {
    fn spell(&self) -> String {
        self.to_string()
    }
}

impl Spelled for Numerics {
    fn spell(&self) -> String {
        self.name().to_owned()
    }
}

impl Spelled for humantime::Duration {
    fn spell(&self) -> String {
        self.to_string()
    }
}

impl Spelled for ByteSize {
    /// In the largest unit that leaves no remainder; the library's own words are rounded.
    fn spell(&self) -> String {
        let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
        let bytes = self.as_u64();
        let whole = |(shift, _): &(u32, &str)| bytes.trailing_zeros() >= *shift;
        match units.into_iter().find(whole) {
            Some((shift, unit)) if bytes > 0 => format!("{}{unit}", bytes >> shift),
            _ => bytes.to_string(),
        }
    }
}

pub(super) fn serialize<T: Spelled, S: Serializer>(
    value: &Option<T>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    value.as_ref().map(Spelled::spell).serialize(serializer)
}

/// Words, or a bare number.
#[derive(Deserialize)]
#[serde(untagged)]
enum Given {
    Words(String),
    Number(u64),
}

pub(super) fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    let words = match Given::deserialize(deserializer)? {
        Given::Words(words) => words,
        Given::Number(number) => number.to_string(),
    };
    words.parse().map(Some).map_err(D::Error::custom)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_spelled_to_the_byte() {
        let sizes = [0, 1, 1023, 1024, 1_500_000_000, 3 << 29, 20 << 30, u64::MAX];
        for bytes in sizes {
            let words = ByteSize(bytes).spell();
            assert_eq!(words.parse::<ByteSize>().unwrap(), ByteSize(bytes), "{words}");
        }
        assert_eq!(ByteSize(3 << 29).spell(), "1536MiB");
    }
}
