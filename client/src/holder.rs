//! Who holds the cache that a daemon of our own would use.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::{fmt, fs};

use serde::Deserialize;
use tokio::process::Command;

use crate::connect::Connection;

/// The lock file in a cache directory: the holder's process id and its socket, a line each.
const LOCK: &str = "lock";

/// The daemon that holds a cache directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The directory.
    pub cache_dir: PathBuf,
    /// The daemon's process id.
    pub pid: u32,
    /// The socket it listens on.
    pub socket: PathBuf,
}

/// The part of `tinygptd config` that matters here.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Config {
    cache_dir: Option<PathBuf>,
}

impl Holder {
    /// What the lock says of the cache which `program` would use. After a crash it may name a
    /// process that is gone.
    ///
    /// The program itself knows best where that is: flags aside, which a launch does not give, its
    /// configuration comes from files and from the environment, which both processes share.
    pub async fn named_for(program: &Path) -> Option<Self> {
        let output = Command::new(program)
            .arg("config")
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .output();
        let text = String::from_utf8(output.await.ok()?.stdout).ok()?;
        let config: Config = toml::from_str(&text).ok()?;
        Self::named_in(config.cache_dir?)
    }

    /// Whether somebody listens on its socket.
    pub async fn answers(&self) -> bool {
        Connection::open_path(&self.socket).await.is_ok()
    }

    fn named_in(cache_dir: PathBuf) -> Option<Self> {
        let bytes = fs::read(cache_dir.join(LOCK)).ok()?;
        let mut lines = bytes.splitn(2, |byte| *byte == b'\n');
        let pid = str::from_utf8(lines.next()?).ok()?.parse().ok()?;
        let socket = lines.next()?.strip_suffix(b"\n").filter(|socket| !socket.is_empty())?;
        Some(Self { cache_dir, pid, socket: OsStr::from_bytes(socket).into() })
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cache_dir, pid, socket } = self;
        let (folder, socket) = (cache_dir.display(), socket.display());
        write!(f, "the cache in {folder} is held by process {pid}, which answers on {socket}")
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_lock_file_names_its_holder_and_the_socket() {
        let folder = tempfile::tempdir().unwrap();
        for (words, named) in [
            ("12\n/run/a.sock\n", Some((12, "/run/a.sock"))),
            ("", None),
            ("12\n", None),
            ("12\n\n", None),
            ("x\n/run/a.sock\n", None),
        ] {
            fs::write(folder.path().join(LOCK), words).unwrap();
            let holder = Holder::named_in(folder.path().to_owned());
            let found = holder.as_ref().map(|holder| (holder.pid, &*holder.socket));
            assert_eq!(found, named.map(|(pid, socket)| (pid, Path::new(socket))), "{words:?}");
        }
    }
}
