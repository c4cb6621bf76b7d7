//! An exclusive lock on a file that tells who holds it.
//!
//! The kernel drops the lock when its holder dies, however it dies, so a lock never goes stale; only the words in the file may.
//! They are two lines, the holder's process id and its socket, and are read only after the lock was refused:
//! a second daemon can then name the first, and a client can go and talk to it.
//!
//! The file is never unlinked: two processes could otherwise hold "the" lock on two files of one name.

use std::ffi::OsStr;
use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::{fmt, fs, process};

/// The process that holds a lock and the socket it answers on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Process id.
    pub pid: u32,
    /// Absolute path of the holder's socket.
    pub socket: PathBuf,
}

/// A held lock; dropping it lets go.
#[derive(Debug)]
pub struct LockFile {
    file: File,
    id: LockId,
}

/// Which file a lock is on. No other file is the same one for as long as the lock is held,
/// whatever becomes of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockId {
    device: u64,
    inode: u64,
}

/// Why a lock could not be had.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process holds it.
    #[error("{} is locked by {}", path.display(), name(holder.as_ref()))]
    Held {
        /// The lock file.
        path: PathBuf,
        /// What the holder wrote about itself; `None` in the moment before it did.
        holder: Option<Holder>,
    },
    /// The file cannot be opened, locked or written.
    #[error("cannot lock {}", path.display())]
    Io {
        /// The lock file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl LockFile {
    /// Takes the lock at `path`, creating the file (0600) if need be, and records this process as its holder.
    ///
    /// Never waits: a lock that is held is [`LockError::Held`].
    pub fn acquire(path: &Path, socket: &Path) -> Result<Self, LockError> {
        let io = |source| LockError::Io { path: path.to_owned(), source };
        let mut file = open(path).map_err(io)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(LockError::Held { path: path.to_owned(), holder: Holder::read(path) });
            }
            Err(TryLockError::Error(source)) => return Err(io(source)),
        }
        Holder::this_process(socket).write(&mut file).map_err(io)?;
        let id = LockId::of(&file.metadata().map_err(io)?);
        Ok(Self { file, id })
    }

    /// Which file it is.
    #[must_use]
    pub fn id(&self) -> LockId {
        self.id
    }
}

impl LockId {
    /// Which file lies at `path` now.
    ///
    /// # Errors
    /// When none does, or the system does not tell.
    pub fn at(path: &Path) -> io::Result<Self> {
        fs::metadata(path).map(|found| Self::of(&found))
    }

    fn of(found: &Metadata) -> Self {
        Self { device: found.dev(), inode: found.ino() }
    }
}

impl Drop for LockFile {
    /// Leaves no words behind that name a process which is gone.
    fn drop(&mut self) {
        // Nothing depends on either. Whoever takes the lock next writes its own words; and closing
        // unlocks, unless a child that has not begun its own program yet holds the file, too.
        let _ = self.file.set_len(0);
        let _ = self.file.unlock();
    }
}

impl Holder {
    /// What the lock file at `path` says, held or not.
    #[must_use]
    pub fn read(path: &Path) -> Option<Self> {
        let bytes = fs::read(path).ok()?;
        let mut lines = bytes.splitn(2, |&b| b == b'\n');
        let pid = str::from_utf8(lines.next()?).ok()?.parse().ok()?;
        let socket = lines.next()?.strip_suffix(b"\n")?;
        Some(Self { pid, socket: OsStr::from_bytes(socket).into() })
    }

    fn this_process(socket: &Path) -> Self {
        let socket = std::path::absolute(socket).unwrap_or_else(|_| socket.to_owned());
        Self { pid: process::id(), socket }
    }

    fn write(&self, file: &mut File) -> io::Result<()> {
        let mut words = format!("{}\n", self.pid).into_bytes();
        words.extend_from_slice(self.socket.as_os_str().as_bytes());
        words.push(b'\n');
        file.set_len(0)?;
        file.write_all(&words)
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}, which answers on {}", self.pid, self.socket.display())
    }
}

fn name(holder: Option<&Holder>) -> String {
    holder.map_or_else(|| "another process".to_owned(), Holder::to_string)
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_second_taker_is_told_who_was_first() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let _first = LockFile::acquire(&path, Path::new("/run/a.sock")).unwrap();
        let LockError::Held { holder, .. } =
            LockFile::acquire(&path, Path::new("/run/b.sock")).unwrap_err()
        else {
            panic!("not refused as held")
        };
        let expected = Holder { pid: process::id(), socket: "/run/a.sock".into() };
        assert_eq!(holder, Some(expected));
    }

    #[test]
    fn a_dropped_lock_can_be_taken_again_and_names_nobody_meanwhile() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        drop(LockFile::acquire(&path, Path::new("/run/long/a.sock")).unwrap());
        assert_eq!(Holder::read(&path), None);
        let _second = LockFile::acquire(&path, Path::new("/b")).unwrap();
        assert_eq!(Holder::read(&path).unwrap().socket, Path::new("/b"));
    }

    #[test]
    fn words_left_by_a_killed_holder_do_not_hold_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        fs::write(&path, "4242\n/a/much/longer/path/than/the/next/one.sock\n").unwrap();
        let _lock = LockFile::acquire(&path, Path::new("/b")).unwrap();
        assert_eq!(Holder::read(&path).unwrap().socket, Path::new("/b"));
    }

    #[test]
    fn socket_paths_need_not_be_text() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let odd = Path::new(OsStr::from_bytes(b"/run/\xff\n.sock"));
        let _lock = LockFile::acquire(&path, odd).unwrap();
        assert_eq!(Holder::read(&path).unwrap().socket, odd);
    }

    #[test]
    fn a_file_of_garbage_names_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        for garbage in ["", "\n", "12", "12\n", "x\n/a\n", "-1\n/a\n"] {
            fs::write(&path, garbage).unwrap();
            assert_eq!(Holder::read(&path), None, "{garbage:?}");
        }
    }

    #[test]
    fn a_missing_directory_is_named() {
        let error = LockFile::acquire(Path::new("/nowhere/lock"), Path::new("/s")).unwrap_err();
        assert_eq!(error.to_string(), "cannot lock /nowhere/lock");
    }
}
