//! Waiting for a daemon that is starting or loading, never longer than agreed.

use std::path::Path;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;

use crate::connect::{ConnectError, Connection};

/// The first pause between two looks; each further one is twice as long, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Pauses that grow, up to a deadline.
#[derive(Debug)]
struct Pauses {
    next: Duration,
    deadline: Instant,
}

impl Pauses {
    fn until(deadline: Instant) -> Self {
        Self { next: FIRST_PAUSE, deadline }
    }

    /// Sleeps; `false` when the deadline has passed instead.
    async fn pause(&mut self) -> bool {
        let now = Instant::now();
        if now >= self.deadline {
            return false;
        }
        sleep_until((now + self.next).min(self.deadline)).await;
        self.next = (self.next * 2).min(LONGEST_PAUSE);
        true
    }
}

/// Whether a daemon serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// It does.
    Serving,
    /// It does not; in words.
    Not(String),
}

/// Connects to whoever answers first on the socket at `path`, or on the `other` one, when there is
/// one.
///
/// # Errors
/// When `deadline` has passed: why nobody was to be reached at `path`.
pub async fn connect(
    path: &Path,
    other: Option<&Path>,
    deadline: Instant,
) -> Result<Connection, ConnectError> {
    let mut pauses = Pauses::until(deadline);
    loop {
        let error = match Connection::open_path(path).await {
            Ok(connection) => return Ok(connection),
            Err(error) => error,
        };
        if let Some(other) = other
            && let Ok(connection) = Connection::open_path(other).await
        {
            return Ok(connection);
        }
        if !pauses.pause().await {
            return Err(error);
        }
    }
}

/// Asks the daemon's health service until it says SERVING or `deadline` passes, and returns the
/// last answer.
pub async fn wait(connection: &Connection, deadline: Instant) -> Readiness {
    let mut pauses = Pauses::until(deadline);
    let mut last = Readiness::Not("no answer from its health service".into());
    loop {
        // A question that the deadline cuts short says nothing new.
        match timeout_at(deadline, check(connection)).await {
            Ok(seen) => last = seen,
            Err(_) => return last,
        }
        if last == Readiness::Serving || !pauses.pause().await {
            return last;
        }
    }
}

/// What the daemon's health service says now.
pub async fn check(connection: &Connection) -> Readiness {
    let request = HealthCheckRequest { service: String::new() };
    match connection.health().check(request).await {
        Ok(answer) => match answer.get_ref().status() {
            ServingStatus::Serving => Readiness::Serving,
            other => Readiness::Not(other.as_str_name().to_owned()),
        },
        Err(status) => Readiness::Not(status.message().to_owned()),
    }
}
