//! `cache gc`: the budgets enforced now.

use tinygpt_client::exit::Exit;
use tinygpt_proto::v1::GcRequest;

use crate::failure::Outcome;
use crate::session::Session;
use crate::{json, render};

pub(crate) async fn run(session: &Session) -> Outcome {
    let connection = session.connect().await?;
    let request = session.request(GcRequest { disk_bytes: None })?;
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
