//! `cache verify`: everything on disk read, and its checksums compared.

use tinygpt_proto::v1::{VerifyRequest, VerifyResponse};

use crate::failure::Outcome;
use crate::render;
use crate::session::Session;

pub(crate) async fn run(session: &Session) -> Outcome {
    let connection = session.connect().await?;
    let request = session.request(VerifyRequest { keys: Vec::new() })?;
    let read = session.accept(connection.cache().verify(request).await?);
    render::answer(session, "tinygpt.cache.verify/1", "VerifyResponse", &read, text)
}

fn text(read: &VerifyResponse) -> String {
    format!(
        "sound: {}, {} ({} read)",
        render::counted(read.segments, "segment"),
        render::counted(read.records, "record"),
        render::bytes(read.bytes),
    )
}
