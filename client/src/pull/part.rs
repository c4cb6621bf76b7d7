//! The first bytes of a file, digested as they come.
//!
//! Invariant: the digest is of the bytes in the file, whose number is `length`.

use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use ring::digest::Context;

use super::cache::at;
use super::digest;
use super::error::PullError;
use super::hub::Entry;

/// The first bytes of a file.
pub(super) struct Part<'a> {
    entry: &'a Entry,
    path: PathBuf,
    file: File,
    length: u64,
    digest: Context,
    /// Whether bytes of an earlier attempt are among them.
    resumed: bool,
}

impl<'a> Part<'a> {
    /// Takes up what is there.
    pub(super) fn open(path: PathBuf, entry: &'a Entry) -> Result<Self, PullError> {
        let options = File::options().read(true).write(true).create(true).truncate(false).clone();
        let file = options.open(&path).map_err(at(&path))?;
        let digest = entry.digest.start(entry.size);
        let mut part = Self { entry, path, file, length: 0, digest, resumed: true };
        part.read_on()?;
        if part.length > entry.size {
            part.restart()?;
        }
        part.resumed = part.length > 0;
        Ok(part)
    }

    fn read_on(&mut self) -> Result<(), PullError> {
        let mut buffer = vec![0; 1 << 16];
        loop {
            match self.file.read(&mut buffer).map_err(at(&self.path))? {
                0 => return Ok(()),
                count => self.count(&buffer[..count]),
            }
        }
    }

    fn count(&mut self, bytes: &[u8]) {
        self.digest.update(bytes);
        self.length += bytes.len() as u64;
    }

    pub(super) fn length(&self) -> u64 {
        self.length
    }

    pub(super) fn is_complete(&self) -> bool {
        self.length == self.entry.size
    }

    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<(), PullError> {
        self.file.write_all(bytes).map_err(at(&self.path))?;
        self.count(bytes);
        Ok(())
    }

    /// Forgets all bytes.
    pub(super) fn restart(&mut self) -> Result<(), PullError> {
        self.file.set_len(0).and_then(|()| self.file.rewind()).map_err(at(&self.path))?;
        self.digest = self.entry.digest.start(self.entry.size);
        (self.length, self.resumed) = (0, false);
        Ok(())
    }

    /// Gives the complete file its name, durably; or says that its bytes are not those listed.
    ///
    /// Where earlier ones may be at fault the part is empty again, and `false` is the answer.
    pub(super) fn publish(&mut self, blob: &Path) -> Result<bool, PullError> {
        let (expected, found) = (self.entry.digest.as_str(), digest::finish(self.digest.clone()));
        if found == expected {
            let moved = self.file.sync_all().and_then(|()| fs::rename(&self.path, blob));
            return moved.map(|()| true).map_err(at(blob));
        }
        if self.resumed {
            return self.restart().map(|()| false);
        }
        fs::remove_file(&self.path).map_err(at(&self.path))?;
        let file = self.entry.name.clone();
        Err(PullError::Digest { file, expected: expected.into(), found })
    }
}
