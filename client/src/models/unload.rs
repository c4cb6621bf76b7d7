//! `models unload`: the memory of a model given back; its cache stays.

use clap::Args;
use tinygpt_proto::v1::{UnloadRequest, UnloadResponse};

use crate::failure::Outcome;
use crate::render;
use crate::session::Session;

/// Takes a model out of memory when its requests have ended, and waits for that
///
/// What is cached of it on disk stays. The next request for it loads it again.
#[derive(Debug, Args)]
pub(crate) struct UnloadArgs {
    /// Its name
    name: String,
}

pub(crate) async fn run(args: UnloadArgs, session: &Session) -> Outcome {
    let connection = session.connect().await?;
    let request = session.request(UnloadRequest { name: args.name.clone() })?;
    let unloaded = session.accept(connection.models().unload(request).await?);
    let text = |_: &UnloadResponse| render::printable(&format!("unloaded {}", args.name));
    render::answer(session, "tinygpt.models.unload/1", "UnloadResponse", &unloaded, text)
}
