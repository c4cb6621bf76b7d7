//! Writing one file: account, write under a temporary name, rename, and only then show it.
//!
//! A file is complete before it has its name, and it never changes under that name. What a crash
//! leaves is a temporary file, which the next start removes, or, when nobody synced, a file whose
//! bytes did not reach the disk, which fails its checksum.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::catalogue::{Farewell, FileId};
use super::contents::{Contents, Found};
use super::home::Moved;
use super::mappings::Mapping;
use super::name::{Name, TEMPORARY};
use super::room::Reservation;
use super::segment::Header;
use super::shared::Shared;
use super::shelf::Precedence;
use super::{Family, fields, record};
use crate::kv::block::Block;
use crate::kv::key::ShortKey;
use crate::sys::mmap::Map;

/// Why something was not written.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unwritten {
    #[error("writing pauses after the disk was full")]
    Paused,
    #[error(transparent)]
    Moved(#[from] Moved),
    #[error("the store is closing")]
    Closing,
    #[error("the chain has {tokens} tokens, at least {minimum} are kept")]
    BelowMinimum { tokens: usize, minimum: usize },
    #[error("the blocks before it are not on disk")]
    Orphan,
    #[error(
        "{written} bytes were written today, the limit is {limit}, and {needed} more are needed"
    )]
    Daily { written: u64, limit: u64, needed: u64 },
    #[error("{free} bytes are free on the disk, {floor} are to stay free, and {needed} are needed")]
    Floor { free: u64, floor: u64, needed: u64 },
    #[error("{needed} bytes do not fit into the budget of {budget} and nothing can be evicted")]
    Budget { needed: u64, budget: u64 },
    #[error("cannot write: {0}")]
    Io(#[from] io::Error),
}

impl Unwritten {
    /// Whether the disk has no room, which more writing would not change.
    pub(super) fn is_full(&self) -> bool {
        use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        match self {
            Self::Floor { .. } => true,
            Self::Io(error) => {
                matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
            }
            _ => false,
        }
    }
}

/// A segment that was just written.
#[derive(Debug)]
pub(super) struct Published {
    pub(super) id: FileId,
    /// `None` when as many segments are mapped as may be.
    pub(super) mapping: Option<Arc<Mapping>>,
}

impl Shared {
    /// Writes `blocks`, which follow one another, as one segment.
    pub(super) fn publish_segment(
        &self,
        header: Header,
        blocks: &[Arc<Block>],
        sync: bool,
        reserved: Reservation<'_>,
    ) -> Result<Published, Unwritten> {
        let family = header.fingerprint.short();
        let name = header.name();
        let file = self.put(family, name, header.file_len, sync, |file| {
            self.write_segment(file, &header, blocks)
        })?;
        let contents = Contents::from(&header);
        let mapping = Map::open(&file, header.file_len as usize).ok().map(|map| {
            let mapping = Mapping::new(Arc::new(map), header);
            (0..blocks.len()).for_each(|block| mapping.set_verified(block));
            Arc::new(mapping)
        });
        let id = self.enter(family, name, contents, file.metadata()?.len(), sync, reserved);
        let keep = |mapping: &Arc<Mapping>| self.catalogue().mappings.keep(id, Arc::clone(mapping));
        Ok(Published { id, mapping: mapping.filter(keep) })
    }

    /// Writes a record.
    pub(super) fn publish_record(
        &self,
        head: record::Head,
        bytes: &[u8],
        sync: bool,
        reserved: Reservation<'_>,
    ) -> Result<FileId, Unwritten> {
        let (family, name) = (head.fingerprint.short(), head.name());
        let len = bytes.len() as u64;
        self.put(family, name, len, sync, |file| self.write_at(file, bytes, 0))?;
        Ok(self.enter(family, name, Contents::Record(head), len, sync, reserved))
    }

    /// Writes the digest file of a family unless it is there.
    pub(super) fn publish_fields(&self, family: &Family) -> Result<(), Unwritten> {
        let short = family.fingerprint.short();
        if self.catalogue().shelf_mut(short).has_fields_file {
            return Ok(());
        }
        let path = self.fields_path(short);
        let bytes = fields::encode(&family.fields);
        let reserved = self.reserve(bytes.len() as u64)?;
        self.write_temporary(&path, false, |file| self.write_at(file, &bytes, 0))?;
        self.give_name(&path, bytes.len() as u64, false)?;
        drop(reserved);
        self.catalogue().shelf_mut(short).has_fields_file = true;
        Ok(())
    }

    /// Shows a file that has its name.
    fn enter(
        &self,
        family: ShortKey,
        name: Name,
        contents: Contents,
        bytes: u64,
        synced: bool,
        mut reserved: Reservation<'_>,
    ) -> FileId {
        let mut catalogue = self.catalogue();
        reserved.settle(&mut catalogue);
        let id = catalogue.add(family, name);
        let used = catalogue.tick();
        let found = Found { contents, bytes, used, born: Some(used) };
        let superfluous = catalogue.learn(id, found, Precedence::Newest);
        if synced {
            catalogue.set_synced(id);
        }
        drop(catalogue);
        superfluous.into_iter().flatten().for_each(|id| self.discard(id, Farewell::Gone));
        id
    }

    fn put(
        &self,
        family: ShortKey,
        name: Name,
        len: u64,
        sync: bool,
        fill: impl Fn(&File) -> io::Result<()>,
    ) -> Result<File, Unwritten> {
        let path = self.path(family, name);
        let file = self.write_temporary(&path, sync, fill)?;
        let replaces = self.take_name(family, name);
        if let Err(error) = self.give_name(&path, len, sync) {
            if replaces {
                // The old file may still be there: it is read again.
                self.catalogue().add(family, name);
            }
            return Err(error);
        }
        Ok(file)
    }

    /// Writes the file of `path` under its temporary name.
    pub(super) fn write_temporary(
        &self,
        path: &Path,
        sync: bool,
        fill: impl Fn(&File) -> io::Result<()>,
    ) -> Result<File, Unwritten> {
        let temporary = temporary(path);
        let file = self.create(&temporary, sync)?;
        let written = fill(&file).and_then(|()| if sync { file.sync_all() } else { Ok(()) });
        written.inspect_err(|_| self.sweep(&temporary))?;
        Ok(file)
    }

    /// Gives a written file its name.
    pub(super) fn give_name(&self, path: &Path, len: u64, sync: bool) -> Result<(), Unwritten> {
        let temporary = temporary(path);
        let named = self.home.permit()?.rename(&temporary, path);
        named.inspect_err(|_| self.sweep(&temporary))?;
        self.tally.writes.add(len);
        if sync {
            let dir = path.parent().unwrap_or(self.root());
            sync_dir(dir).inspect_err(|_| self.sweep(path))?;
        }
        Ok(())
    }

    fn write_segment(&self, file: &File, header: &Header, blocks: &[Arc<Block>]) -> io::Result<()> {
        self.write_at(file, &header.encode(), 0)?;
        for part in 0..blocks[0].parts.len() {
            for (block, entry) in blocks.iter().zip(&header.blocks) {
                self.write_at(file, block.parts[part].bytes(), entry.parts[part].offset())?;
            }
        }
        // The padding of the last part, which nothing follows.
        file.set_len(header.file_len)
    }

    pub(super) fn write_at(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        #[cfg(test)]
        if offset + bytes.len() as u64 > self.tuning.disk.load(std::sync::atomic::Ordering::Relaxed)
        {
            return Err(io::ErrorKind::StorageFull.into());
        }
        file.write_all_at(bytes, offset)
    }
}

/// Makes the names in a directory durable.
pub(super) fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

pub(super) fn temporary(path: &Path) -> PathBuf {
    path.with_added_extension(&TEMPORARY[1..])
}
