//! Binding the daemon's Unix socket, so that two daemons never steal it from each other and no other user can reach it.
//!
//! A socket file says nothing about whether anybody listens, and looking first and unlinking later is a race.
//! So whoever wants to bind takes an exclusive lock beside the socket and keeps it while it listens;
//! under that lock an old file is removed only after a connection to it was *refused*, which a live listener never does.
//! Sockets handed over by launchd or systemd do not come through here and are never unlinked.

use std::fs::{self, DirBuilder, Metadata, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use super::lock::{LockError, LockFile};

/// The file of a socket that this process bound; dropping it unlinks the file, then lets the lock go.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    _lock: LockFile,
}

/// Why a socket could not be bound.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The directory cannot be created or examined.
    #[error("cannot prepare the socket directory {}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Somebody else could replace the socket.
    #[error(
        "socket directory {} belongs to user {owner} with mode {mode:o}: other users could replace the socket",
        path.display()
    )]
    Exposed {
        /// The directory.
        path: PathBuf,
        /// Its owner's user id.
        owner: u32,
        /// Its permission bits.
        mode: u32,
    },
    /// Another daemon holds the lock beside the socket.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// Somebody who does not hold the lock answers there: a supervisor, or another program.
    #[error("another process listens on {}", path.display())]
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// What is there is not a socket, and is left alone.
    #[error("{} exists and is not a socket", path.display())]
    NotASocket {
        /// The file.
        path: PathBuf,
    },
    /// The old file cannot be examined or removed.
    #[error("cannot clear the old socket {}", path.display())]
    Clear {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The system refused to bind.
    #[error("cannot listen on {}", path.display())]
    Bind {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// Listens on `path`: 0600, non-blocking, in a directory (created 0700) where nobody else can replace it.
///
/// What is asked of the folder of a default path is stricter, and was asked before (`SocketPath::prepare`).
/// The listener works for as long as it lives; the file goes when the [`SocketFile`] is dropped.
pub fn bind(path: &Path) -> Result<(UnixListener, SocketFile), SocketError> {
    prepare_directory(directory_of(path))?;
    let lock = LockFile::acquire(&lock_path(path), path)?;
    clear_stale(path)?;
    let listener =
        listen(path).map_err(|source| SocketError::Bind { path: path.to_owned(), source })?;
    Ok((listener, SocketFile { path: path.to_owned(), _lock: lock }))
}

/// The absolute path that a listener is reached at, whoever bound it; `None` when it has none.
#[must_use]
pub fn address(listener: &UnixListener) -> Option<PathBuf> {
    let address = listener.local_addr().ok()?;
    std::path::absolute(address.as_pathname()?).ok()
}

/// The lock beside the socket at `path`: `tinygptd.sock.lock` for `tinygptd.sock`.
#[must_use]
pub fn lock_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn prepare_directory(path: &Path) -> Result<(), SocketError> {
    let found = DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .and_then(|()| fs::metadata(path))
        .map_err(|source| SocketError::Directory { path: path.to_owned(), source })?;
    if is_exposed(&found) {
        let mode = found.mode() & 0o7777;
        return Err(SocketError::Exposed { path: path.to_owned(), owner: found.uid(), mode });
    }
    Ok(())
}

/// Whether a user other than this one and root could rename or remove entries of the directory.
///
/// A sticky directory (`/tmp`) is not exposed: there only the owner of an entry may.
fn is_exposed(directory: &Metadata) -> bool {
    let ours = [0, rustix::process::geteuid().as_raw()].contains(&directory.uid());
    let (writable, sticky) = (directory.mode() & 0o022 != 0, directory.mode() & 0o1000 != 0);
    !ours || (writable && !sticky)
}

/// Removes a socket nobody listens on. Invariant: the lock beside it is held.
fn clear_stale(path: &Path) -> Result<(), SocketError> {
    let clear = |source| SocketError::Clear { path: path.to_owned(), source };
    match fs::symlink_metadata(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(clear(e)),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(SocketError::NotASocket { path: path.to_owned() });
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(SocketError::InUse { path: path.to_owned() }),
        Err(e) if e.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path).map_err(clear),
        Err(e) => Err(clear(e)),
    }
}

/// Between the two calls the umask decides who may connect; the peer check of the service refuses them all the same.
fn listen(path: &Path) -> io::Result<UnixListener> {
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // The lock, a field, is dropped after this: nobody else has bound the path meanwhile.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn only_the_owner_can_reach_the_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/deep/s.sock");
        let _bound = bind(&path).unwrap();
        assert_eq!(mode(&path), 0o600);
        assert_eq!(mode(&dir.path().join("new/deep")), 0o700);
        assert_eq!(mode(&dir.path().join("new")), 0o700);
        assert_eq!(mode(&lock_path(&path)), 0o600);
    }

    #[test]
    fn a_listener_tells_where_it_is_reached() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        assert_eq!(address(&UnixListener::bind(&path).unwrap()), Some(path));
    }

    #[test]
    fn the_listener_does_not_block() {
        let dir = tempfile::tempdir().unwrap();
        let (listener, _file) = bind(&dir.path().join("s")).unwrap();
        assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    }

    #[test]
    fn a_socket_left_by_a_killed_daemon_is_taken_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "a plain listener leaves its file");
        let _bound = bind(&path).unwrap();
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn a_second_daemon_is_told_about_the_first_and_takes_nothing_from_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let _first = bind(&path).unwrap();
        let error = bind(&path).unwrap_err();
        assert!(matches!(error, SocketError::Lock(LockError::Held { holder: Some(_), .. })));
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn a_listener_without_the_lock_keeps_its_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let _supervisor = UnixListener::bind(&path).unwrap();
        assert!(matches!(bind(&path).unwrap_err(), SocketError::InUse { .. }));
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn a_file_that_is_no_socket_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        fs::write(&path, "precious").unwrap();
        assert!(matches!(bind(&path).unwrap_err(), SocketError::NotASocket { .. }));
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn the_file_goes_with_its_owner_and_the_path_is_free_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        drop(bind(&path).unwrap());
        assert!(!path.exists());
        let _again = bind(&path).unwrap();
    }

    #[test]
    fn a_directory_others_can_write_to_is_refused_unless_sticky() {
        let dir = tempfile::tempdir().unwrap();
        let open = dir.path().join("open");
        fs::create_dir(&open).unwrap();
        let chmod = |mode| fs::set_permissions(&open, Permissions::from_mode(mode)).unwrap();
        chmod(0o777);
        let error = bind(&open.join("s")).unwrap_err();
        assert!(matches!(error, SocketError::Exposed { mode: 0o777, .. }), "{error}");
        chmod(0o1777);
        bind(&open.join("s")).unwrap();
    }

    #[test]
    fn a_relative_path_is_bound_where_it_says() {
        assert_eq!(directory_of(Path::new("s.sock")), Path::new("."));
        assert_eq!(directory_of(Path::new("/s.sock")), Path::new("/"));
        assert_eq!(directory_of(Path::new("a/s.sock")), Path::new("a"));
    }
}
