//! Why a model could not be pulled: one sentence each, and an exit status.

use std::io;
use std::path::PathBuf;

use indicatif::HumanBytes;
use tinygpt_client::exit::Exit;

use crate::failure::Failure;

/// Why a model could not be pulled.
#[derive(Debug, thiserror::Error)]
pub(super) enum PullError {
    #[error("{0:?} is not the name of a repository: those are OWNER/NAME, or OWNER/NAME:FILE")]
    Name(String),
    #[error("{0:?} is not the name of a revision")]
    Revision(String),
    #[error(
        "{repository} is gated, private or not there (HTTP {status}): accept its licence at {page} \
         and set HF_TOKEN to a token that may read it"
    )]
    Denied { repository: String, status: u16, page: String },
    #[error("{endpoint} has no {what} (HTTP 404)")]
    Absent { endpoint: String, what: String },
    #[error("cannot reach {endpoint}: {reason}")]
    Unreachable { endpoint: String, reason: String },
    #[error("the connection broke after {} of {} of {file}: {reason}", HumanBytes(*got), HumanBytes(*size))]
    Broken { file: String, got: u64, size: u64, reason: String },
    #[error("{endpoint} answers HTTP {status} for {what}")]
    Status { endpoint: String, status: u16, what: String },
    #[error("{endpoint} lists {repository} in a way that makes no sense: {reason}")]
    Listing { endpoint: String, repository: String, reason: String },
    #[error("{0} has neither safetensors nor GGUF files")]
    NoModel(String),
    #[error("{repository} has no {file}, without which the daemon cannot load it")]
    Lacks { repository: String, file: String },
    #[error("no GGUF file of {repository} is {wanted:?}; there are:{}", lines(there))]
    NoMatch { repository: String, wanted: String, there: Vec<String> },
    #[error("{} GGUF files of {repository} come into question; name one, such as {repository}:{}:{}",
        choices.len(), choices[0], lines(choices))]
    Ambiguous { repository: String, choices: Vec<String> },
    #[error("{file} is one of several parts, which the daemon does not load")]
    Split { file: String },
    #[error("{file} has {} bytes, not {} as listed", .found, .expected)]
    Size { file: String, expected: u64, found: u64 },
    #[error("{file} has the digest {found}, not {expected} as listed: it was removed")]
    Digest { file: String, expected: String, found: String },
    #[error("{} are needed in {}, which has {} left", HumanBytes(*needed), folder.display(), HumanBytes(*free))]
    Room { folder: PathBuf, needed: u64, free: u64 },
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
}

impl PullError {
    /// Whether asking again, later or for the rest, may help.
    pub(super) fn passes(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Broken { .. } => true,
            Self::Status { status, .. } => *status == 429 || *status >= 500,
            _ => false,
        }
    }

    fn exit(&self) -> Exit {
        match self {
            Self::Name(_) | Self::Revision(_) | Self::Ambiguous { .. } => Exit::Usage,
            Self::Denied { .. } => Exit::Denied,
            Self::Absent { .. } | Self::NoModel(_) | Self::NoMatch { .. } => Exit::NotFound,
            Self::Unreachable { .. }
            | Self::Broken { .. }
            | Self::Status { .. }
            | Self::Listing { .. } => Exit::Unavailable,
            Self::Lacks { .. } | Self::Split { .. } => Exit::Refused,
            Self::Size { .. } | Self::Digest { .. } => Exit::DataLoss,
            Self::Room { .. } => Exit::Exhausted,
            Self::File { source, .. } if is_full(source) => Exit::Exhausted,
            Self::File { .. } => Exit::Failed,
        }
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn lines(names: &[String]) -> String {
    names.iter().map(|name| format!("\n  {name}")).collect()
}

impl From<PullError> for Failure {
    fn from(error: PullError) -> Self {
        Self::Pull { exit: error.exit(), words: error.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_is_full_has_the_code_of_what_is_full() {
        let full = io::Error::from(io::ErrorKind::StorageFull);
        let other = io::Error::from(io::ErrorKind::PermissionDenied);
        let error = |source| PullError::File { path: "blobs/x".into(), source };
        assert_eq!(error(full).exit(), Exit::Exhausted);
        assert_eq!(error(other).exit(), Exit::Failed);
    }
}
