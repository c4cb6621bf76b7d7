//! Why a command failed, in words for a person and as an exit status for a script.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tinygpt_client::connect::ConnectError;
use tinygpt_client::exit::Exit;
use tinygpt_client::start::StartError;
use tinygpt_proto::socket::SocketPathError;
use tonic::{Code, Status};
use tonic_types::StatusExt;

/// How a command ends: with a status of its own, or with a failure that has one.
pub(crate) type Outcome = Result<Exit, Failure>;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The daemon answered with an error, or the connection broke.
    #[error("{}", describe(.0))]
    Daemon(Box<Status>),
    /// No daemon answers.
    #[error("{error}{}{advice}", if advice.is_empty() { "" } else { "\n  " })]
    Connect { error: ConnectError, advice: String },
    /// No daemon could be started.
    #[error("{0}")]
    Start(#[from] StartError),
    /// The socket's path cannot be used.
    #[error("{0}")]
    Socket(#[from] SocketPathError),
    /// The daemon is there and does not serve.
    #[error("the daemon does not serve after {:.1} s: {state}", waited.as_secs_f64())]
    NotReady { waited: Duration, state: String },
    /// The daemon did not keep to the deadline it was given.
    #[error("no complete answer after {:.1} s", .0.as_secs_f64())]
    Overdue(Duration),
    /// The answer ended in the middle.
    #[error("the daemon ended its answer before it was done")]
    CutShort,
    /// What was asked makes no sense.
    #[error("{0}")]
    Usage(String),
    /// A model could not be pulled.
    #[error("{words}")]
    Pull { exit: Exit, words: String },
    /// An agent of a bench failed.
    #[error("an agent failed: {words}")]
    Agent { exit: Exit, words: String },
    /// Input cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Input { path: PathBuf, source: io::Error },
    /// Output cannot be written.
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
    /// Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}

impl From<Status> for Failure {
    /// tonic, at either end, calls a deadline that passed before the first message CANCELLED.
    fn from(status: Status) -> Self {
        let late = status.code() == Code::Cancelled && status.message() == "Timeout expired";
        let status = match late {
            true => Status::deadline_exceeded("the time given was not enough"),
            false => status,
        };
        Self::Daemon(Box::new(status))
    }
}

impl Failure {
    /// The exit status.
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Daemon(status) if lost(status) => Exit::Unavailable,
            Self::Daemon(status) => Exit::of(status.code()),
            Self::Socket(_) | Self::Usage(_) => Exit::Usage,
            Self::Connect { error: ConnectError::NotText(_), .. } => Exit::Usage,
            Self::Connect { .. } | Self::Start(_) => Exit::NoDaemon,
            Self::NotReady { .. } | Self::Overdue(_) => Exit::Deadline,
            Self::CutShort => Exit::Unavailable,
            Self::Pull { exit, .. } | Self::Agent { exit, .. } => *exit,
            Self::Input { .. } => Exit::Usage,
            // Whoever reads our output has seen enough.
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => Exit::Done,
            Self::Output(_) => Exit::Failed,
            Self::Interrupted => Exit::Interrupted,
        }
    }

    /// Whether there is nothing to say about it.
    pub(crate) fn is_silent(&self) -> bool {
        self.exit() == Exit::Done
    }
}

/// The daemon's words, its stable reason, and when to try again.
fn describe(status: &Status) -> String {
    if lost(status) {
        return format!("the connection to the daemon broke: {}", cause(status));
    }
    let mut words = match status.message() {
        "" => status.code().to_string(),
        message => message.to_owned(),
    };
    if let Some(reason) = reason(status) {
        words += &format!(" [{reason}]");
    }
    if let Some(delay) = retry_delay(status) {
        words += &format!("; try again in {:.1} s", delay.as_secs_f64());
    }
    words
}

/// The stable reason in the error's details.
pub(crate) fn reason(status: &Status) -> Option<String> {
    status.get_details_error_info().map(|info| info.reason)
}

/// After what time the daemon wants to be asked again.
pub(crate) fn retry_delay(status: &Status) -> Option<Duration> {
    status.get_details_retry_info().and_then(|info| info.retry_delay)
}

/// A status code in the protocol's spelling: `INVALID_ARGUMENT`.
pub(crate) fn code_name(code: Code) -> String {
    let mut name = String::new();
    for letter in format!("{code:?}").chars() {
        if letter.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}

/// Whether the error was made on this side because the connection broke: then it has a cause, and
/// the daemon sent no status at all.
fn lost(status: &Status) -> bool {
    let code = matches!(status.code(), Code::Unknown | Code::Unavailable | Code::Internal);
    code && std::error::Error::source(status).is_some()
}

fn cause(status: &Status) -> String {
    let mut cause: &dyn std::error::Error = status;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use tonic_types::ErrorDetails;

    use super::*;

    #[test]
    fn the_daemons_details_are_told() {
        let mut details = ErrorDetails::new();
        details.set_error_info("QUEUE_FULL", "tinygpt", HashMap::new());
        details.set_retry_info(Some(Duration::from_millis(500)));
        let status = Status::with_error_details(Code::ResourceExhausted, "queue is full", details);
        let failure = Failure::from(status);
        assert_eq!(failure.to_string(), "queue is full [QUEUE_FULL]; try again in 0.5 s");
        assert_eq!(failure.exit(), Exit::Exhausted);
    }

    #[test]
    fn a_code_is_spelled_as_in_the_protocol() {
        assert_eq!(code_name(Code::ResourceExhausted), "RESOURCE_EXHAUSTED");
        assert_eq!(code_name(Code::Ok), "OK");
    }

    #[test]
    fn a_closed_pipe_is_no_failure() {
        let failure = Failure::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert!(failure.is_silent());
        assert!(!Failure::from(io::Error::from(io::ErrorKind::StorageFull)).is_silent());
    }
}
