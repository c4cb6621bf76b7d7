//! `tinygptd install`, `uninstall` and `print-plist`: the daemon as a service of the logged-in user.
//!
//! What to do is worked out first, as a list of [`Action`]s that can be read, printed and tested without a supervisor;
//! [`apply`] then does it, one action after the other, and stops at the first that fails.
//! The supervisor owns the socket and starts the daemon at the first connection, so nothing here starts it.

mod arguments;
mod units;

use std::fmt;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use etcetera::BaseStrategy;

use crate::config::ServeArgs;

/// The launch agent's name.
const LABEL: &str = "com.tinygpt.daemon";
const SOCKET_UNIT: &str = "tinygptd.socket";
const SERVICE_UNIT: &str = "tinygptd.service";

/// Who starts services for a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Supervisor {
    /// Apple's.
    Launchd,
    /// Linux's, as `systemctl --user`.
    Systemd,
}

/// Where a user's services are described.
#[derive(Clone, Debug)]
pub struct Places {
    /// The user's home directory.
    pub home: PathBuf,
    /// The user's configuration directory: `$XDG_CONFIG_HOME`, or `.config` in the home directory.
    pub config: PathBuf,
    /// The user's id.
    pub user: u32,
}

/// What is to be installed, for whom.
#[derive(Clone, Debug)]
pub struct Installation {
    /// What the supervisor runs: absolute path of the daemon, then its arguments.
    pub command: Vec<String>,
    /// Absolute path of the socket the supervisor listens on.
    pub socket: PathBuf,
    /// Where that is written down.
    pub places: Places,
}

/// One step of an installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Create a directory, 0700, and those above it.
    CreateDirectory(PathBuf),
    /// Write a file, replacing it.
    Write {
        /// Where.
        path: PathBuf,
        /// What.
        text: String,
    },
    /// Remove a file; one that is not there is fine.
    Remove(PathBuf),
    /// Run a command that must succeed.
    Run(Vec<String>),
    /// Run a command that fails when there is nothing to do, which is fine.
    Try(Vec<String>),
}

/// An action that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action}: {error}{}", advice(action))]
pub struct InstallError {
    /// What was to be done.
    pub action: Action,
    /// What the system or the command said.
    pub error: io::Error,
}

/// What to do about a supervisor that does not obey: every file is in its place by then.
fn advice(action: &Action) -> &'static str {
    match action {
        Action::Run(command) if command[0] == "systemctl" => ENABLE_LATER,
        _ => "",
    }
}

const ENABLE_LATER: &str = "
The units are written. Without a session of its own, as under su, sudo, ssh without PAM or in a
container, a user has no systemd to tell. Log in as the user, or give it one that stays with
    loginctl enable-linger USER
and then run
    systemctl --user daemon-reload && systemctl --user enable --now tinygptd.socket";

/// Why a service cannot be described.
#[derive(Debug, thiserror::Error)]
pub enum DescribeError {
    /// A line break would begin another line of the service's file, and XML has no place for the
    /// others.
    #[error("{word:?} has a control character, which no service file can hold")]
    ControlCharacter {
        /// The argument or path.
        word: String,
    },
    /// Another directory is meant by it in every place.
    #[error("the home directory {home:?} is not an absolute path: set HOME to one")]
    RelativeHome {
        /// What `HOME` says.
        home: PathBuf,
    },
    /// The user's directories, the program's path or the current directory cannot be found.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Supervisor {
    /// The one of the system this runs on.
    #[must_use]
    pub fn native() -> Self {
        if std::env::consts::OS == "macos" { Self::Launchd } else { Self::Systemd }
    }
}

impl Places {
    /// Those of the user who runs this program.
    ///
    /// # Errors
    /// When the user has no home directory, or a relative one.
    pub fn of_this_user() -> Result<Self, DescribeError> {
        let base = etcetera::base_strategy::Xdg::new().map_err(io::Error::other)?;
        if !base.home_dir().is_absolute() {
            return Err(DescribeError::RelativeHome { home: base.home_dir().to_owned() });
        }
        Ok(Self {
            home: base.home_dir().to_owned(),
            config: base.config_dir(),
            user: rustix::process::getuid().as_raw(),
        })
    }

    /// The actions that remove the daemon, however it was installed; cache, models and logs stay.
    #[must_use]
    pub fn uninstall(&self, supervisor: Supervisor) -> Vec<Action> {
        match supervisor {
            Supervisor::Launchd => vec![self.bootout(), Action::Remove(self.agent())],
            Supervisor::Systemd => vec![
                Action::Try(systemctl(&["disable", "--now", SOCKET_UNIT, SERVICE_UNIT])),
                Action::Remove(self.unit(SOCKET_UNIT)),
                Action::Remove(self.unit(SERVICE_UNIT)),
                // What `disable` leaves when there is no systemd to tell.
                Action::Remove(self.unit("sockets.target.wants").join(SOCKET_UNIT)),
                Action::Try(systemctl(&["daemon-reload"])),
            ],
        }
    }

    fn bootout(&self) -> Action {
        let service = format!("{}/{LABEL}", self.domain());
        Action::Try(["launchctl", "bootout", &service].map(str::to_owned).into())
    }

    fn domain(&self) -> String {
        format!("gui/{}", self.user)
    }

    fn agent(&self) -> PathBuf {
        self.home.join("Library/LaunchAgents").join(format!("{LABEL}.plist"))
    }

    fn log(&self) -> PathBuf {
        self.home.join("Library/Logs/tinygpt/tinygptd.log")
    }

    fn unit(&self, name: &str) -> PathBuf {
        self.config.join("systemd/user").join(name)
    }
}

impl Installation {
    /// This program, for the user who runs it, started with what `args` say and listening on `socket`.
    ///
    /// # Errors
    /// When the program's own path, a home directory or the current directory cannot be found, or
    /// a word of the command cannot be written down.
    pub fn of_this_user(args: &ServeArgs, socket: &Path) -> Result<Self, DescribeError> {
        let executable = std::env::current_exe()?.to_string_lossy().into_owned();
        let installation = Self {
            command: std::iter::once(executable).chain(arguments::words(args)?).collect(),
            socket: std::path::absolute(socket)?,
            places: Places::of_this_user()?,
        };
        installation.expect_plain_words()?;
        Ok(installation)
    }

    fn expect_plain_words(&self) -> Result<(), DescribeError> {
        let paths = [&self.socket, &self.places.home].map(|path| path.display().to_string());
        let mut words = self.command.iter().chain(&paths);
        match words.find(|word| word.contains(char::is_control)) {
            Some(word) => Err(DescribeError::ControlCharacter { word: word.clone() }),
            None => Ok(()),
        }
    }

    /// What `print-plist` prints: the launch agent with everything filled in.
    #[must_use]
    pub fn plist(&self) -> String {
        units::plist(&self.command, &self.socket, &self.places.log())
    }

    /// The actions that install the daemon, or replace what was installed before.
    #[must_use]
    pub fn install(&self, supervisor: Supervisor) -> Vec<Action> {
        match supervisor {
            Supervisor::Launchd => self.install_agent(),
            Supervisor::Systemd => self.install_units(),
        }
    }

    fn install_agent(&self) -> Vec<Action> {
        let path = self.places.agent();
        let words = ["launchctl", "bootstrap", &self.places.domain(), &path.to_string_lossy()];
        let bootstrap = words.map(str::to_owned).into();
        vec![
            // launchd creates neither; the socket's must be for the user only.
            Action::CreateDirectory(parent(&self.socket)),
            Action::CreateDirectory(parent(&self.places.log())),
            Action::CreateDirectory(parent(&path)),
            Action::Write { path, text: self.plist() },
            self.places.bootout(),
            Action::Run(bootstrap),
        ]
    }

    fn install_units(&self) -> Vec<Action> {
        let (socket, service) = (self.places.unit(SOCKET_UNIT), self.places.unit(SERVICE_UNIT));
        vec![
            Action::CreateDirectory(parent(&socket)),
            Action::Write { path: socket, text: units::socket(&self.socket) },
            Action::Write { path: service, text: units::service(&self.command) },
            Action::Run(systemctl(&["daemon-reload"])),
            // A socket unit takes a new path only while its service is down.
            Action::Try(systemctl(&["stop", SERVICE_UNIT, SOCKET_UNIT])),
            Action::Run(systemctl(&["enable", "--now", SOCKET_UNIT])),
        ]
    }
}

fn systemctl(arguments: &[&str]) -> Vec<String> {
    ["systemctl", "--user"].iter().chain(arguments).map(|&word| word.to_owned()).collect()
}

fn parent(path: &Path) -> PathBuf {
    path.parent().unwrap_or(path).to_owned()
}

/// Does the actions in order, telling `report` of each before it starts; `run` runs a command and fails unless it succeeded.
pub fn apply(
    actions: Vec<Action>,
    run: impl Fn(&[String]) -> io::Result<()>,
    mut report: impl FnMut(&Action),
) -> Result<(), InstallError> {
    for action in actions {
        report(&action);
        action.perform(&run).map_err(|error| InstallError { action, error })?;
    }
    Ok(())
}

/// Runs a command as [`apply`] wants it: quietly, with its error text in the error.
///
/// # Errors
/// The command cannot be started or does not exit with 0.
pub fn run(command: &[String]) -> io::Result<()> {
    let [program, arguments @ ..] = command else { return Ok(()) };
    let output = std::process::Command::new(program).args(arguments).output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("{}: {}", output.status, said.trim())))
}

impl Action {
    fn perform(&self, run: impl Fn(&[String]) -> io::Result<()>) -> io::Result<()> {
        match self {
            Self::CreateDirectory(path) => {
                DirBuilder::new().recursive(true).mode(0o700).create(path)
            }
            Self::Write { path, text } => fs::write(path, text),
            Self::Remove(path) => match fs::remove_file(path) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
                removed => removed,
            },
            Self::Run(command) => run(command),
            Self::Try(command) => {
                let _ = run(command);
                Ok(())
            }
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CreateDirectory(path) => write!(f, "create {}", path.display()),
            Self::Write { path, .. } => write!(f, "write {}", path.display()),
            Self::Remove(path) => write!(f, "remove {}", path.display()),
            Self::Run(command) | Self::Try(command) => write!(f, "run {}", command.join(" ")),
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::cell::RefCell;

    use super::*;

    fn installation(home: &Path) -> Installation {
        let words = ["/opt/tinygpt/bin/tinygptd", "--model", "/models/a b.gguf"];
        Installation {
            command: words.map(str::to_owned).into(),
            socket: home.join("run/tinygptd.sock"),
            places: Places { home: home.into(), config: home.join(".config"), user: 501 },
        }
    }

    /// Applies in a fake home and returns the commands that would have run.
    fn applied(actions: Vec<Action>) -> Vec<String> {
        let commands = RefCell::new(Vec::new());
        let record = |command: &[String]| {
            commands.borrow_mut().push(command.join(" "));
            Ok(())
        };
        apply(actions, record, |_| {}).unwrap();
        commands.into_inner()
    }

    #[test]
    fn systemd_gets_both_units_and_is_told_to_listen() {
        let home = tempfile::tempdir().unwrap();
        let commands = applied(installation(home.path()).install(Supervisor::Systemd));
        let units = home.path().join(".config/systemd/user");
        let service = fs::read_to_string(units.join("tinygptd.service")).unwrap();
        assert!(service.contains("/opt/tinygpt/bin/tinygptd"));
        let socket = fs::read_to_string(units.join("tinygptd.socket")).unwrap();
        assert!(socket.contains(&format!("ListenStream={}/run/", home.path().display())));
        let expected = [
            "systemctl --user daemon-reload",
            "systemctl --user stop tinygptd.service tinygptd.socket",
            "systemctl --user enable --now tinygptd.socket",
        ];
        assert_eq!(commands, expected);
    }

    #[test]
    fn launchd_gets_the_agent_the_directories_and_the_bootstrap() {
        let home = tempfile::tempdir().unwrap();
        let commands = applied(installation(home.path()).install(Supervisor::Launchd));
        let agent = home.path().join("Library/LaunchAgents/com.tinygpt.daemon.plist");
        assert!(fs::read_to_string(&agent).unwrap().contains("/models/a b.gguf"));
        assert!(home.path().join("Library/Logs/tinygpt").is_dir());
        assert!(home.path().join("run").is_dir(), "launchd does not create the socket's directory");
        let bootstrap = format!("launchctl bootstrap gui/501 {}", agent.display());
        assert_eq!(commands, ["launchctl bootout gui/501/com.tinygpt.daemon", &bootstrap]);
    }

    #[test]
    fn uninstalling_leaves_no_file_and_can_be_done_twice() {
        for supervisor in [Supervisor::Launchd, Supervisor::Systemd] {
            let home = tempfile::tempdir().unwrap();
            let installation = installation(home.path());
            applied(installation.install(supervisor));
            let written = installation.install(supervisor).into_iter().filter_map(|a| match a {
                Action::Write { path, .. } => Some(path),
                _ => None,
            });
            for _ in 0..2 {
                applied(installation.places.uninstall(supervisor));
            }
            assert!(written.into_iter().all(|path| !path.exists()));
        }
    }

    #[test]
    fn the_first_failure_stops_and_names_its_action() {
        let home = tempfile::tempdir().unwrap();
        let actions = installation(home.path()).install(Supervisor::Systemd);
        let refuse = |_: &[String]| Err(io::Error::other("Failed to connect to bus"));
        let error = apply(actions, refuse, |_| {}).unwrap_err();
        let words = error.to_string();
        let failed = "cannot run systemctl --user daemon-reload: Failed to connect to bus\n";
        assert!(words.starts_with(failed), "{words}");
        assert!(words.contains("enable-linger") && words.contains("enable --now"), "{words}");
    }

    #[test]
    fn a_word_that_would_begin_another_line_is_refused_and_named() {
        let home = tempfile::tempdir().unwrap();
        let mut installation = installation(home.path());
        assert!(installation.expect_plain_words().is_ok());
        installation.command.push("--model=/a\nExecStartPost=/b".to_owned());
        let refused = installation.expect_plain_words().unwrap_err().to_string();
        assert!(refused.contains(r"/a\nExecStartPost=/b"), "{refused}");
    }

    #[test]
    fn a_failing_command_is_an_error_with_its_own_words() {
        let command = ["sh", "-c", "echo no bus >&2; exit 3"].map(str::to_owned);
        assert_eq!(run(&command).unwrap_err().to_string(), "exit status: 3: no bus");
        assert!(run(&["true".to_owned()]).is_ok());
    }
}
