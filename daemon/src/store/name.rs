//! File names. They tell a file's place in its chain, so that one readdir finds every child.
//!
//! A name is a hint: it holds 64 bits of each key, and whoever opens the file compares the rest.

use std::fmt;
use std::str::FromStr;

use crate::kv::key::ShortKey;

/// The version of this format: of segments, records and digest files.
pub(super) const VERSION: u32 = 1;
/// The directory of this format version inside the cache directory.
pub(super) const VERSION_DIR: &str = "v1";
/// The file inside this version's directory that tells what is pinned.
pub(super) const PINS: &str = "pins.tgpin";
/// The lock file inside the cache directory.
pub(super) const LOCK: &str = "lock";
/// Ends the names of files that are being written.
pub(super) const TEMPORARY: &str = ".tmp";
/// Ends the names of files that failed a check.
pub(super) const QUARANTINED: &str = ".bad";

const SEGMENT: &str = ".tgkv";
const RECORD: &str = ".tgrec";
const FIELDS: &str = ".tgfp";
const SIDE: &str = ".tgpk";

/// The name of a file that holds cached state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Name {
    /// `<parent16>-<first16>-<blocks>.tgkv`
    Segment {
        /// The block before the first.
        parent: ShortKey,
        /// The first block.
        first: ShortKey,
        /// The number of blocks.
        blocks: u32,
    },
    /// `<last block16>-<hash16>.tgrec`
    Record {
        /// The last block of the chain.
        last: ShortKey,
        /// The record's own key.
        key: ShortKey,
    },
}

impl Name {
    /// The block that the file's contents follow.
    pub(super) fn parent(&self) -> ShortKey {
        match self {
            Self::Segment { parent, .. } => *parent,
            Self::Record { last, .. } => *last,
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Segment { parent, first, blocks } => {
                write!(f, "{parent}-{first}-{blocks}{SEGMENT}")
            }
            Self::Record { last, key } => write!(f, "{last}-{key}{RECORD}"),
        }
    }
}

/// The name is none that the store gives.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Alien;

impl FromStr for Name {
    type Err = Alien;

    fn from_str(text: &str) -> Result<Self, Alien> {
        let name = parse_segment(text).or_else(|| parse_record(text)).ok_or(Alien)?;
        // One file, one spelling: "007" blocks would be a second name for the same segment.
        if name.to_string() == text { Ok(name) } else { Err(Alien) }
    }
}

fn parse_segment(text: &str) -> Option<Name> {
    let (keys, blocks) = text.strip_suffix(SEGMENT)?.rsplit_once('-')?;
    let (parent, first) = keys.split_once('-')?;
    let blocks = blocks.parse().ok()?;
    Some(Name::Segment { parent: parse_key(parent)?, first: parse_key(first)?, blocks })
}

fn parse_record(text: &str) -> Option<Name> {
    let (last, key) = text.strip_suffix(RECORD)?.split_once('-')?;
    Some(Name::Record { last: parse_key(last)?, key: parse_key(key)? })
}

/// The 16 hexadecimal digits of a short key.
pub(super) fn parse_key(text: &str) -> Option<ShortKey> {
    let key = ShortKey(u64::from_str_radix(text, 16).ok()?);
    (key.to_string() == text).then_some(key)
}

/// The name of a family's file of digests, beside the family's directory.
pub(super) fn fields_name(family: ShortKey) -> String {
    format!("{family}{FIELDS}")
}

/// The name of a side file, beside the families' directories.
pub(super) fn side_name(key: ShortKey) -> String {
    format!("{key}{SIDE}")
}

/// The key of the side file called `text`.
pub(super) fn parse_side_name(text: &str) -> Option<ShortKey> {
    parse_key(text.strip_suffix(SIDE)?)
}

/// The family whose digests are in the file called `text`.
pub(super) fn parse_fields_name(text: &str) -> Option<ShortKey> {
    parse_key(text.strip_suffix(FIELDS)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: Name =
        Name::Segment { parent: ShortKey(1), first: ShortKey(0xab << 56), blocks: 12 };
    const RECORD: Name = Name::Record { last: ShortKey(u64::MAX), key: ShortKey(0) };

    #[test]
    fn a_name_reads_back_as_what_it_was_made_from() {
        for name in [SEGMENT, RECORD] {
            assert_eq!(name.to_string().parse(), Ok(name));
        }
        assert_eq!(SEGMENT.to_string(), "0000000000000001-ab00000000000000-12.tgkv");
        assert_eq!(RECORD.to_string(), "ffffffffffffffff-0000000000000000.tgrec");
        assert_eq!(parse_fields_name(&fields_name(ShortKey(7))), Some(ShortKey(7)));
        assert_eq!(parse_side_name(&side_name(ShortKey(7))), Some(ShortKey(7)));
    }

    #[test]
    fn other_spellings_and_other_files_are_aliens() {
        for alien in [
            "",
            "lock",
            "0000000000000001-ab00000000000000-012.tgkv",
            "0000000000000001-ab00000000000000-+12.tgkv",
            "0000000000000001-AB00000000000000-12.tgkv",
            "1-ab00000000000000-12.tgkv",
            "0000000000000001-ab00000000000000.tgkv",
            "0000000000000001-ab00000000000000-4294967296.tgkv",
            "0000000000000001-ab00000000000000-12.tgkv.bad",
            "0000000000000001-ab00000000000000-12.tgrec",
            "+fffffffffffffff-0000000000000000.tgrec",
        ] {
            assert_eq!(alien.parse::<Name>(), Err(Alien), "{alien}");
        }
    }
}
