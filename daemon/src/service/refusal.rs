//! Everything the service says no to, and how a client can tell.
//!
//! Each refusal has a gRPC code for generic clients, a message for people with the numbers in it,
//! and for programs a stable reason and the same numbers, sent as `google.rpc.ErrorInfo`. Those
//! that pass by themselves also carry a `google.rpc.RetryInfo`.
//! Reasons and the keys of their numbers are part of the protocol: `docs/protocol.md` lists them,
//! and a test compares.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use crate::engine::event::Failure;
use crate::engine::handle::Refused;
use crate::text::TokenizerError;

/// `ErrorInfo.domain` of every refusal.
const DOMAIN: &str = "tinygpt";

/// When to try again what may soon work.
const SOON: Duration = Duration::from_secs(1);

/// Most bytes of a message, and of each of its parts for programs.
const LONGEST: usize = 1024;

/// Why a request was not served.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// Somebody else's process.
    #[error("this daemon serves uid {owner}, the peer is {peer}")]
    Peer {
        /// Whom the daemon serves.
        owner: u32,
        /// Who asked, in words.
        peer: String,
    },
    /// No model has that name.
    #[error("there is no model {name:?}; there are {known}")]
    UnknownModel {
        /// The name.
        name: String,
        /// All names.
        known: String,
    },
    /// No adapter of the model has that name.
    #[error("model {model} has no adapter {name:?}; there are {known}")]
    UnknownAdapter {
        /// The name.
        name: String,
        /// The model.
        model: String,
        /// All names.
        known: String,
    },
    /// The model's file cannot be served.
    #[error("model {name} cannot serve: {why}")]
    ModelFailed {
        /// Its name.
        name: String,
        /// What is wrong.
        why: String,
    },
    /// The model is not there yet.
    #[error("model {name} is still loading")]
    Loading {
        /// Its name.
        name: String,
    },
    /// The model is not there yet, because others take the room.
    #[error(
        "model {name} takes {bytes} bytes, others that are in use or were just loaded take \
         {taken}, and all may take {limit}"
    )]
    NoRoom {
        /// Its name.
        name: String,
        /// What it takes.
        bytes: Count,
        /// What is taken.
        taken: Count,
        /// Most that may be.
        limit: Count,
    },
    /// No room would do.
    #[error("model {name} takes {bytes} bytes, all models together may take {limit}")]
    ModelTooLarge {
        /// Its name.
        name: String,
        /// What it takes.
        bytes: Count,
        /// Most that may be taken.
        limit: Count,
    },
    /// The model is to go, and its requests have not ended.
    #[error("model {name} still has requests: it will be unloaded when they have ended")]
    InUse {
        /// Its name.
        name: String,
    },
    /// The model's thread has died or ended.
    #[error("the engine of model {name} has stopped")]
    Stopped {
        /// Its name.
        name: String,
    },
    /// The model's thread is there and does nothing any more.
    #[error("the engine of model {name} has not answered for {silence:.1?}")]
    Stuck {
        /// Its name.
        name: String,
        /// How long.
        silence: Duration,
    },
    /// The engine took the request and could not do it.
    #[error("{0}")]
    Engine(Failure),
    /// The engine's queue is full.
    #[error("{waiting} requests are waiting, the queue holds {limit}")]
    QueueFull {
        /// Requests that wait.
        waiting: Count,
        /// Most that may.
        limit: Count,
    },
    /// The system has no thread to do it on.
    #[error("cannot start a thread: {why}")]
    NoThread {
        /// What the system said.
        why: String,
    },
    /// Neither text nor ids.
    #[error("the request has no prompt: set text or token_ids")]
    NoPrompt,
    /// A prompt of no tokens.
    #[error("the prompt is 0 tokens long, at least 1 is needed")]
    EmptyPrompt,
    /// More than the model can see.
    #[error("prompt is {tokens} tokens, context is {context}")]
    PromptTooLong {
        /// Its length.
        tokens: Count,
        /// Most there may be.
        context: Count,
    },
    /// A text that no tokenizer could make short enough.
    #[error("prompt is {bytes} bytes, at least {tokens} tokens, context is {context}")]
    TextTooLong {
        /// Its length.
        bytes: Count,
        /// Fewest tokens that it can be.
        tokens: Count,
        /// Most there may be.
        context: Count,
    },
    /// An id that means nothing to the model.
    #[error("token id {id} in {field} is outside the vocabulary of {vocab} ids")]
    TokenOutsideVocabulary {
        /// Where it was given.
        field: &'static str,
        /// The id.
        id: Count,
        /// The number of ids.
        vocab: Count,
    },
    /// The tokenizer cannot do it.
    #[error("cannot tokenise the text: {0}")]
    Tokenizer(#[from] TokenizerError),
    /// A number that makes no sense.
    #[error("{field} is {value}, allowed is {allowed}")]
    OutOfRange {
        /// The field.
        field: &'static str,
        /// What it holds.
        value: String,
        /// What it may hold.
        allowed: String,
    },
    /// A name that stands for nothing.
    #[error("{field} {value:?} is not known; known are {known}")]
    UnknownValue {
        /// The field.
        field: &'static str,
        /// What it holds.
        value: String,
        /// What it may hold.
        known: String,
    },
    /// Designed and not built.
    #[error("{0} is not implemented in this version")]
    NotImplemented(&'static str),
    /// A key that is no key.
    #[error("{key:?} is no prompt key: between 4 and 64 hexadecimal digits are")]
    MalformedKey {
        /// What was given.
        key: String,
    },
    /// A key of nothing.
    #[error("no cached prompt has the key {key}")]
    UnknownKey {
        /// What was given.
        key: String,
    },
    /// A prefix of several keys.
    #[error("{count} cached prompts have keys that begin with {key}")]
    AmbiguousKey {
        /// What was given.
        key: String,
        /// How many match.
        count: Count,
    },
    /// Pins hold half of a budget, or would.
    #[error(
        "pins hold {held} {what} of the {limit} that they may, and this one needs {needed} more"
    )]
    PinBudget {
        /// What there is not enough of.
        what: &'static str,
        /// How much of it is needed.
        needed: Count,
        /// How much of it pins hold.
        held: Count,
        /// How much of it pins may hold.
        limit: Count,
    },
    /// Bytes on disk are not what was written.
    #[error("{damaged} of {checked} cache files are damaged and were set aside: {names}")]
    Damaged {
        /// Files that failed.
        damaged: Count,
        /// Files read.
        checked: Count,
        /// Names of those that failed.
        names: String,
    },
    /// Files that were to go are still there.
    #[error(
        "{files} cache files could not be removed and are still on the disk; the daemon's log names them"
    )]
    NotRemoved {
        /// How many.
        files: Count,
    },
    /// What the disk holds could not be removed, for it is no longer this daemon's to change.
    #[error(
        "the cache directory {dir} was moved, removed or replaced and is no longer this daemon's: \
         cache files were forgotten and none were removed"
    )]
    CacheMoved {
        /// Where it was.
        dir: String,
    },
    /// A log filter that cannot be read.
    #[error("cannot use the log filter {filter:?}: {why}")]
    LogFilter {
        /// What was given.
        filter: String,
        /// What is wrong with it.
        why: String,
    },
}

/// A number as it is written for people: 1,048,576.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count(pub u64);

impl From<usize> for Count {
    fn from(count: usize) -> Self {
        Self(count as u64)
    }
}

impl From<u32> for Count {
    fn from(count: u32) -> Self {
        Self(count.into())
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        let groups = digits.as_bytes().rchunks(3).rev();
        let groups: Vec<_> = groups.map(String::from_utf8_lossy).collect();
        f.write_str(&groups.join(","))
    }
}

impl Refusal {
    /// What happened to a job that an engine did not take.
    pub fn from_engine(refused: Refused, model: &str) -> Self {
        match refused {
            Refused::QueueFull { waiting, limit } => {
                Self::QueueFull { waiting: waiting.into(), limit: limit.into() }
            }
            Refused::Stopped => Self::Stopped { name: model.to_owned() },
            Refused::Silent(silence) => Self::Stuck { name: model.to_owned(), silence },
        }
    }

    /// The gRPC code, the stable reason, and when to try again.
    fn class(&self) -> (Code, &'static str, Option<Duration>) {
        match self {
            Self::Peer { .. } => (Code::PermissionDenied, "PEER", None),
            Self::UnknownModel { .. } => (Code::NotFound, "UNKNOWN_MODEL", None),
            Self::UnknownAdapter { .. } => (Code::NotFound, "UNKNOWN_ADAPTER", None),
            Self::ModelFailed { .. } => (Code::FailedPrecondition, "MODEL_FAILED", None),
            Self::Loading { .. } => (Code::Unavailable, "MODEL_LOADING", Some(SOON)),
            Self::NoRoom { .. } => (Code::Unavailable, "MODEL_MEMORY", Some(SOON)),
            Self::ModelTooLarge { .. } => (Code::ResourceExhausted, "MODEL_TOO_LARGE", None),
            Self::InUse { .. } => (Code::Unavailable, "MODEL_IN_USE", Some(SOON)),
            Self::Stopped { .. } => (Code::Unavailable, "ENGINE_STOPPED", Some(SOON)),
            Self::Stuck { .. } => (Code::Unavailable, "ENGINE_STUCK", Some(SOON)),
            Self::Engine(failure) => class_of(failure),
            Self::QueueFull { .. } => (Code::ResourceExhausted, "QUEUE_FULL", Some(SOON)),
            Self::NoThread { .. } => (Code::ResourceExhausted, "MEMORY", Some(SOON)),
            Self::NoPrompt => (Code::InvalidArgument, "NO_PROMPT", None),
            Self::EmptyPrompt => (Code::InvalidArgument, "EMPTY_PROMPT", None),
            Self::PromptTooLong { .. } | Self::TextTooLong { .. } => {
                (Code::InvalidArgument, "PROMPT_TOO_LONG", None)
            }
            Self::TokenOutsideVocabulary { .. } => {
                (Code::InvalidArgument, "TOKEN_OUTSIDE_VOCABULARY", None)
            }
            Self::Tokenizer(_) => (Code::InvalidArgument, "UNTOKENIZABLE", None),
            Self::OutOfRange { .. } => (Code::InvalidArgument, "OUT_OF_RANGE", None),
            Self::UnknownValue { .. } => (Code::InvalidArgument, "UNKNOWN_VALUE", None),
            Self::NotImplemented(_) => (Code::Unimplemented, "NOT_IMPLEMENTED", None),
            Self::MalformedKey { .. } => (Code::InvalidArgument, "MALFORMED_KEY", None),
            Self::UnknownKey { .. } => (Code::NotFound, "UNKNOWN_KEY", None),
            Self::AmbiguousKey { .. } => (Code::InvalidArgument, "AMBIGUOUS_KEY", None),
            Self::PinBudget { .. } => (Code::ResourceExhausted, "PIN_BUDGET", None),
            Self::Damaged { .. } => (Code::DataLoss, "DAMAGED", None),
            Self::NotRemoved { .. } | Self::CacheMoved { .. } => {
                (Code::FailedPrecondition, "NOT_REMOVED", None)
            }
            Self::LogFilter { .. } => (Code::InvalidArgument, "LOG_FILTER", None),
        }
    }
}

impl Refusal {
    /// Whether the same model would be refused again.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::ModelFailed { .. } | Self::ModelTooLarge { .. })
    }

    /// Whether it passes by itself.
    pub(super) fn passes(&self) -> bool {
        self.class().2.is_some()
    }

    /// What the message names, for programs.
    fn metadata(&self) -> Vec<(&'static str, String)> {
        let number = |count: &Count| count.0.to_string();
        match self {
            Self::Peer { owner, .. } => vec![("owner", owner.to_string())],
            Self::UnknownModel { name, .. }
            | Self::ModelFailed { name, .. }
            | Self::Loading { name }
            | Self::InUse { name }
            | Self::Stopped { name }
            | Self::Stuck { name, .. } => vec![("model", name.clone())],
            Self::NoRoom { name, bytes, taken, limit } => vec![
                ("model", name.clone()),
                ("asked", number(bytes)),
                ("taken", number(taken)),
                ("limit", number(limit)),
            ],
            Self::ModelTooLarge { name, bytes, limit } => {
                vec![("model", name.clone()), ("asked", number(bytes)), ("limit", number(limit))]
            }
            Self::UnknownAdapter { name, model, .. } => {
                vec![("adapter", name.clone()), ("model", model.clone())]
            }
            Self::Engine(failure) => metadata_of(failure),
            Self::QueueFull { waiting, limit } => {
                vec![("waiting", number(waiting)), ("limit", number(limit))]
            }
            Self::EmptyPrompt => vec![("asked", "0".to_owned())],
            Self::PromptTooLong { tokens, context } => {
                vec![("asked", number(tokens)), ("limit", number(context))]
            }
            Self::TextTooLong { bytes, tokens, context } => {
                let numbers = [("bytes", bytes), ("asked", tokens), ("limit", context)];
                numbers.map(|(key, count)| (key, number(count))).to_vec()
            }
            Self::TokenOutsideVocabulary { field, id, vocab } => {
                vec![
                    ("field", (*field).to_owned()),
                    ("asked", number(id)),
                    ("limit", number(vocab)),
                ]
            }
            Self::OutOfRange { field, value, allowed } => vec![
                ("field", (*field).to_owned()),
                ("asked", value.clone()),
                ("allowed", allowed.clone()),
            ],
            Self::UnknownValue { field, value, known } => vec![
                ("field", (*field).to_owned()),
                ("asked", value.clone()),
                ("allowed", known.clone()),
            ],
            Self::NotImplemented(feature) => vec![("field", (*feature).to_owned())],
            Self::MalformedKey { key } | Self::UnknownKey { key } => vec![("key", key.clone())],
            Self::AmbiguousKey { key, count } => {
                vec![("key", key.clone()), ("matches", number(count))]
            }
            Self::PinBudget { what, needed, held, limit } => vec![
                ("of", (*what).to_owned()),
                ("asked", number(needed)),
                ("held", number(held)),
                ("limit", number(limit)),
            ],
            Self::Damaged { damaged, checked, .. } => {
                vec![("damaged", number(damaged)), ("checked", number(checked))]
            }
            Self::NotRemoved { files } => vec![("files", number(files))],
            Self::CacheMoved { dir } => vec![("cache_dir", dir.clone())],
            Self::LogFilter { filter, .. } => vec![("asked", filter.clone())],
            Self::NoThread { .. } | Self::NoPrompt | Self::Tokenizer(_) => Vec::new(),
        }
    }
}

fn metadata_of(failure: &Failure) -> Vec<(&'static str, String)> {
    match failure {
        Failure::Deadline { tokens, kept } => {
            vec![("tokens", tokens.to_string()), ("kept", kept.to_string())]
        }
        Failure::TooLarge { needed, budget } => {
            vec![("asked", needed.to_string()), ("limit", budget.to_string())]
        }
        Failure::Share { waiting, limit } => {
            vec![("waiting", waiting.to_string()), ("limit", limit.to_string())]
        }
        Failure::Stalled(limit) => vec![("limit_ms", limit.as_millis().to_string())],
        Failure::Reloaded | Failure::Memory(_) | Failure::Device(_) | Failure::Draining => {
            Vec::new()
        }
    }
}

fn class_of(failure: &Failure) -> (Code, &'static str, Option<Duration>) {
    match failure {
        Failure::Deadline { .. } => (Code::DeadlineExceeded, "DEADLINE", None),
        Failure::Share { .. } => (Code::ResourceExhausted, "QUEUE_FULL", Some(SOON)),
        Failure::TooLarge { .. } => (Code::ResourceExhausted, "KV_BUDGET", None),
        Failure::Stalled(_) => (Code::Cancelled, "STALLED", None),
        Failure::Reloaded => (Code::Unavailable, "MODEL_RELOADED", Some(SOON)),
        Failure::Memory(_) => (Code::ResourceExhausted, "MEMORY", Some(SOON)),
        Failure::Device(_) => (Code::Internal, "DEVICE", None),
        Failure::Draining => (Code::Unavailable, "DRAINING", Some(SOON)),
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        let (code, reason, retry) = refusal.class();
        let metadata = refusal.metadata().into_iter();
        let metadata = metadata.map(|(key, value)| (key.to_owned(), shortened(value)));
        let mut details =
            ErrorDetails::with_error_info(reason, DOMAIN, metadata.collect::<HashMap<_, _>>());
        if retry.is_some() {
            details.set_retry_info(retry);
        }
        Status::with_error_details(code, shortened(refusal.to_string()), details)
    }
}

/// What a caller said comes back with a refusal; headers that are too long would end its
/// connection and everything else on it.
fn shortened(mut told: String) -> String {
    if told.len() > LONGEST {
        told.truncate(told.floor_char_boundary(LONGEST));
        told.push_str(" ..");
    }
    told
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn what_a_caller_said_comes_back_in_part_when_it_is_long() {
        let name = "\u{e4}".repeat(50_000);
        let status = Status::from(Refusal::UnknownModel { name, known: "m".into() });
        assert_eq!(status.code(), Code::NotFound);
        assert!(status.message().ends_with("\u{e4} .."), "{}", status.message().len());
        let info = status.get_details_error_info().unwrap();
        let told = info.metadata.values().map(String::len).sum::<usize>() + status.message().len();
        assert!(told < 3_000, "{told} bytes");
    }

    #[test]
    fn a_refusal_tells_people_the_numbers_and_programs_the_reason() {
        let refusal = Refusal::PromptTooLong { tokens: Count(9_001), context: Count(8_192) };
        let status = Status::from(refusal);
        assert_eq!(status.code(), Code::InvalidArgument);
        assert_eq!(status.message(), "prompt is 9,001 tokens, context is 8,192");
        let info = status.get_details_error_info().unwrap();
        assert_eq!((&*info.reason, &*info.domain), ("PROMPT_TOO_LONG", "tinygpt"));
        let told = |key: &str| info.metadata.get(key).map(String::as_str);
        assert_eq!((told("asked"), told("limit")), (Some("9001"), Some("8192")));
        assert!(status.get_details_retry_info().is_none());
    }

    #[test]
    fn what_passes_by_itself_says_when_to_try_again() {
        let waiting = Refused::QueueFull { waiting: 7, limit: 7 };
        let status = Status::from(Refusal::from_engine(waiting, "m"));
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert_eq!(status.get_details_retry_info().unwrap().retry_delay, Some(SOON));
    }

    #[test]
    fn a_budget_that_is_too_small_is_told_in_plain_numbers() {
        let failure = Failure::TooLarge { needed: 2_097_152, budget: 1_048_576 };
        let info = Status::from(Refusal::Engine(failure)).get_details_error_info().unwrap();
        assert_eq!((&*info.metadata["asked"], &*info.metadata["limit"]), ("2097152", "1048576"));
    }

    #[test]
    fn numbers_are_grouped() {
        let written = [0, 999, 1_000, 1_048_576].map(|n| Count(n).to_string());
        assert_eq!(written, ["0", "999", "1,000", "1,048,576"]);
    }

    #[test]
    fn every_reason_and_every_key_is_documented() {
        let protocol = include_str!("../../../docs/protocol.md");
        let source = include_str!("refusal.rs").split("#[cfg(test)]").next().unwrap();
        let reasons = source.split('"').skip(1).step_by(2).filter(|text| {
            text.len() > 3 && text.bytes().all(|b| b.is_ascii_uppercase() || b == b'_')
        });
        let keys = source.split("(\"").skip(1).filter_map(|rest| rest.split_once("\", "));
        let keys = keys
            .map(|(key, _)| key)
            .filter(|key| key.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'));
        let missing: Vec<_> =
            reasons.chain(keys).filter(|name| !protocol.contains(&format!("`{name}`"))).collect();
        assert_eq!(missing, Vec::<&str>::new());
    }
}
