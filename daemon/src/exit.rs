//! How the daemon ends, in numbers that supervisors and scripts can rely on.
//!
//! The values are those of `sysexits.h` where it has one.
//! `launchd/systemd/tinygptd.service` and `docs/operations.md` repeat them; tests hold the three together.

use std::process::ExitCode;

use tinygpt_proto::socket::SocketPathError;

use crate::install::InstallError;
use crate::store::OpenError;
use crate::sys::lock::LockError;
use crate::sys::socket::SocketError;

/// Why the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Asked to, or idle for as long as was asked.
    Done = 0,
    /// Wrong arguments, environment or configuration file.
    Usage = 64,
    /// A model cannot be loaded.
    Model = 69,
    /// The engine panicked or another invariant broke; trying again may help.
    Internal = 70,
    /// The socket, the cache directory or the service cannot be created.
    Create = 73,
    /// What a command prints could not be written.
    Output = 74,
    /// Another daemon holds the socket or the cache directory.
    Busy = 75,
}

/// Standard output could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to standard output: {0}")]
pub struct OutputError(pub std::io::Error);

/// What only the user can mend: arguments, environment or configuration file.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct Usage(#[from] pub anyhow::Error);

impl Exit {
    /// Every way to end, in the order of the codes.
    pub const ALL: [Self; 7] = [
        Self::Done,
        Self::Usage,
        Self::Model,
        Self::Internal,
        Self::Create,
        Self::Output,
        Self::Busy,
    ];

    /// What an error that ends the process stands for. One that nobody has thought of may be gone
    /// at the next try.
    #[must_use]
    pub fn of(error: &anyhow::Error) -> Self {
        if error.is::<Usage>() {
            Self::Usage
        } else if is_held(error) {
            Self::Busy
        } else if error.is::<SocketError>()
            || error.is::<SocketPathError>()
            || error.is::<OpenError>()
            || error.is::<InstallError>()
        {
            Self::Create
        } else if error.is::<OutputError>() {
            Self::Output
        } else {
            Self::Internal
        }
    }

    /// The process's exit code.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// What `--help` and `docs/operations.md` say of it.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Done => "asked to end, or idle for as long as --idle-exit says",
            Self::Usage => "wrong arguments, environment or configuration file",
            Self::Model => "a model cannot be loaded at start",
            Self::Internal => "the engine panicked or another invariant broke",
            Self::Create => "the socket, the cache directory or the service cannot be created",
            Self::Output => "what a command prints could not be written",
            Self::Busy => "another daemon holds the socket or the cache directory",
        }
    }

    /// Whether the same command, started again, cannot fare better until somebody changes something.
    #[must_use]
    pub const fn is_permanent(self) -> bool {
        matches!(self, Self::Usage | Self::Model | Self::Create)
    }
}

/// Whether another daemon has what this one wants.
fn is_held(error: &anyhow::Error) -> bool {
    let socket = matches!(
        error.downcast_ref(),
        Some(SocketError::Lock(LockError::Held { .. }) | SocketError::InUse { .. })
    );
    socket || matches!(error.downcast_ref(), Some(OpenError::Lock(LockError::Held { .. })))
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_nobody_has_thought_of_may_be_gone_at_the_next_try() {
        let refused = std::io::Error::from(std::io::ErrorKind::WouldBlock);
        let error = anyhow::Error::new(refused).context("cannot start the runtime");
        assert!(!Exit::of(&error).is_permanent());
        let mistake = anyhow::Error::new(Usage(error)).context("cannot describe the service");
        assert_eq!(Exit::of(&mistake), Exit::Usage);
        assert_eq!(format!("{mistake:#}").matches("runtime").count(), 1);
    }

    #[test]
    fn systemd_does_not_retry_what_cannot_be_mended_by_retrying() {
        let unit = include_str!("../../launchd/systemd/tinygptd.service");
        let line = unit.lines().find_map(|l| l.strip_prefix("RestartPreventExitStatus=")).unwrap();
        let permanent = Exit::ALL.into_iter().filter(|exit| exit.is_permanent());
        let codes: Vec<_> = permanent.map(|exit| exit.code().to_string()).collect();
        assert_eq!(line, codes.join(" "));
    }

    #[test]
    fn the_operations_page_documents_exactly_these_codes() {
        let page = include_str!("../../docs/operations.md");
        let section = page.split("## Exit codes").nth(1).unwrap().split("\n## ").next().unwrap();
        let cells = section.lines().filter_map(|line| line.strip_prefix("| ")?.split(' ').next());
        let documented: Vec<u8> = cells.filter_map(|cell| cell.parse().ok()).collect();
        assert_eq!(documented, Exit::ALL.map(Exit::code));
        let section = section.replace('`', "");
        for exit in Exit::ALL {
            let row = format!("| {} | {}", exit.code(), exit.meaning());
            assert!(section.contains(&row), "docs/operations.md lacks {row}");
        }
    }
}
