//! `cache pin` and `cache unpin`: prompts kept from eviction for a time.

use std::time::Duration;

use clap::Args;
use tinygpt_client::exit::Exit;
use tinygpt_proto::v1::{PinRequest, PinResponse, UnpinRequest};

use crate::cli::lease;
use crate::failure::Outcome;
use crate::render;
use crate::session::Session;

/// Keeps a prompt from being evicted, from memory and from disk, for a time.
///
/// What comes before it in its chain is kept with it. Pinning a prompt again extends its time and
/// never shortens it. Pins may hold half of each budget of the cache.
#[derive(Debug, Args)]
pub(crate) struct PinArgs {
    /// Its key, or a unique beginning of it
    key: String,
    /// For how long: 90s, 30m, 12h, 7days, or seconds; at most 30 days
    #[arg(long = "for", value_name = "TIME", value_parser = lease, default_value = "1h")]
    lasts: Duration,
}

/// Lets a pinned prompt be evicted again.
#[derive(Debug, Args)]
pub(crate) struct UnpinArgs {
    /// Its key, or a unique beginning of it
    key: String,
}

pub(crate) async fn run(args: PinArgs, session: &Session) -> Outcome {
    let connection = session.connect().await?;
    let lease = prost_types::Duration::try_from(args.lasts).ok();
    let request = session.request(PinRequest { key: args.key, lease })?;
    let pinned = session.accept(connection.cache().pin(request).await?);
    render::answer(session, "tinygpt.cache.pin/1", "PinResponse", &pinned, text)
}

pub(crate) async fn undo(args: UnpinArgs, session: &Session) -> Outcome {
    let connection = session.connect().await?;
    let request = session.request(UnpinRequest { key: args.key })?;
    let unpinned = session.accept(connection.cache().unpin(request).await?);
    if session.json {
        let (schema, name) = ("tinygpt.cache.unpin/1", "UnpinResponse");
        return render::answer(session, schema, name, &unpinned, |_| String::new());
    }
    Ok(Exit::Done)
}

/// What became of a pin, in words.
pub(crate) fn text(pinned: &PinResponse) -> String {
    let place = if pinned.durable { "" } else { ", in memory only" };
    let (bytes, time) = (render::bytes(pinned.bytes), render::until(pinned.expires));
    format!("pinned for {time}: {bytes}{place}")
}
