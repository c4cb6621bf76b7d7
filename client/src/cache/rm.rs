//! `cache rm`: prompts removed, with all that continues them, from memory and disk.

use clap::Args;
use tinygpt_proto::v1::{CacheKeys, RemoveRequest, RemoveResponse, remove_request::Target};

use crate::failure::Outcome;
use crate::render;
use crate::session::Session;

/// Removes prompts, and all that continue them, from memory and disk, pinned or not.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct RmArgs {
    /// Their keys, or unique beginnings of them
    #[arg(value_name = "KEY")]
    keys: Vec<String>,
    /// Everything that is yours, the history of prompts included
    #[arg(long)]
    all: bool,
}

pub(crate) async fn run(args: RmArgs, session: &Session) -> Outcome {
    let target = match args.all {
        true => Target::All(true),
        false => Target::Keys(CacheKeys { keys: args.keys }),
    };
    let connection = session.connect().await?;
    let request = session.request(RemoveRequest { target: Some(target) })?;
    let removed = session.accept(connection.cache().remove(request).await?);
    render::answer(session, "tinygpt.cache.rm/1", "RemoveResponse", &removed, text)
}

fn text(removed: &RemoveResponse) -> String {
    let pins = match removed.pins {
        0 => String::new(),
        pins => format!(", {}", render::counted(pins, "pin")),
    };
    format!(
        "removed {}, {}{pins}: {} in memory, {} on disk",
        render::counted(removed.entries, "prompt"),
        render::counted(removed.blocks, "block"),
        render::bytes(removed.memory_bytes),
        render::bytes(removed.disk_bytes),
    )
}
