//! What a command knows about its surroundings: which daemon, how long, how to answer.

use std::cell::Cell;
use std::time::Duration;

use indicatif::HumanCount;
use prost::Message;
use tinygpt_client::connect::{ConnectError, Connection};
use tinygpt_client::holder::Holder;
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
        match Connection::open(&self.socket).await {
            Ok(connection) => Ok(connection),
            Err(error) => Err(self.unreachable(error).await),
        }
    }

    /// Connects; starts a daemon when none runs and the socket is the default one or `forced`.
    pub(crate) async fn connect_or_start(&self, forced: bool) -> Result<Connection, Failure> {
        let error = match Connection::open(&self.socket).await {
            Ok(connection) => return Ok(connection),
            Err(error) => error,
        };
        let allowed = forced || self.socket.origin() == Origin::Default;
        if !allowed || !error.is_no_daemon() {
            return Err(self.unreachable(error).await);
        }
        let launch = Launch::find(&self.socket)?;
        self.say(&format!("starting {} (log: {})", launch.program.display(), launch.log.display()));
        let connection = launch.run(self.timeout.unwrap_or(START)).await?;
        if connection.socket() != self.socket.path()
            && let Some(holder) = self.holder().await
        {
            self.say(&holder.to_string());
        }
        Ok(connection)
    }

    /// No connection, and what to do about it.
    pub(crate) async fn unreachable(&self, error: ConnectError) -> Failure {
        let advice = match error.is_no_daemon() {
            true => self.advice().await,
            false => String::new(),
        };
        Failure::Connect { error, advice }
    }

    /// What to do where no daemon answers. One that holds the cache is in the way of another.
    async fn advice(&self) -> String {
        let how = match self.socket.origin() {
            Origin::Default => "by themselves",
            Origin::Explicit | Origin::Environment => "with --start",
        };
        if let Some(holder) = self.holder().await {
            let socket = holder.socket.display();
            return format!(
                "{holder}: use `--socket {socket}`; `sample` and `warm` go there {how}"
            );
        }
        let socket = match self.socket.origin() {
            Origin::Default => String::new(),
            _ => format!(" --socket {}", self.socket.path().display()),
        };
        format!("start one with `tinygptd{socket}`; `sample` and `warm` do so {how}")
    }

    /// The daemon that holds the cache which one started here would use, when it answers.
    async fn holder(&self) -> Option<Holder> {
        let launch = Launch::find(&self.socket).ok()?;
        let found = async {
            let holder = Holder::named_for(&launch.program).await?;
            holder.answers().await.then_some(holder)
        };
        timeout(self.timeout.unwrap_or(GLANCE), found).await.ok().flatten()
    }

    /// A request that carries the deadline. What is too large for one message is refused here: in
    /// the middle of sending there are no words left for it.
    pub(crate) fn request<T: Message>(&self, message: T) -> Result<tonic::Request<T>, Status> {
        self.request_within(message, self.timeout)
    }

    /// The same with a time of its own, if there is a limit.
    pub(crate) fn request_within<T: Message>(
        &self,
        message: T,
        limit: Option<Duration>,
    ) -> Result<tonic::Request<T>, Status> {
        let bytes = message.encoded_len();
        if bytes > MAX_MESSAGE_BYTES {
            return Err(Status::invalid_argument(format!(
                "the request has {} bytes, a message may have {}",
                HumanCount(bytes as u64),
                HumanCount(MAX_MESSAGE_BYTES as u64),
            )));
        }
        let mut request = tonic::Request::new(message);
        if let Some(limit) = limit {
            request.set_timeout(limit);
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
