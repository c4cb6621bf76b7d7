//! Real daemons in homes of their own.
//!
//! A [`Home`] is a temporary directory with everything one daemon needs; a [`Started`] process is killed when dropped.
//! Whatever goes wrong here fails the test that asked for it.
#![expect(clippy::unwrap_used, reason = "a harness fails its test by panicking")]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use std::{env, thread};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tinygpt_client::ready::{self, Readiness};

use crate::client::finish;

/// How long anything may take before it counts as hanging.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The daemon under test: `TINYGPTD`, else what cargo built beside this test.
#[must_use]
pub fn tinygptd() -> PathBuf {
    beside("TINYGPTD", "tinygptd")
}

/// A program that `variable` names, else the one called `name` where cargo put this test or tool.
///
/// # Panics
/// When it was not built: cargo builds a test's own package only.
pub(crate) fn beside(variable: &str, name: &str) -> PathBuf {
    let beside = || {
        let exe = env::current_exe().unwrap();
        let folder = exe.parent().unwrap();
        let is_test = folder.file_name().is_some_and(|folder| folder == "deps");
        let folder = if is_test { folder.parent().unwrap() } else { folder };
        folder.join(name)
    };
    let path = env::var_os(variable).map_or_else(beside, PathBuf::from);
    assert!(path.exists(), "no {}: run `cargo build --workspace --bins`", path.display());
    path
}

/// A directory for one daemon's socket, cache and configuration, removed when dropped.
#[derive(Debug)]
pub struct Home {
    dir: TempDir,
}

impl Home {
    /// An empty one, with a path short enough for sockets.
    #[must_use]
    pub fn new() -> Self {
        Self { dir: tempfile::Builder::new().prefix("tg-").tempdir().unwrap() }
    }

    /// The path of `name` in it.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Where [`daemon`](Self::daemon) listens.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.path("s")
    }

    /// The command of a daemon on this home's socket and cache directory, with its log in this home.
    #[must_use]
    pub fn daemon(&self) -> Command {
        self.daemon_on(&self.socket())
    }

    /// The same on another socket.
    #[must_use]
    pub fn daemon_on(&self, socket: &Path) -> Command {
        let mut command = Command::new(tinygptd());
        self.settle(&mut command);
        command.arg("--socket").arg(socket).arg("--cache-dir").arg(self.path("cache"));
        command.stderr(self.log());
        command
    }

    /// Keeps a command from everything that the user who runs the tests has.
    pub fn settle(&self, command: &mut Command) {
        for (name, _) in env::vars_os() {
            let others = ["TINYGPT", "HF_", "HUGGINGFACE_", "OLLAMA_"];
            if others.iter().any(|start| name.to_string_lossy().starts_with(start)) {
                command.env_remove(name);
            }
        }
        command.env("HOME", self.path("")).env("XDG_RUNTIME_DIR", self.path(""));
        for name in ["XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME"] {
            command.env_remove(name);
        }
    }

    /// The file `log`, to append to.
    #[must_use]
    pub fn log(&self) -> File {
        File::options().create(true).append(true).open(self.path("log")).unwrap()
    }

    /// Waits until whoever listens on the socket says that it serves.
    ///
    /// # Panics
    /// After [`PATIENCE`], with the log.
    pub async fn await_serving(&self) {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        let seen = match ready::connect(&self.socket(), None, deadline).await {
            Ok(connection) => ready::wait(&connection, deadline).await,
            Err(error) => Readiness::Not(error.to_string()),
        };
        let log = || fs::read_to_string(self.path("log")).unwrap_or_default();
        assert_eq!(seen, Readiness::Serving, "the log:\n{}", log());
    }
}

impl Default for Home {
    fn default() -> Self {
        Self::new()
    }
}

/// A running process, killed when dropped.
#[derive(Debug)]
pub struct Started {
    child: Child,
}

impl Started {
    /// Starts `command`; `None` when there is no such program.
    pub fn if_installed(command: &mut Command) -> Option<Self> {
        let child = command.stdin(Stdio::null()).spawn().ok()?;
        Some(Self { child })
    }

    /// Starts `command`.
    pub fn new(command: &mut Command) -> Self {
        Self::if_installed(command).unwrap_or_else(|| panic!("cannot start {command:?}"))
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Asks it to end with SIGTERM, and waits until it has.
    pub fn terminate(&mut self) -> ExitStatus {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        self.child.wait().unwrap()
    }

    /// Ends it as a crash does, with SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a command that is expected to end by itself: its exit code and what it wrote to stderr.
pub fn ended(command: &mut Command) -> (i32, String) {
    let answer = finish(command, b"");
    (answer.code, answer.stderr)
}

/// Waits until something is so.
///
/// # Panics
/// When it is not for [`PATIENCE`].
pub fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "never {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn nothing_of_the_user_who_runs_the_tests_reaches_a_daemon_or_a_client() {
        let home = Home::new();
        for command in [home.daemon(), home.client()] {
            let set = |name| command.get_envs().find(|(key, _)| *key == name).map(|(_, to)| to);
            assert_eq!(set("HOME"), Some(Some(home.path("").as_os_str())), "{command:?}");
            for name in ["XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"] {
                assert_eq!(set(name), Some(None::<&OsStr>), "{name}");
            }
        }
    }
}
