//! Where daemon and client meet when nobody says otherwise.
//!
//! Both ends walk the same list, so that they agree without having spoken:
//!
//! 1. the path given on the command line,
//! 2. `TINYGPT_SOCKET`,
//! 3. `tinygpt/tinygptd.sock` in a runtime directory that belongs to the user: `$XDG_RUNTIME_DIR`,
//!    else `/run/user/<uid>`, which exists but is not named in the environment under ssh and cron;
//!    on macOS in the user's Application Support folder, unless that makes the path too long,
//! 4. `tinygpt-<uid>/tinygptd.sock` in the system's temporary folder.
//!
//! A directory under 3 is used only when it exists and belongs to the user: an environment carried
//! over by `su` must not send one user's daemon to another user's folder.
//! The last place is open to everyone, so [`SocketPath::prepare`] accepts the directory there only
//! as a real directory of the user's own with mode 0700.
//!
//! A socket's path must fit `sun_path`, a fixed array in the kernel's interface; a longer one is
//! refused here, with both numbers, instead of by a bare "invalid argument" later.

use std::env;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The environment variable that names the socket for daemon and client alike.
pub const VARIABLE: &str = "TINYGPT_SOCKET";

/// The longest socket path in bytes: the size of `sun_path` less its terminating zero.
pub const MAX_PATH_BYTES: usize = if cfg!(target_os = "macos") { 103 } else { 107 };

/// The socket's file name in the default places.
const FILE_NAME: &str = "tinygptd.sock";

/// A socket path that is no longer than the system allows, and who chose it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketPath {
    path: PathBuf,
    origin: Origin,
}

/// Who chose a socket path. Clients start a daemon on a default path only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The command line, or a caller of the library.
    Explicit,
    /// `TINYGPT_SOCKET`.
    Environment,
    /// The rules of this module.
    Default,
}

/// Why a path cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SocketPathError {
    /// The path does not fit `sun_path`.
    #[error(
        "the socket path {path:?} is {bytes} bytes long, this system allows {MAX_PATH_BYTES}: \
         choose a shorter one with --socket or TINYGPT_SOCKET"
    )]
    TooLong {
        /// The path.
        path: PathBuf,
        /// Its length.
        bytes: usize,
    },
    /// The directory for the socket could not be made or looked at.
    #[error("cannot prepare the socket's directory {directory:?}: {source}")]
    Directory {
        /// The directory.
        directory: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Others could replace the socket.
    #[error(
        "the socket's directory {directory:?} must be a directory of uid {uid} with mode 0700, \
         it is a {kind} of uid {owner} with mode {mode:04o}"
    )]
    NotPrivate {
        /// The directory.
        directory: PathBuf,
        /// The user who wants to use it.
        uid: u32,
        /// What lies there.
        kind: &'static str,
        /// Its owner.
        owner: u32,
        /// Its permission bits.
        mode: u32,
    },
}

impl SocketPath {
    /// The path to use: `explicit` when given, else what the environment and the rules say.
    pub fn resolve(explicit: Option<&Path>) -> Result<Self, SocketPathError> {
        Surroundings::of_this_process().resolve(explicit)
    }

    /// The path itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Who chose it.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Makes the directory of a default path, with mode 0700, and refuses one that others may
    /// write to. Directories that a user chose are the user's business and left alone.
    pub fn prepare(&self) -> Result<(), SocketPathError> {
        match (self.origin, self.path.parent()) {
            (Origin::Default, Some(directory)) => private_directory(directory),
            _ => Ok(()),
        }
    }

    fn new(path: PathBuf, origin: Origin) -> Result<Self, SocketPathError> {
        let bytes = path.as_os_str().as_bytes().len();
        if bytes > MAX_PATH_BYTES {
            return Err(SocketPathError::TooLong { path, bytes });
        }
        Ok(Self { path, origin })
    }
}

/// What the rules look at, so that tests can try them without touching the environment.
#[derive(Debug, Clone)]
struct Surroundings {
    variable: Option<OsString>,
    /// Directories that may hold a private folder, best first.
    homes: Vec<PathBuf>,
    temporary: PathBuf,
    uid: u32,
}

impl Surroundings {
    fn of_this_process() -> Self {
        let uid = rustix::process::geteuid().as_raw();
        Self {
            variable: env::var_os(VARIABLE).filter(|value| !value.is_empty()),
            homes: runtime_directories(uid),
            temporary: env::temp_dir(),
            uid,
        }
    }

    fn resolve(&self, explicit: Option<&Path>) -> Result<SocketPath, SocketPathError> {
        if let Some(path) = explicit {
            return SocketPath::new(path.to_owned(), Origin::Explicit);
        }
        if let Some(path) = &self.variable {
            return SocketPath::new(path.into(), Origin::Environment);
        }
        let in_home =
            self.homes.iter().filter(|home| belongs_to(home, self.uid)).find_map(|home| {
                SocketPath::new(home.join("tinygpt").join(FILE_NAME), Origin::Default).ok()
            });
        match in_home {
            Some(path) => Ok(path),
            None => SocketPath::new(self.in_temporary(), Origin::Default),
        }
    }

    fn in_temporary(&self) -> PathBuf {
        self.temporary.join(format!("tinygpt-{}", self.uid)).join(FILE_NAME)
    }
}

/// Where private folders may lie on this system, best first.
fn runtime_directories(uid: u32) -> Vec<PathBuf> {
    let named = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let usual = if cfg!(target_os = "macos") {
        env::var_os("HOME").map(|home| Path::new(&home).join("Library/Application Support"))
    } else {
        Some(PathBuf::from(format!("/run/user/{uid}")))
    };
    named.into_iter().chain(usual).filter(|path| path.is_absolute()).collect()
}

fn belongs_to(directory: &Path, uid: u32) -> bool {
    fs::metadata(directory).is_ok_and(|found| found.is_dir() && found.uid() == uid)
}

fn private_directory(directory: &Path) -> Result<(), SocketPathError> {
    let failed = |source| SocketPathError::Directory { directory: directory.to_owned(), source };
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
        _ => {}
    }
    let found = fs::symlink_metadata(directory).map_err(failed)?;
    require_private(directory, &found, rustix::process::geteuid().as_raw())
}

fn require_private(directory: &Path, found: &Metadata, uid: u32) -> Result<(), SocketPathError> {
    let mode = found.permissions().mode() & 0o7777;
    if found.is_dir() && found.uid() == uid && mode & 0o077 == 0 {
        return Ok(());
    }
    Err(SocketPathError::NotPrivate {
        directory: directory.to_owned(),
        uid,
        kind: kind(found),
        owner: found.uid(),
        mode,
    })
}

fn kind(found: &Metadata) -> &'static str {
    match (found.is_dir(), found.is_symlink()) {
        (true, _) => "directory",
        (_, true) => "symbolic link",
        _ => "file",
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn surroundings(homes: &[&Path], temporary: &Path) -> Surroundings {
        Surroundings {
            variable: None,
            homes: homes.iter().map(|home| (*home).to_owned()).collect(),
            temporary: temporary.to_owned(),
            uid: rustix::process::geteuid().as_raw(),
        }
    }

    #[test]
    fn an_explicit_path_wins_over_the_environment_and_that_over_the_default() {
        let folder = tempfile::tempdir().unwrap();
        let mut around = surroundings(&[folder.path()], folder.path());
        assert_eq!(around.resolve(None).unwrap().origin(), Origin::Default);
        around.variable = Some("/b.sock".into());
        assert_eq!(around.resolve(None).unwrap().path(), Path::new("/b.sock"));
        let explicit = around.resolve(Some(Path::new("/a.sock"))).unwrap();
        assert_eq!((explicit.path(), explicit.origin()), (Path::new("/a.sock"), Origin::Explicit));
    }

    #[test]
    fn a_runtime_directory_that_is_missing_is_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let around = surroundings(&[&folder.path().join("gone"), folder.path()], Path::new("/tmp"));
        let expected = folder.path().join("tinygpt/tinygptd.sock");
        assert_eq!(around.resolve(None).unwrap().path(), expected);
    }

    #[test]
    fn a_runtime_directory_of_another_user_is_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let mut around = surroundings(&[folder.path()], folder.path());
        around.uid += 1;
        let expected = folder.path().join(format!("tinygpt-{}/tinygptd.sock", around.uid));
        assert_eq!(around.resolve(None).unwrap().path(), expected);
    }

    #[test]
    fn a_runtime_directory_that_is_too_deep_gives_way_to_the_temporary_folder() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("d".repeat(MAX_PATH_BYTES));
        fs::create_dir(&deep).unwrap();
        let around = surroundings(&[&deep], Path::new("/tmp"));
        assert!(around.resolve(None).unwrap().path().starts_with("/tmp"));
    }

    #[test]
    fn a_path_of_one_byte_too_many_is_refused_with_both_numbers() {
        let fits = format!("/{}", "s".repeat(MAX_PATH_BYTES - 1));
        let around = surroundings(&[], Path::new("/tmp"));
        around.resolve(Some(Path::new(&fits))).unwrap();
        let error = around.resolve(Some(Path::new(&format!("{fits}s")))).unwrap_err().to_string();
        assert!(error.contains(&format!("{} bytes", MAX_PATH_BYTES + 1)), "{error}");
        assert!(error.contains(&format!("allows {MAX_PATH_BYTES}")), "{error}");
    }

    #[test]
    fn the_default_directory_is_made_for_the_user_alone() {
        let folder = tempfile::tempdir().unwrap();
        let socket = surroundings(&[], folder.path()).resolve(None).unwrap();
        socket.prepare().unwrap();
        socket.prepare().unwrap();
        let mode = fs::metadata(socket.path().parent().unwrap()).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o700);
    }

    #[test]
    fn a_default_directory_that_others_may_enter_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let socket = surroundings(&[], folder.path()).resolve(None).unwrap();
        let directory = socket.path().parent().unwrap();
        fs::create_dir(directory).unwrap();
        fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).unwrap();
        let error = socket.prepare().unwrap_err().to_string();
        assert!(error.contains("mode 0755"), "{error}");
    }

    #[test]
    fn a_default_directory_that_is_a_link_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let socket = surroundings(&[], folder.path()).resolve(None).unwrap();
        symlink("/", socket.path().parent().unwrap()).unwrap();
        let error = socket.prepare().unwrap_err().to_string();
        assert!(error.contains("symbolic link"), "{error}");
    }

    #[test]
    fn a_directory_that_the_user_chose_is_left_alone() {
        let socket = surroundings(&[], Path::new("/tmp"))
            .resolve(Some(Path::new("/no/such/folder/a.sock")))
            .unwrap();
        socket.prepare().unwrap();
    }
}
