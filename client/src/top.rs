//! `top`: what the daemon does, live.
//!
//! `feed` hears from the daemon, again after it was gone; `view` keeps what was heard; `picture`
//! makes lines of that, which `screen` shows in a terminal and [`once`] prints. The terminal is
//! behind the cargo feature `top`, which is on by default: without it the same lines are printed.

#[cfg(feature = "top")]
mod feed;
mod picture;
#[cfg(feature = "top")]
mod screen;
mod view;

#[cfg(feature = "top")]
use std::io::IsTerminal;
use std::time::Duration;

use clap::Args;
use tinygpt_client::exit::Exit;
use tinygpt_proto::v1::{WatchRequest, WatchResponse};

use self::view::View;
use crate::cli::{duration, heading};
use crate::failure::{Failure, Outcome};
use crate::render;
use crate::session::Session;

/// Columns of what is printed.
const PRINTED: usize = 100;

/// Show what the daemon does, live
///
/// Keys: q ends it, p pauses and goes on, + and - look more and less often. It waits for a daemon
/// that is not there, or not any more. What does not go to a terminal is printed once.
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Print once what goes on, measured for one interval
    #[arg(long, help_heading = heading::OUTPUT)]
    once: bool,
    /// Look this often: 500ms, or seconds; 100ms at least
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration, help_heading = heading::OUTPUT)]
    interval: Duration,
}

pub(crate) async fn run(args: TopArgs, session: &Session) -> Outcome {
    let every = args.interval.clamp(view::SHORTEST, view::LONGEST);
    #[cfg(feature = "top")]
    if !args.once && !session.json && std::io::stdout().is_terminal() {
        return screen::run(every, session).await;
    }
    once(every, session).await
}

/// The first response looks back to the daemon's start, the second one at what goes on.
async fn once(every: Duration, session: &Session) -> Outcome {
    let told = tokio::select! {
        told = second(every, session) => told?,
        () = limit(session.timeout) => return Err(Failure::Overdue(session.timeout.unwrap_or_default())),
    };
    if session.json {
        return render::answer(session, "tinygpt.watch/1", "WatchResponse", &told, |_| {
            String::new()
        });
    }
    let mut view = View::new(every);
    view.hear(told);
    let lines = picture::lines(&view, PRINTED);
    let text: Vec<_> = lines.iter().map(|line| line.to_string().trim_end().to_owned()).collect();
    render::line(text.join("\n").trim_end())?;
    Ok(Exit::Done)
}

async fn limit(timeout: Option<Duration>) {
    match timeout {
        Some(timeout) => tokio::time::sleep(timeout).await,
        None => std::future::pending().await,
    }
}

async fn second(every: Duration, session: &Session) -> Result<WatchResponse, Failure> {
    let connection = session.connect().await?;
    let interval = every.try_into().ok();
    let asked = session.at_once(connection.admin().watch(WatchRequest { interval })).await?;
    let mut told = session.accept(asked);
    told.message().await?;
    told.message().await?.ok_or(Failure::CutShort)
}
