//! Directories that are this user's alone, and the room on their disks.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Why a directory is not this user's alone.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// It is not there and cannot be made.
    #[error("cannot create the directory {}: {error}", path.display())]
    Create {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// Something else has its name.
    #[error("{} is not a directory", path.display())]
    NotADirectory {
        /// The path.
        path: PathBuf,
    },
    /// It belongs to somebody else.
    #[error("the directory {} belongs to user {owner}, this is user {user}", path.display())]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// This process's user.
        user: u32,
    },
}

/// Makes a directory that only this user may enter, if its parent exists; closes one that is this
/// user's and open to others.
///
/// # Errors
/// When it cannot be made or examined, or belongs to another user.
pub fn own(path: &Path) -> Result<(), DirectoryError> {
    let create = |error| DirectoryError::Create { path: path.to_owned(), error };
    make(path).map_err(create)?;
    let metadata = fs::metadata(path).map_err(create)?;
    if !metadata.is_dir() {
        return Err(DirectoryError::NotADirectory { path: path.to_owned() });
    }
    let (owner, user) = (metadata.uid(), rustix::process::geteuid().as_raw());
    if owner != user {
        return Err(DirectoryError::Foreign { path: path.to_owned(), owner, user });
    }
    if metadata.mode() & 0o077 != 0 {
        fs::set_permissions(path, Permissions::from_mode(0o700)).map_err(create)?;
    }
    Ok(())
}

/// Creates a directory that only its owner may enter, unless something has its name.
///
/// # Errors
/// What the system says.
pub fn make(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        done => done,
    }
}

/// Bytes that this user may still write below `path`; `None` on file systems that do not tell.
pub fn free_bytes(path: &Path) -> Option<u64> {
    let status = rustix::fs::statvfs(path).ok()?;
    Some(status.f_bavail.saturating_mul(status.f_frsize))
}
