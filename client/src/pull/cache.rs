//! The folder of a repository in the cache that Hugging Face's tools share:
//!
//! ```text
//! models--OWNER--NAME/
//!   blobs/DIGEST                 a file's bytes
//!   blobs/DIGEST.incomplete      the first of them
//!   snapshots/COMMIT/FILE        a link to its blob
//!   refs/REVISION                the commit
//! .locks/models--OWNER--NAME/DIGEST.lock
//! ```

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::error::PullError;
use super::hub::{Entry, Listing};

/// A repository's place in the cache, at one commit.
#[derive(Debug)]
pub(super) struct Snapshot {
    repository: PathBuf,
    locks: PathBuf,
    commit: String,
}

impl Snapshot {
    pub(super) fn new(cache: &Path, listing: &Listing) -> Self {
        let folder = format!("models--{}", listing.repository.replace('/', "--"));
        Self {
            repository: cache.join(&folder),
            locks: cache.join(".locks").join(folder),
            commit: listing.commit.clone(),
        }
    }

    /// Where the files are to be found.
    pub(super) fn path(&self) -> PathBuf {
        self.repository.join("snapshots").join(&self.commit)
    }

    /// Whether the file's bytes are there, whoever brought them.
    pub(super) fn has(&self, file: &Entry) -> bool {
        let size = |path: PathBuf| fs::metadata(path).is_ok_and(|found| found.len() == file.size);
        size(self.blob(file)) || size(self.path().join(&file.name))
    }

    /// How many of the file's bytes have still to come.
    pub(super) fn missing(&self, file: &Entry) -> u64 {
        if self.has(file) {
            return 0;
        }
        let there = fs::metadata(self.part(file)).map_or(0, |part| part.len());
        file.size.saturating_sub(there)
    }

    pub(super) fn blob(&self, file: &Entry) -> PathBuf {
        self.repository.join("blobs").join(file.digest.as_str())
    }

    /// Where the file's bytes are before all have come.
    pub(super) fn part(&self, file: &Entry) -> PathBuf {
        self.blob(file).with_extension("incomplete")
    }

    /// A lock that whoever fetches the file holds; not taken yet.
    pub(super) fn lock(&self, file: &Entry) -> Result<File, PullError> {
        let path = self.locks.join(format!("{}.lock", file.digest.as_str()));
        make_parent(&path)?;
        let lock = File::options().create(true).truncate(false).write(true).open(&path);
        lock.map_err(at(&path))
    }

    /// Makes the file appear in the snapshot.
    pub(super) fn link(&self, file: &Entry) -> Result<(), PullError> {
        let link = self.path().join(&file.name);
        if fs::metadata(&link).is_ok_and(|found| found.len() == file.size) {
            return Ok(());
        }
        make_parent(&link)?;
        let up = "../".repeat(2 + file.name.matches('/').count());
        let blob = format!("{up}blobs/{}", file.digest.as_str());
        match fs::remove_file(&link) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => symlink(blob, &link),
        }
        .map_err(at(&link))
    }

    /// Makes a revision mean this commit.
    pub(super) fn refer(&self, revision: &str) -> Result<(), PullError> {
        if revision == self.commit {
            return Ok(());
        }
        let path = self.repository.join("refs").join(revision);
        make_parent(&path)?;
        fs::write(&path, &self.commit).map_err(at(&path))
    }

    /// Refuses to begin what has no room on the disk.
    pub(super) fn require_room(&self, needed: u64) -> Result<(), PullError> {
        let folder = self.repository.join("blobs");
        fs::create_dir_all(&folder).map_err(at(&folder))?;
        let disk = rustix::fs::statvfs(&folder).map_err(|error| at(&folder)(error.into()))?;
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        if needed > free {
            return Err(PullError::Room { folder, needed, free });
        }
        Ok(())
    }
}

/// An error of the system, with the path that it is about.
pub(super) fn at(path: &Path) -> impl FnOnce(io::Error) -> PullError {
    let path = path.to_owned();
    move |source| PullError::File { path, source }
}

fn make_parent(path: &Path) -> Result<(), PullError> {
    let parent = path.parent().unwrap_or(path);
    fs::create_dir_all(parent).map_err(at(parent))
}
