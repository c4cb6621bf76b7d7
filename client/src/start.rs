//! Starting a daemon when none runs.
//!
//! Two clients that find nobody home both launch a daemon. That is fine: the daemon's own lock lets
//! one of them live, the other one ends as busy, and both clients connect to the survivor.
//! So the client keeps no lock of its own. The survivor may even be a daemon that listens elsewhere
//! and holds the cache: the lock file names its socket, and the client goes there.
//!
//! The daemon outlives its client. It gets a process group of its own, so that neither Ctrl-C nor
//! the end of the terminal reaches it (both go to the foreground group), reads nothing, and writes
//! its log to a file in the user's state directory.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use etcetera::BaseStrategy;
use tinygpt_proto::socket::{Origin, SocketPath};
use tokio::process::{Child, Command};
use tokio::time::{Instant, timeout_at};

use crate::connect::Connection;
use crate::holder::Holder;
use crate::ready::{self, Readiness};

/// The daemon's file name.
const PROGRAM: &str = "tinygptd";

/// A log that has grown beyond this is put aside before the next launch.
const LOG_BYTES: u64 = 8 << 20;

/// How much of the log of a daemon that ended is quoted, in bytes.
const TAIL_BYTES: u64 = 4096;

/// How a daemon ends that finds another one in its place (`docs/operations.md`).
const BUSY: i32 = 75;

/// A daemon that could be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// The program.
    pub program: PathBuf,
    /// The socket it shall listen on.
    pub socket: SocketPath,
    /// Where its log goes.
    pub log: PathBuf,
}

/// Why no daemon could be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// There is no such program.
    #[error("cannot find {PROGRAM}: it is neither in {} nor on PATH", beside.display())]
    NoProgram {
        /// The folder of this program.
        beside: PathBuf,
    },
    /// The log cannot be written.
    #[error("cannot write the daemon's log {}: {source}", log.display())]
    Log {
        /// The log.
        log: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The system refused to run it.
    #[error("cannot run {}: {source}", program.display())]
    Spawn {
        /// The program.
        program: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It ended at once.
    #[error("{} ended at once ({status}), its log {} says:\n{}", program.display(), log.display(), tail.trim_end())]
    Ended {
        /// The program.
        program: PathBuf,
        /// How it ended.
        status: ExitStatus,
        /// Where its log is.
        log: PathBuf,
        /// What it logged last in this run.
        tail: String,
    },
    /// It does not serve in time.
    #[error("the daemon does not serve after {:.1} s ({state}); its log is {}", waited.as_secs_f64(), log.display())]
    NotReady {
        /// How long it was given.
        waited: Duration,
        /// What is known of it.
        state: String,
        /// Where its log is.
        log: PathBuf,
    },
}

impl Launch {
    /// Finds the daemon's program beside this one or on `PATH`, and a place for its log.
    ///
    /// # Errors
    /// When there is no program.
    pub fn find(socket: &SocketPath) -> Result<Self, StartError> {
        let beside = env::current_exe()
            .and_then(fs::canonicalize)
            .ok()
            .and_then(|exe| exe.parent().map(Path::to_owned))
            .unwrap_or_default();
        let program = candidates(&beside)
            .find(|path| is_program(path))
            .ok_or(StartError::NoProgram { beside })?;
        Ok(Self { program, socket: socket.clone(), log: log_path(socket) })
    }

    /// Launches the daemon and waits until one serves: this one, or the one that it met, which may
    /// listen elsewhere.
    ///
    /// # Errors
    /// When the daemon cannot be launched, ends, or does not serve within `patience`.
    pub async fn run(&self, patience: Duration) -> Result<Connection, StartError> {
        let deadline = Instant::now() + patience;
        let (log, begin) = self.open_log()?;
        let mut child = self.spawn(log)?;
        let status = tokio::select! {
            biased;
            reached = self.reach(None, deadline, patience) => return reached,
            Ok(status) = child.wait() => status,
        };
        if status.code() != Some(BUSY) {
            return Err(self.ended(status, begin));
        }
        let holder = timeout_at(deadline, Holder::named_for(&self.program)).await.ok().flatten();
        let elsewhere = holder.as_ref().map(|holder| &*holder.socket);
        self.reach(elsewhere, deadline, patience).await
    }

    /// Connects to the daemon on our socket or on that of the cache's `holder`, whichever answers first, and waits
    /// until it serves.
    async fn reach(
        &self,
        holder: Option<&Path>,
        deadline: Instant,
        patience: Duration,
    ) -> Result<Connection, StartError> {
        let not_ready =
            |state| StartError::NotReady { waited: patience, state, log: self.log.clone() };
        let connection = ready::connect(self.socket.path(), holder, deadline).await;
        let connection = connection.map_err(|error| not_ready(error.to_string()))?;
        match ready::wait(&connection, deadline).await {
            Readiness::Serving => Ok(connection),
            Readiness::Not(state) => Err(not_ready(state)),
        }
    }

    fn spawn(&self, log: File) -> Result<Child, StartError> {
        let mut command = Command::new(&self.program);
        // The daemon finds the default socket, and prepares its folder, by the same rules.
        if self.socket.origin() == Origin::Explicit {
            command.arg("--socket").arg(self.socket.path());
        }
        command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(|source| StartError::Spawn { program: self.program.clone(), source })
    }

    /// The log, and how long it is already.
    fn open_log(&self) -> Result<(File, u64), StartError> {
        let open = || {
            if let Some(folder) = self.log.parent() {
                fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
            }
            if fs::metadata(&self.log).is_ok_and(|found| found.len() > LOG_BYTES) {
                fs::rename(&self.log, self.log.with_extension("log.1"))?;
            }
            let log = OpenOptions::new().append(true).create(true).mode(0o600).open(&self.log)?;
            let length = log.metadata()?.len();
            Ok((log, length))
        };
        open().map_err(|source| StartError::Log { log: self.log.clone(), source })
    }

    fn ended(&self, status: ExitStatus, log_begin: u64) -> StartError {
        StartError::Ended {
            program: self.program.clone(),
            status,
            log: self.log.clone(),
            tail: tail(&self.log, log_begin).unwrap_or_default(),
        }
    }
}

fn candidates(beside: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let path = env::var_os("PATH").unwrap_or_default();
    let on_path: Vec<_> = env::split_paths(&path).collect();
    std::iter::once(beside.to_owned()).chain(on_path).map(|folder| folder.join(PROGRAM))
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// In the user's state directory; beside the socket where there is no home.
fn log_path(socket: &SocketPath) -> PathBuf {
    let home = etcetera::base_strategy::choose_native_strategy().ok();
    let state =
        home.map(|home| home.state_dir().unwrap_or_else(|| home.data_dir()).join("tinygpt"));
    let beside = || socket.path().parent().map(Path::to_owned).unwrap_or_default();
    state.unwrap_or_else(beside).join("tinygptd.log")
}

/// The last words of the run whose log begins at `begin`.
fn tail(log: &Path, begin: u64) -> io::Result<String> {
    let mut file = File::open(log)?;
    let last = file.metadata()?.len().saturating_sub(TAIL_BYTES);
    file.seek(SeekFrom::Start(begin.max(last)))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// A daemon that is a shell script.
    fn launch(folder: &Path, script: &str) -> Launch {
        let program = folder.join(PROGRAM);
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let socket = SocketPath::resolve(Some(&folder.join("s"))).unwrap();
        Launch { program, socket, log: folder.join("state/tinygptd.log") }
    }

    fn error(launch: &Launch, patience: Duration) -> StartError {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(launch.run(patience)).unwrap_err()
    }

    #[test]
    fn a_daemon_that_ends_at_once_is_quoted() {
        let folder = tempfile::tempdir().unwrap();
        let launch = launch(folder.path(), "echo no model at \"$2\" >&2; exit 3");
        for _ in 0..2 {
            let error = error(&launch, Duration::from_secs(9)).to_string();
            let socket = folder.path().join("s");
            assert!(error.contains("exit status: 3"), "{error}");
            let quoted = format!("no model at {}", socket.display());
            assert_eq!(error.matches(&quoted).count(), 1, "only this run is quoted: {error}");
        }
    }

    #[test]
    fn of_a_long_log_the_end_is_quoted() {
        let folder = tempfile::tempdir().unwrap();
        let script =
            "for i in $(seq 500); do echo loading part $i >&2; done; echo no memory >&2; exit 1";
        let error = error(&launch(folder.path(), script), Duration::from_secs(9)).to_string();
        assert!(error.ends_with("loading part 500\nno memory"), "{error}");
        assert!(!error.contains("loading part 1\n"), "{error}");
    }

    #[test]
    fn a_daemon_that_never_answers_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let launch = launch(folder.path(), "exec sleep 2");
        let error = error(&launch, Duration::from_millis(50));
        assert!(matches!(error, StartError::NotReady { .. }), "{error}");
    }

    #[test]
    fn a_program_that_never_tells_where_its_cache_is_costs_no_more_than_the_time_given() {
        let folder = tempfile::tempdir().unwrap();
        let launch = launch(folder.path(), "[ \"$1\" = config ] && exec sleep 60; exit 75");
        let begun = Instant::now();
        let error = error(&launch, Duration::from_millis(300));
        assert!(matches!(error, StartError::NotReady { .. }), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    }

    #[test]
    fn a_long_log_is_put_aside() {
        let folder = tempfile::tempdir().unwrap();
        let launch = launch(folder.path(), "exit 1");
        fs::create_dir(folder.path().join("state")).unwrap();
        File::create(&launch.log).unwrap().set_len(LOG_BYTES + 1).unwrap();
        let (_, begin) = launch.open_log().unwrap();
        assert_eq!(begin, 0);
        assert_eq!(
            fs::metadata(folder.path().join("state/tinygptd.log.1")).unwrap().len(),
            LOG_BYTES + 1
        );
    }
}
