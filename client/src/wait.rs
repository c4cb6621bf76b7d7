//! `wait`: for the daemon to answer, or to serve.

use std::time::Duration;

use clap::Args;
use serde_json::json;
use tinygpt_client::exit::Exit;
use tinygpt_client::ready::{self, Readiness};
use tokio::time::Instant;

use crate::failure::{Failure, Outcome};
use crate::render;
use crate::session::Session;

/// How long to wait when nobody says otherwise.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until the daemon answers, one minute unless --timeout says otherwise. Never starts one.
#[derive(Debug, Args)]
pub(crate) struct WaitArgs {
    /// Wait until it serves, its models loaded
    #[arg(long)]
    ready: bool,
}

pub(crate) async fn run(args: WaitArgs, session: &Session) -> Outcome {
    let patience = session.timeout.unwrap_or(PATIENCE);
    let start = Instant::now();
    let connection = match ready::connect(session.socket.path(), None, start + patience).await {
        Ok(connection) => connection,
        Err(error) => return Err(session.unreachable(error).await),
    };
    if args.ready
        && let Readiness::Not(state) = ready::wait(&connection, start + patience).await
    {
        return Err(Failure::NotReady { waited: patience, state });
    }
    if session.json {
        let waited = start.elapsed().as_secs_f64() * 1e3;
        render::json(
            &json!({ "schema": "tinygpt.wait/1", "ready": args.ready, "waited_ms": waited }),
        )?;
    }
    Ok(Exit::Done)
}
