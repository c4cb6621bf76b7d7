//! `cache verify`: everything on disk read, and its checksums compared.

use tinygpt_client::exit::Exit;
use tinygpt_proto::v1::VerifyRequest;

use crate::failure::Outcome;
use crate::session::Session;
use crate::{json, render};

pub(crate) async fn run(session: &Session) -> Outcome {
    let connection = session.connect().await?;
    let request = session.request(VerifyRequest { keys: Vec::new() })?;
    let read = session.accept(connection.cache().verify(request).await?);
    if session.json {
        render::json(&json::object("tinygpt.cache.verify/1", "VerifyResponse", &read))?;
    } else {
        let size = render::bytes(read.bytes);
        let (segments, records) = (read.segments, read.records);
        render::line(&format!(
            "{segments} segments and {records} records are sound ({size} read)"
        ))?;
    }
    Ok(Exit::Done)
}
