//! What the exit status says: one table, for scripts, for `--help` and for `docs/client.md`.

use tonic::Code;

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Exit {
    /// It did what was asked.
    Done = 0,
    /// Something failed that has no code of its own.
    Failed = 1,
    /// The command line or the input makes no sense.
    Usage = 2,
    /// No daemon answers, and none was or could be started.
    NoDaemon = 3,
    /// No such model, adapter, repository or cache entry.
    NotFound = 4,
    /// The daemon refused the request as it is, or this client cannot do it.
    Refused = 5,
    /// The daemon is full, or the disk.
    Exhausted = 6,
    /// The time given was not enough.
    Deadline = 7,
    /// The daemon cancelled the request.
    Cancelled = 8,
    /// The daemon, or a hub, is there and cannot serve now, or went away in the middle.
    Unavailable = 9,
    /// Something on disk is corrupt, or what came from a hub.
    DataLoss = 10,
    /// The daemon or the repository belongs to somebody else.
    Denied = 11,
    /// Some lines of a batch failed.
    Partial = 12,
    /// Ctrl-C.
    Interrupted = 130,
}

impl Exit {
    /// All of them, in the order of their codes.
    pub const ALL: [Self; 14] = [
        Self::Done,
        Self::Failed,
        Self::Usage,
        Self::NoDaemon,
        Self::NotFound,
        Self::Refused,
        Self::Exhausted,
        Self::Deadline,
        Self::Cancelled,
        Self::Unavailable,
        Self::DataLoss,
        Self::Denied,
        Self::Partial,
        Self::Interrupted,
    ];

    /// The process's exit status.
    #[must_use]
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The line of the table that explains it.
    #[must_use]
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed in a way that has no code of its own",
            Self::Usage => "the command line or the input makes no sense",
            Self::NoDaemon => "no daemon answers, and none was or could be started",
            Self::NotFound => "no such model, adapter, repository or cache entry",
            Self::Refused => "the request is refused: invalid, or not supported",
            Self::Exhausted => {
                "something is full: the daemon's queue, a budget, the disk under a download"
            }
            Self::Deadline => "the time given was not enough",
            Self::Cancelled => "the daemon cancelled the request",
            Self::Unavailable => "the daemon or the hub cannot serve now, or went away",
            Self::DataLoss => "something in the cache or in a download is corrupt",
            Self::Denied => {
                "not allowed: another user's daemon, or a repository that wants a token"
            }
            Self::Partial => "some lines of a batch failed",
            Self::Interrupted => "interrupted by Ctrl-C",
        }
    }

    /// What a gRPC status code comes down to.
    #[must_use]
    pub fn of(code: Code) -> Self {
        match code {
            Code::Ok => Self::Done,
            Code::NotFound => Self::NotFound,
            Code::InvalidArgument
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::AlreadyExists
            | Code::Unimplemented => Self::Refused,
            Code::ResourceExhausted => Self::Exhausted,
            Code::DeadlineExceeded => Self::Deadline,
            Code::Cancelled | Code::Aborted => Self::Cancelled,
            Code::Unavailable => Self::Unavailable,
            Code::DataLoss => Self::DataLoss,
            Code::PermissionDenied | Code::Unauthenticated => Self::Denied,
            Code::Internal | Code::Unknown => Self::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct_and_in_order() {
        assert!(Exit::ALL.is_sorted_by(|a, b| a.code() < b.code()));
    }

    #[test]
    fn the_documentation_has_the_whole_table() {
        let page = include_str!("../../docs/client.md");
        for exit in Exit::ALL {
            let row = format!("| {} | {} |", exit.code(), exit.meaning());
            assert!(page.contains(&row), "docs/client.md lacks: {row}");
        }
    }
}
