//! Asking again while the daemon loads its model, or while its queue is full.

use std::future::pending;
use std::pin::pin;
use std::time::Duration;

use tinygpt_client::connect::Connection;
use tinygpt_client::ready::{self, Readiness};
use tinygpt_proto::v1::{ModelServiceGetRequest, ModelState};
use tokio::time::{Instant, sleep, timeout_at};
use tonic::Status;

use crate::failure::{Failure, reason, retry_delay};
use crate::render;
use crate::session::Session;

/// How long to wait for a model that is being loaded, when nobody says otherwise.
const LOADING: Duration = Duration::from_secs(120);

/// What a request may take before it is asked why.
const MOMENT: Duration = Duration::from_secs(1);

/// When to ask again if the daemon does not say.
const PAUSE: Duration = Duration::from_secs(1);

/// Makes a call, again and again as long as the daemon answers that its model is being loaded.
///
/// A socket that launchd or systemd holds accepts at once, long before the daemon can serve.
///
/// A wait that takes longer than a moment is explained: a model that is not in memory comes when it
/// is asked, and the daemon waits for it with its answer.
///
/// The call is told how much time it has: what is left of the user's, if the user set a limit.
pub(crate) async fn while_loading<T>(
    connection: &Connection,
    session: &Session,
    model: &str,
    call: impl AsyncFnMut(Option<Duration>) -> Result<T, Status>,
) -> Result<T, Status> {
    let end = Instant::now() + session.timeout.unwrap_or(LOADING);
    match session.timeout {
        None => again(connection, session, model, end, call).await,
        Some(limit) => {
            match timeout_at(end, again(connection, session, model, end, call)).await {
                // The last of its answers may come as the time ends.
                Ok(answer) if !answer.as_ref().is_err_and(is_loading) => answer,
                _ => Err(Status::deadline_exceeded(overdue(limit))),
            }
        }
    }
}

fn overdue(limit: Duration) -> String {
    format!("no answer within {limit:?}: the model was still loading")
}

async fn again<T>(
    connection: &Connection,
    session: &Session,
    model: &str,
    end: Instant,
    mut call: impl AsyncFnMut(Option<Duration>) -> Result<T, Status>,
) -> Result<T, Status> {
    let mut watch_health = true;
    let mut told = false;
    loop {
        let left = session.timeout.map(|_| end.saturating_duration_since(Instant::now()));
        let attended = attend(connection, session, model, &mut told, call(left));
        let status = match attended.await {
            Err(status) if is_loading(&status) && Instant::now() < end => status,
            answer => return answer,
        };
        if !std::mem::replace(&mut told, true) {
            session.say(status.message());
        }
        let pause = retry_delay(&status).unwrap_or(PAUSE);
        if watch_health {
            // A daemon that is healthy before it promised is asked before; one that is healthy and
            // still loads this model is not asked again and again.
            let seen = ready::wait(connection, Instant::now() + pause).await;
            watch_health = seen != Readiness::Serving;
        } else {
            sleep(pause).await;
        }
    }
}

/// Waits for an answer, and says so when it is the model that is waited for.
async fn attend<T>(
    connection: &Connection,
    session: &Session,
    model: &str,
    told: &mut bool,
    answer: impl Future<Output = T>,
) -> T {
    let mut answer = pin!(answer);
    let known = *told;
    let notice = async {
        sleep(MOMENT).await;
        match known {
            true => pending().await,
            false => hindrance(connection, model).await,
        }
    };
    tokio::select! {
        answer = &mut answer => return answer,
        hindrance = notice => if let Some(words) = hindrance {
            session.say(&words);
            *told = true;
        },
    }
    answer.await
}

/// What a request for a model waits for; `None` when it is not the model.
async fn hindrance(connection: &Connection, model: &str) -> Option<String> {
    let request = ModelServiceGetRequest { name: model.to_owned() };
    let model = connection.models().get(request).await.ok()?.into_inner().model?;
    let name = render::printable(&model.name);
    match model.state() {
        ModelState::Loading => Some(format!("model {name} is being loaded")),
        ModelState::Unloaded => Some(format!("model {name} waits for room in memory")),
        ModelState::Unloading => Some(format!("model {name} is being unloaded, and loaded again")),
        _ => None,
    }
}

/// Makes a call, again and again as long as the daemon answers that its queue is full. Without a
/// time limit there is no end to that: the queue moves, or the daemon answers something else.
///
/// Only a batch asks so, for what fills the queue may be its own other lines.
pub(crate) async fn while_full<T>(
    session: &Session,
    mut call: impl AsyncFnMut() -> Result<T, Failure>,
) -> Result<T, Failure> {
    let end = session.timeout.map(|timeout| Instant::now() + timeout);
    loop {
        let status = match call().await {
            Err(Failure::Daemon(status)) if is(&status, "QUEUE_FULL") => status,
            answer => return answer,
        };
        if end.is_some_and(|end| Instant::now() >= end) {
            return Err(Failure::Daemon(status));
        }
        sleep(retry_delay(&status).unwrap_or(PAUSE)).await;
    }
}

fn is_loading(status: &Status) -> bool {
    is(status, "MODEL_LOADING")
}

/// Whether a refusal has this stable reason.
fn is(status: &Status, stable: &str) -> bool {
    reason(status).as_deref() == Some(stable)
}
