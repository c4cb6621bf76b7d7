//! `doctor`: everything that could be in the way, looked at in the order in which it would be.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Stdio;

use anstyle::{AnsiColor, Style};
use rustix::process::geteuid;
use serde::Serialize;
use serde_json::json;
use tinygpt_client::connect::Connection;
use tinygpt_client::exit::Exit;
use tinygpt_client::ready::{self, Readiness};
use tinygpt_client::start::Launch;
use tinygpt_proto::Label;
use tinygpt_proto::socket::{MAX_PATH_BYTES, Origin, SocketPath};
use tinygpt_proto::v1::{ModelState, StatusRequest, StatusResponse};
use tokio::process::Command;

use crate::failure::{Failure, Outcome};
use crate::render;
use crate::session::Session;
use crate::version;

/// Free space below which a cache is of little use, in bytes.
const FREE: u64 = 1 << 30;

/// One thing that was looked at.
#[derive(Debug, Serialize)]
struct Check {
    name: &'static str,
    state: State,
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
enum State {
    Ok,
    Warn,
    Fail,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, state: State::Ok, found: found.into(), advice: None }
    }

    fn warn(name: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { name, state: State::Warn, found: found.into(), advice: Some(advice.into()) }
    }

    fn fail(name: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { name, state: State::Fail, found: found.into(), advice: Some(advice.into()) }
    }
}

pub(crate) async fn run(session: &Session) -> Outcome {
    let mut checks = vec![socket(&session.socket), folder(&session.socket)];
    match session.connect().await {
        Ok(connection) => checks.extend(daemon(&connection, session).await),
        Err(failure) => checks.push(unreachable(&session.socket, failure)),
    }
    checks.push(program(session).await);
    if session.json {
        render::json(&json!({ "schema": "tinygpt.doctor/1", "checks": checks }))?;
    } else {
        for check in &checks {
            show(check)?;
        }
    }
    let sick = checks.iter().any(|check| check.state == State::Fail);
    Ok(if sick { Exit::Failed } else { Exit::Done })
}

fn socket(socket: &SocketPath) -> Check {
    let bytes = socket.path().as_os_str().as_bytes().len();
    let origin = match socket.origin() {
        Origin::Explicit => "given by --socket",
        Origin::Environment => "given by TINYGPT_SOCKET",
        Origin::Default => "the default",
    };
    let path = socket.path().display();
    Check::ok("socket", format!("{path} ({origin}; {bytes} of {MAX_PATH_BYTES} bytes)"))
}

/// Whoever may write to the folder may put another socket in its place.
fn folder(socket: &SocketPath) -> Check {
    let folder = match socket.path().parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let name = folder.display();
    let found = match fs::metadata(folder) {
        Ok(found) => found,
        Err(error) if socket.origin() == Origin::Default => {
            return Check::ok("folder", format!("{name}: {error}; a daemon will make it"));
        }
        Err(error) => {
            return Check::fail(
                "folder",
                format!("{name}: {error}"),
                format!("mkdir -m 700 {name}"),
            );
        }
    };
    let (mode, owner) = (found.permissions().mode() & 0o7777, found.uid());
    let words = format!("{name}: mode {mode:04o}, owner {owner}");
    let sticky = mode & 0o1000 != 0;
    match () {
        () if ![0, geteuid().as_raw()].contains(&owner) => {
            Check::fail("folder", words, "choose a folder of your own with --socket")
        }
        () if mode & 0o022 != 0 && !sticky => {
            Check::fail("folder", words, format!("chmod go-w {name}"))
        }
        () => Check::ok("folder", words),
    }
}

/// On the default socket `sample` and `warm` help themselves.
fn unreachable(socket: &SocketPath, failure: Failure) -> Check {
    let (found, advice) = match failure {
        Failure::Connect { error, advice } if error.is_no_daemon() => (error.to_string(), advice),
        failure => (failure.to_string(), "look into the daemon's log".to_owned()),
    };
    match socket.origin() {
        Origin::Default => Check::warn("daemon", found, advice),
        Origin::Explicit | Origin::Environment => Check::fail("daemon", found, advice),
    }
}

/// Both questions at once: a daemon that is stuck answers neither, and is waited for only once.
async fn daemon(connection: &Connection, session: &Session) -> Vec<Check> {
    let health = async { Ok::<_, Failure>(ready::check(connection).await) };
    let status = async {
        let request = session.request(StatusRequest {})?;
        Ok::<_, Failure>(connection.admin().status(request).await?.into_inner())
    };
    let (health, status) = tokio::join!(session.at_once(health), session.at_once(status));
    let mut checks = vec![match health {
        Ok(Readiness::Serving) => Check::ok("health", "SERVING"),
        Ok(Readiness::Not(state)) => Check::fail("health", state, "look into the daemon's log"),
        Err(failure) => Check::fail("health", failure.to_string(), "look into the daemon's log"),
    }];
    match status {
        Ok(status) => checks.extend(inside(&status)),
        Err(failure) => checks.push(Check::fail("daemon", failure.to_string(), "restart it")),
    }
    checks
}

/// What the daemon says about itself.
fn inside(status: &StatusResponse) -> Vec<Check> {
    let mut checks = vec![
        Check::ok("daemon", format!("process {}, {}", status.pid, status.state().label())),
        match version::difference(&status.version) {
            None => Check::ok("version", format!("{}, as this client", status.version)),
            Some(words) => Check::warn("version", status.version.clone(), words),
        },
    ];
    checks.extend(status.models.iter().map(|model| match model.state() {
        ModelState::Failed => Check::fail(
            "model",
            format!("{}: {}", model.name, model.error),
            "give the daemon another file",
        ),
        state => Check::ok("model", format!("{}: {}", model.name, state.label())),
    }));
    checks.push(cache(status));
    checks.extend(
        status.warnings.iter().map(|words| Check::warn("warning", words, "see docs/operations.md")),
    );
    checks
}

fn cache(status: &StatusResponse) -> Check {
    let folder = &status.cache_dir;
    if folder.is_empty() {
        return Check::ok("cache", "nothing is written to disk");
    }
    let used = render::budget(status.disk);
    match rustix::fs::statvfs(folder.as_str()) {
        Err(error) => {
            Check::fail("cache", format!("{folder}: {error}"), "look into the daemon's log")
        }
        Ok(disk) => {
            let free = disk.f_bavail * disk.f_frsize;
            let words = format!("{folder}: {used}, {} free on the disk", render::bytes(free));
            match free {
                FREE.. => Check::ok("cache", words),
                _ => Check::warn(
                    "cache",
                    words,
                    "free some space, or lower the budget: `tinygptd --cache-disk`",
                ),
            }
        }
    }
}

/// What would be started, were it needed.
async fn program(session: &Session) -> Check {
    match Launch::find(&session.socket) {
        Err(error) => Check::warn(
            "program",
            error.to_string(),
            "put tinygptd beside tinygpt-client or on PATH",
        ),
        Ok(launch) => {
            let path = launch.program.display();
            match session.at_once(version(&launch.program)).await {
                Ok(version) => Check::ok(
                    "program",
                    format!("{path} ({version}), log {}", launch.log.display()),
                ),
                Err(failure) => {
                    Check::fail("program", format!("{path}: {failure}"), "install it again")
                }
            }
        }
    }
}

/// What the program says that it is.
async fn version(program: &Path) -> Result<String, Failure> {
    let mut command = Command::new(program);
    let output = command.arg("--version").stdin(Stdio::null()).kill_on_drop(true).output().await;
    let output = output.map_err(|source| Failure::Input { path: program.to_owned(), source })?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn show(check: &Check) -> Result<(), Failure> {
    let (word, color) = match check.state {
        State::Ok => ("ok  ", AnsiColor::Green),
        State::Warn => ("warn", AnsiColor::Yellow),
        State::Fail => ("FAIL", AnsiColor::Red),
    };
    let style = Style::new().fg_color(Some(color.into()));
    let Check { name, found, advice, .. } = check;
    render::styled(&format!("{style}{word}{style:#}  {name:8} {found}"))?;
    match advice {
        Some(advice) => render::styled(&format!("               -> {advice}")),
        None => Ok(()),
    }
}
