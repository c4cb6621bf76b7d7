//! Who holds the cache that our own daemon found taken.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde::Deserialize;
use tokio::process::Command;

/// The lock file in a cache directory: the holder's process id and its socket, a line each.
const LOCK: &str = "lock";

/// The part of `tinygptd config` that matters here.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Config {
    cache_dir: Option<PathBuf>,
}

/// The socket of the daemon that holds the cache which `program` would use.
///
/// The program itself knows best where that is: flags aside, which a launch does not give, its
/// configuration comes from files and from the environment, which both processes share.
pub(crate) async fn socket(program: &Path) -> Option<PathBuf> {
    let output = Command::new(program)
        .arg("config")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .output();
    let text = String::from_utf8(output.await.ok()?.stdout).ok()?;
    let config: Config = toml::from_str(&text).ok()?;
    named_in(&config.cache_dir?.join(LOCK))
}

fn named_in(lock: &Path) -> Option<PathBuf> {
    let bytes = fs::read(lock).ok()?;
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let socket = bytes[end + 1..].strip_suffix(b"\n")?;
    (!socket.is_empty()).then(|| OsStr::from_bytes(socket).into())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_lock_file_names_its_holders_socket() {
        let folder = tempfile::tempdir().unwrap();
        let lock = folder.path().join(LOCK);
        for (words, socket) in [
            ("12\n/run/a.sock\n", Some("/run/a.sock")),
            ("", None),
            ("12\n", None),
            ("12\n\n", None),
        ] {
            fs::write(&lock, words).unwrap();
            assert_eq!(named_in(&lock).as_deref(), socket.map(Path::new), "{words:?}");
        }
    }
}
