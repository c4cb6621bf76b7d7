//! The lies that a file can tell, and the other ways in which it can fail to help.

use std::io;

use crate::kv::key::ShortKey;

/// What is wrong with the bytes of a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Damage {
    /// A directory, a pipe or a device has its name.
    #[error("it is not a regular file")]
    Irregular,
    /// The file ends too early.
    #[error("the file has {found} bytes, {needed} are needed")]
    Short {
        /// Bytes that there are.
        found: u64,
        /// Bytes that what was read so far asks for.
        needed: u64,
    },
    /// The file says another length than it has.
    #[error("the file has {found} bytes and says it has {said}")]
    Length {
        /// Bytes that there are.
        found: u64,
        /// Bytes according to the header.
        said: u64,
    },
    /// The first eight bytes are those of no file of this kind.
    #[error("the magic bytes are wrong")]
    Magic,
    /// Another format version.
    #[error("the format version is {found}, this reader knows {known}")]
    Version {
        /// Version in the file.
        found: u32,
        /// Version of this reader.
        known: u32,
    },
    /// A count is out of range.
    #[error("the number of {what} is {found}, 1 to {most} are possible")]
    Count {
        /// What is counted.
        what: &'static str,
        /// The number in the file.
        found: u64,
        /// The largest number allowed.
        most: u64,
    },
    /// A field holds a value that no writer puts there.
    #[error("the field {0} has an impossible value")]
    Field(&'static str),
    /// The header's checksum fails.
    #[error("the header fails its checksum")]
    HeaderSum,
    /// The checksum of a record's rows and hidden state fails.
    #[error("the body fails its checksum")]
    BodySum,
    /// A key is not the hash of what it names.
    #[error("key {0} is not the hash of what it names")]
    Key(usize),
    /// A block's parent is not the block before it.
    #[error("block {0} does not follow the block before it")]
    Chain(usize),
    /// A part does not lie where the format puts it.
    #[error("part {part} of block {block} lies in the wrong place")]
    Place {
        /// Index of the block.
        block: usize,
        /// Index of the part.
        part: usize,
    },
    /// A part's checksum fails.
    #[error("part {part} of block {block} fails its checksum")]
    PartSum {
        /// Index of the block.
        block: usize,
        /// Index of the part.
        part: usize,
    },
    /// A byte that must be zero is not.
    #[error("the padding before byte {0} is not zero")]
    Padding(u64),
    /// The file belongs to another family than its directory.
    #[error("the file belongs to {found}, its directory to {expected}")]
    Foreign {
        /// The family in the file.
        found: ShortKey,
        /// The family of the directory.
        expected: ShortKey,
    },
    /// The bytes are arranged in another way than the family's.
    #[error("the file's layout is not its family's")]
    Layout,
    /// The tokens are not those of the request, though the keys are.
    #[error("the tokens of block {0} are not those that its key was asked for with")]
    Tokens(usize),
    /// The file's name promises something else than the file holds.
    #[error("the name does not fit the contents")]
    Name,
}

/// Why a file did not help.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    /// It is not there any more.
    #[error("the file is gone")]
    Gone,
    /// The system could not read it.
    #[error("the file cannot be read: {0}")]
    Io(io::Error),
    /// It could be read and is wrong.
    #[error("the file is damaged: {0}")]
    Damaged(#[from] Damage),
    /// As many segments are mapped, and in use, as may be.
    #[error("no more segments may be mapped, and all are in use")]
    Mappings,
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::Gone,
            io::ErrorKind::InvalidInput => Self::Damaged(Damage::Irregular),
            _ => Self::Io(error),
        }
    }
}
