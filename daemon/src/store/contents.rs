//! What the catalogue keeps of a file's header: enough to find it, to place it in its chain and to
//! tell what leaves when it is evicted.

use std::path::Path;

use super::clock::nanoseconds;
use super::damage::{Damage, Fault};
use super::name::Name;
use super::{head_digest, record, segment};
use crate::kv::key::{BlockKey, BlockTokens, Digest, Fingerprint, ShortKey};
use crate::sys::file;

/// What a file holds.
#[derive(Debug)]
pub(super) enum Contents {
    Segment(Run),
    Record(record::Head),
}

/// The blocks of a segment.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) fingerprint: Fingerprint,
    pub(super) parent: BlockKey,
    /// The tokens of the first block.
    pub(super) first: BlockTokens,
    pub(super) keys: Box<[BlockKey]>,
}

/// A file as it was found.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) contents: Contents,
    pub(super) bytes: u64,
    /// Last use, in nanoseconds since the epoch, as its modification time tells.
    pub(super) used: u64,
    /// When it was written, in nanoseconds since the epoch, on file systems that know.
    pub(super) born: Option<u64>,
}

impl Contents {
    pub(super) fn fingerprint(&self) -> Fingerprint {
        match self {
            Self::Segment(run) => run.fingerprint,
            Self::Record(head) => head.fingerprint,
        }
    }

    /// The block that the contents follow.
    pub(super) fn parent(&self) -> BlockKey {
        match self {
            Self::Segment(run) => run.parent,
            Self::Record(head) => head.last,
        }
    }

    /// The blocks inside; none in a record.
    pub(super) fn keys(&self) -> &[BlockKey] {
        match self {
            Self::Segment(run) => &run.keys,
            Self::Record(_) => &[],
        }
    }

    /// What the chain is remembered by, whatever its family.
    pub(super) fn marks(&self) -> Vec<Digest> {
        let first = self.parent() == BlockKey::root(&self.fingerprint());
        match self {
            Self::Segment(run) => first.then(|| head_digest(&run.first)).into_iter().collect(),
            Self::Record(head) => {
                let start = first.then(|| head_digest(&head.tail));
                start.into_iter().chain(head.text).collect()
            }
        }
    }
}

impl From<&segment::Header> for Contents {
    fn from(header: &segment::Header) -> Self {
        let first = &header.blocks[0];
        Self::Segment(Run {
            fingerprint: header.fingerprint,
            parent: first.parent,
            first: first.tokens,
            keys: header.blocks.iter().map(|block| block.key).collect(),
        })
    }
}

/// Reads the header of the file `name` of `family` at `path`.
pub(super) fn examine(path: &Path, family: ShortKey, name: Name) -> Result<Found, Fault> {
    let file = file::open(path)?;
    let contents = match name {
        Name::Segment { .. } => {
            let header = segment::Header::read(&file)?;
            expect_name(name, header.name())?;
            Contents::from(&header)
        }
        Name::Record { .. } => {
            let head = record::Head::read(&file)?;
            expect_name(name, head.name())?;
            Contents::Record(head)
        }
    };
    expect_family(family, &contents.fingerprint())?;
    let metadata = file.metadata()?;
    Ok(Found {
        contents,
        bytes: metadata.len(),
        used: nanoseconds(metadata.modified()?),
        born: metadata.created().ok().map(nanoseconds),
    })
}

/// Refuses contents that the name does not promise.
pub(super) fn expect_name(name: Name, contents: Name) -> Result<(), Damage> {
    if name == contents { Ok(()) } else { Err(Damage::Name) }
}

fn expect_family(expected: ShortKey, found: &Fingerprint) -> Result<(), Damage> {
    let found = found.short();
    if found == expected { Ok(()) } else { Err(Damage::Foreign { found, expected }) }
}
