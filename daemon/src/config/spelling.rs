//! Values in words: the same ones on the command line, in the environment and in the file.
//!
//! [`read`] is what clap parses with, and the rest is for serde's `with`.

use std::fmt::Display;
use std::str::FromStr;

use bytesize::ByteSize;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::kv::codec::Codec;
use crate::model::Numerics;
use crate::model::device::Choice;
use crate::service::scrape::Place;

/// A value that has words.
pub(super) trait Spelled: FromStr<Err: Display> {
    /// Words that mean exactly it.
    fn spell(&self) -> String;

    /// What `words` mean, or what is wrong with them.
    fn read(words: &str) -> Result<Self, String> {
        words.parse().map_err(|error: Self::Err| error.to_string())
    }
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

impl Spelled for Choice {
    fn spell(&self) -> String {
        self.to_string()
    }
}

impl Spelled for Place {
    fn spell(&self) -> String {
        self.to_string()
    }
}

impl Spelled for humantime::Duration {
    fn spell(&self) -> String {
        self.to_string()
    }

    /// A bare number is one of seconds.
    fn read(words: &str) -> Result<Self, String> {
        match words.parse() {
            Ok(seconds) => Ok(std::time::Duration::from_secs(seconds).into()),
            Err(_) => words.parse().map_err(|_| {
                format!("{words:?} is no time: write 90s, 15m or 1h 30m, or whole seconds as 90")
            }),
        }
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

    /// A bare number is one of bytes.
    fn read(words: &str) -> Result<Self, String> {
        words.parse().map_err(|_: String| {
            format!("{words:?} is no size: write 20GiB, 1.5 GB or 512MiB, or whole bytes as 4096")
        })
    }
}

pub(super) fn read<T: Spelled>(words: &str) -> Result<T, String> {
    T::read(words)
}

pub(super) fn serialize<T: Spelled, S: Serializer>(
    value: &Option<T>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    value.as_ref().map(Spelled::spell).serialize(serializer)
}

/// Words, or a bare number.
#[derive(Deserialize)]
#[serde(untagged, expecting = "words in quotes, or a number")]
enum Given {
    Words(String),
    Whole(u64),
    Number(f64),
}

pub(super) fn deserialize<'de, T: Spelled, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    let words = match Given::deserialize(deserializer)? {
        Given::Words(words) => words,
        Given::Whole(number) => number.to_string(),
        Given::Number(number) => number.to_string(),
    };
    T::read(&words).map(Some).map_err(D::Error::custom)
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

    #[test]
    fn a_bare_number_is_in_the_base_unit_and_anything_else_has_its_own() {
        let seconds = |words| humantime::Duration::read(words).map(|time| time.as_secs());
        assert_eq!((seconds("90"), seconds("15m")), (Ok(90), Ok(900)));
        let bytes = |words| ByteSize::read(words).map(|size| size.as_u64());
        assert_eq!((bytes("4096"), bytes("0.5KiB")), (Ok(4096), Ok(512)));
        for words in ["soon", "0.5", ""] {
            let refused = seconds(words).unwrap_err();
            assert!(
                refused.contains(&format!("{words:?}")) && refused.contains("15m"),
                "{refused}"
            );
            let refused = bytes(words).unwrap_err();
            assert!(
                refused.contains(&format!("{words:?}")) && refused.contains("20GiB"),
                "{refused}"
            );
        }
    }
}
