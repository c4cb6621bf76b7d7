//! The client as its users run it: a process with arguments, a standard input, and an exit code.
//!
//! Whatever goes wrong here fails the test that asked for it.
#![expect(clippy::unwrap_used, reason = "a harness fails its test by panicking")]

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::{fs, thread};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tinygpt_client::exit::Exit;

use crate::process::{Home, PATIENCE, Started, beside, tinygptd};

/// The client under test: `TINYGPT_CLIENT`, else what cargo built beside this test.
#[must_use]
pub fn tinygpt_client() -> PathBuf {
    beside("TINYGPT_CLIENT", "tinygpt-client")
}

/// What a client said and how it ended.
#[derive(Debug)]
pub struct Answer {
    /// Its exit status.
    pub code: i32,
    /// What it wrote to stdout.
    pub stdout: String,
    /// What it wrote to stderr.
    pub stderr: String,
}

impl Answer {
    /// Itself, when the client was successful.
    ///
    /// # Panics
    /// When it was not.
    #[must_use]
    pub fn ok(self) -> Self {
        assert_eq!(self.code, 0, "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        self
    }

    /// The one JSON object on its stdout.
    ///
    /// # Panics
    /// When the client failed or wrote something else.
    #[must_use]
    pub fn json(self) -> Value {
        let answer = self.ok();
        assert_eq!(answer.stdout.matches('\n').count(), 1, "one line: {}", answer.stdout);
        serde_json::from_str(&answer.stdout).unwrap()
    }

    /// The JSON objects on its stdout, one a line.
    ///
    /// # Panics
    /// When a line is something else.
    #[must_use]
    pub fn lines(&self) -> Vec<Value> {
        self.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Whether it failed with this code and these words on stderr, and said nothing on stdout.
    ///
    /// # Panics
    /// When it did not.
    pub fn failed(&self, exit: Exit, words: &str) {
        let Self { code, stdout, stderr } = self;
        assert_eq!((*code, &**stdout), (exit.code().into(), ""), "{stderr}");
        assert!(stderr.contains(words), "{stderr:?} lacks {words:?}");
    }
}

impl Home {
    /// Starts a daemon with further arguments and waits until it serves.
    #[must_use]
    pub fn serve(&self, arguments: &[&str]) -> Started {
        let mut daemon = self.daemon();
        let started = Started::new(daemon.args(arguments));
        let _ = self.run(&["wait", "--ready"]).ok();
        started
    }

    /// The command of a client that talks to this home's daemon.
    #[must_use]
    pub fn client(&self) -> Command {
        let mut command = Command::new(tinygpt_client());
        self.settle(&mut command);
        command.arg("--socket").arg(self.socket());
        command
    }

    /// Runs the client to its end, with nothing on its standard input.
    #[must_use]
    pub fn run(&self, arguments: &[&str]) -> Answer {
        self.pipe(arguments, b"")
    }

    /// Runs the client to its end, with something on its standard input.
    #[must_use]
    pub fn pipe(&self, arguments: &[&str], input: &[u8]) -> Answer {
        finish(self.client().args(arguments), input)
    }
}

/// Runs a command to its end, or kills it when that takes too long.
///
/// # Panics
/// When it cannot be run, or hangs.
pub fn finish(command: &mut Command, input: &[u8]) -> Answer {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = spawn(command).unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let pid = Pid::from_child(&child);
    // A client that does not want its input may be gone already.
    let _ = child.stdin.take().unwrap().write_all(input);
    let (ended, hangs) = mpsc::channel::<()>();
    let watch = thread::spawn(move || {
        let hangs = hangs.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout);
        hangs && kill_process(pid, Signal::KILL).is_ok()
    });
    let output = child.wait_with_output().unwrap();
    drop(ended);
    assert!(!watch.join().unwrap(), "hangs: {command:?}: {}", words(&output.stderr));
    Answer::from(output)
}

/// Starts a command. A program that was just copied is busy for as long as another test's child,
/// forked meanwhile, holds the copy open.
fn spawn(command: &mut Command) -> std::io::Result<std::process::Child> {
    for _ in 0..100 {
        match command.spawn() {
            Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => {
                thread::sleep(std::time::Duration::from_millis(20));
            }
            spawned => return spawned,
        }
    }
    command.spawn()
}

impl From<Output> for Answer {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: words(&output.stdout),
            stderr: words(&output.stderr),
        }
    }
}

fn words(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Daemon and client in one folder of a home, as installed: clients find the daemon beside them.
/// Whatever daemon they have started is killed when this is dropped.
#[derive(Debug)]
pub struct Installed<'a> {
    home: &'a Home,
}

impl<'a> Installed<'a> {
    /// Installs both in the home.
    #[must_use]
    pub fn in_home(home: &'a Home) -> Self {
        fs::create_dir(home.path("bin")).unwrap();
        fs::copy(tinygptd(), home.path("bin/tinygptd")).unwrap();
        fs::copy(tinygpt_client(), home.path("bin/tinygpt-client")).unwrap();
        Self { home }
    }

    /// The command of a client on the default socket.
    #[must_use]
    pub fn client(&self) -> Command {
        let mut command = Command::new(self.home.path("bin/tinygpt-client"));
        self.home.settle(&mut command);
        command
    }

    /// Runs the client to its end.
    #[must_use]
    pub fn run(&self, arguments: &[&str]) -> Answer {
        finish(self.client().args(arguments), b"")
    }

    /// The default socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.home.path("tinygpt/tinygptd.sock")
    }

    /// The process id of the daemon on a socket, from the lock beside it.
    #[must_use]
    pub fn daemon_on(socket: &std::path::Path) -> Option<i32> {
        let lock = fs::read_to_string(format!("{}.lock", socket.display())).ok()?;
        lock.lines().next()?.parse().ok()
    }
}

impl Drop for Installed<'_> {
    fn drop(&mut self) {
        for socket in [self.socket(), self.home.socket()] {
            if let Some(pid) = Self::daemon_on(&socket).and_then(Pid::from_raw) {
                // It may have ended by itself.
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}
