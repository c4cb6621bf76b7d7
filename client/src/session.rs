//! What a command knows about its surroundings: which daemon, how long, how to answer.

use std::cell::Cell;
use std::time::Duration;

use indicatif::HumanCount;
use prost::Message;
use tinygpt_client::connect::{ConnectError, Connection};
use tinygpt_client::start::Launch;
use tinygpt_proto::socket::{Origin, SocketPath};
use tinygpt_proto::{MAX_MESSAGE_BYTES, VERSION_HEADER};
use tokio::time::timeout;
use tonic::Status;

use crate::cli::Common;
use crate::failure::Failure;
use crate::render;
use crate::version;

/// How long a daemon that this client starts may take until it serves, when nobody says otherwise.
const START: Duration = Duration::from_secs(60);

/// How long a daemon may take to tell what it is and has, when nobody says otherwise.
const GLANCE: Duration = Duration::from_secs(10);

/// What a command knows about its surroundings.
#[derive(Debug)]
pub(crate) struct Session {
    /// The daemon's socket.
    pub(crate) socket: SocketPath,
    /// Whether to answer in JSON.
    pub(crate) json: bool,
    /// Whether to keep quiet on stderr.
    pub(crate) quiet: bool,
    /// How long an answer may take.
    pub(crate) timeout: Option<Duration>,
    /// Whether a difference of versions was told already.
    compared: Cell<bool>,
}

impl Session {
    pub(crate) fn new(common: &Common) -> Result<Self, Failure> {
        Ok(Self {
            socket: SocketPath::resolve(common.socket.as_deref())?,
            json: common.json,
            quiet: common.quiet,
            timeout: common.timeout,
            compared: Cell::new(false),
        })
    }

    /// Connects to a daemon that runs.
    pub(crate) async fn connect(&self) -> Result<Connection, Failure> {
        Connection::open(&self.socket).await.map_err(|error| self.unreachable(error))
    }

    /// Connects; starts a daemon when none runs and the socket is the default one or `forced`.
    pub(crate) async fn connect_or_start(&self, forced: bool) -> Result<Connection, Failure> {
        let error = match Connection::open(&self.socket).await {
            Ok(connection) => return Ok(connection),
            Err(error) => error,
        };
        let allowed = forced || self.socket.origin() == Origin::Default;
        if !allowed || !error.is_no_daemon() {
            return Err(self.unreachable(error));
        }
        let launch = Launch::find(&self.socket)?;
        self.say(&format!("starting {} (log: {})", launch.program.display(), launch.log.display()));
        Ok(launch.run(self.timeout.unwrap_or(START)).await?)
    }

    /// No connection, and what to do about it.
    pub(crate) fn unreachable(&self, error: ConnectError) -> Failure {
        let advice = match self.socket.origin() {
            _ if !error.is_no_daemon() => String::new(),
            Origin::Default => {
                "start one with `tinygptd`; `sample` and `warm` do so by themselves".into()
            }
            Origin::Explicit | Origin::Environment => format!(
                "start one with `tinygptd --socket {}`; `sample` and `warm` do so with --start",
                self.socket.path().display(),
            ),
        };
        Failure::Connect { error, advice }
    }

    /// A request that carries the deadline. What is too large for one message is refused here: in
    /// the middle of sending there are no words left for it.
    pub(crate) fn request<T: Message>(&self, message: T) -> Result<tonic::Request<T>, Status> {
        let bytes = message.encoded_len();
        if bytes > MAX_MESSAGE_BYTES {
            return Err(Status::invalid_argument(format!(
                "the request has {} bytes, a message may have {}",
                HumanCount(bytes as u64),
                HumanCount(MAX_MESSAGE_BYTES as u64),
            )));
        }
        let mut request = tonic::Request::new(message);
        if let Some(timeout) = self.timeout {
            request.set_timeout(timeout);
        }
        Ok(request)
    }

    /// An answer that a daemon has at hand: when it does not come within [`GLANCE`], or the time that
    /// was given, the daemon is stopped or stuck.
    pub(crate) async fn at_once<T, E>(
        &self,
        answer: impl Future<Output = Result<T, E>>,
    ) -> Result<T, Failure>
    where
        Failure: From<E>,
    {
        let limit = self.timeout.unwrap_or(GLANCE);
        let answer = timeout(limit, answer).await.map_err(|_| Failure::Overdue(limit))?;
        Ok(answer?)
    }

    /// The answer. When a daemon of another version gave it, that is said, once.
    pub(crate) fn accept<T>(&self, response: tonic::Response<T>) -> T {
        let theirs = response.metadata().get(VERSION_HEADER).and_then(|value| value.to_str().ok());
        if let Some(words) = theirs.and_then(version::difference)
            && !self.compared.replace(true)
        {
            self.say(&words);
        }
        response.into_inner()
    }

    /// Says something on stderr, unless asked to be quiet.
    pub(crate) fn say(&self, words: &str) {
        if !self.quiet {
            render::remark(words);
        }
    }
}
