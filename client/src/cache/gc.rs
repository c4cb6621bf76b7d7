//! `cache gc`: the budgets enforced now.

use tinygpt_proto::v1::{GcRequest, GcResponse};

use crate::failure::Outcome;
use crate::render;
use crate::session::Session;

pub(crate) async fn run(session: &Session) -> Outcome {
    let connection = session.connect().await?;
    let request = session.request(GcRequest { disk_bytes: None })?;
    let freed = session.accept(connection.cache().gc(request).await?);
    render::answer(session, "tinygpt.cache.gc/1", "GcResponse", &freed, text)
}

fn text(freed: &GcResponse) -> String {
    format!(
        "removed {}: {} in memory, {} on disk",
        render::counted(freed.files, "file"),
        render::bytes(freed.memory_bytes),
        render::bytes(freed.disk_bytes),
    )
}
