//! `cache gc`: the budgets enforced now.

use clap::Args;
use tinygpt_client::exit::Exit;
use tinygpt_proto::v1::GcRequest;

use crate::failure::Outcome;
use crate::session::Session;
use crate::{json, render};

/// Enforces the budgets and removes leftovers now.
#[derive(Debug, Args)]
pub(crate) struct GcArgs {
    /// Evict until at most this much is on disk: 500MB, 2GiB [default: the configured budget]
    #[arg(long, value_name = "SIZE")]
    disk: Option<bytesize::ByteSize>,
}

pub(crate) async fn run(args: GcArgs, session: &Session) -> Outcome {
    let connection = session.connect().await?;
    let request = session.request(GcRequest { disk_bytes: args.disk.map(|size| size.as_u64()) });
    let freed = session.accept(connection.cache().gc(request).await?);
    if session.json {
        render::json(&json::object("tinygpt.cache.gc/1", "GcResponse", &freed))?;
    } else {
        render::line(&format!(
            "removed {} files: {} in memory, {} on disk",
            freed.files,
            render::bytes(freed.memory_bytes),
            render::bytes(freed.disk_bytes),
        ))?;
    }
    Ok(Exit::Done)
}
