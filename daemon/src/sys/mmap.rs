//! Read-only memory maps of files that nobody alters in place.
//!
//! A mapped file that shrinks kills its reader with SIGBUS. The callers keep to files that are
//! never truncated: those in the daemon's own 0700 directory, written once and only unlinked.

use std::fs::File;
use std::io;
use std::ops::{Deref, Range};

use memmap2::{Advice, Mmap, MmapOptions};

use super::huge;

/// A whole file, mapped for reading.
#[derive(Debug)]
pub struct Map(Mmap);

impl Map {
    /// Maps `len` bytes of `file` from its start. The descriptor may be closed afterwards.
    ///
    /// # Errors
    /// When the file is shorter than `len`, or the system refuses.
    pub fn open(file: &File, len: usize) -> io::Result<Self> {
        let found = file.metadata()?.len();
        if found < len as u64 {
            let words = format!("file has {found} bytes, {len} were to be mapped");
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, words));
        }
        // SAFETY: the mapping is read-only and the length was just checked; see the module's
        // essay for why the file does not shrink while it is mapped.
        let map = unsafe { MmapOptions::new().len(len).map(file)? };
        Ok(Self(map))
    }

    /// Brings `range` into memory, so that whoever reads it next waits for no disk.
    ///
    /// # Errors
    /// When the system cannot read the file: an error here instead of a signal at the first touch.
    /// Systems that cannot do this read ahead instead, and never fail.
    pub fn fault_in(&self, range: Range<usize>) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        match self.0.advise_range(Advice::PopulateRead, range.start, range.len()) {
            // Linux before 5.14 does not know the word.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
            done => return done,
        }
        self.0.advise_range(Advice::WillNeed, range.start, range.len())
    }

    /// Exchanges at most `most` bytes of pages for huge ones with the same bytes, from byte `from`
    /// on; where to go on, `None` at the end. Readers wait for that; they had better not be there,
    /// for if the system fails half way it ends the process.
    pub fn exchange(&self, from: usize, most: usize) -> Option<usize> {
        huge::exchange(&self.0, from, most)
    }
}

impl Deref for Map {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}
