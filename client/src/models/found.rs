//! The models that lie on this machine, served or not.

use comfy_table::CellAlignment;
use indicatif::HumanCount;
use tinygpt_client::connect::Connection;
use tinygpt_proto::Label;
use tinygpt_proto::v1::{FindRequest, FoundModel};
use tokio::time::timeout;
use tonic::{Code, Status};

use crate::failure::Failure;
use crate::render;
use crate::session::Session;

const COLUMNS: [&str; 8] =
    ["NAME", "PLACE", "KIND", "WEIGHTS", "PARAMETERS", "SIZE", "CONTEXT", "SERVABLE"];

/// All that the daemon finds. It looks at each, so there is no limit but the user's own.
pub(super) async fn ask(
    connection: &Connection,
    session: &Session,
) -> Result<Vec<FoundModel>, Failure> {
    let answer = match session.timeout {
        None => collect(connection, session).await,
        Some(limit) => timeout(limit, collect(connection, session))
            .await
            .map_err(|_| Failure::Overdue(limit))?,
    };
    match answer {
        Err(status) if status.code() == Code::Unimplemented => {
            session.say("this daemon does not look for models that it does not serve");
            Ok(Vec::new())
        }
        answer => Ok(answer?),
    }
}

async fn collect(connection: &Connection, session: &Session) -> Result<Vec<FoundModel>, Status> {
    let request = session.request(FindRequest {})?;
    let mut stream = session.accept(connection.models().find(request).await?);
    let mut found = Vec::new();
    while let Some(response) = stream.message().await? {
        found.extend(response.model);
    }
    Ok(found)
}

pub(super) fn table(found: &[FoundModel]) -> String {
    let mut table = render::columns(&COLUMNS);
    render::align(&mut table, &[4, 5, 6], CellAlignment::Right);
    for model in found {
        table.add_row(row(model).map(|cell| render::printable(&cell)));
    }
    render::table(&table)
}

fn row(model: &FoundModel) -> [String; 8] {
    let known = |count: u64| if count == 0 { "-".into() } else { HumanCount(count).to_string() };
    let servable = if model.error.is_empty() { "yes" } else { &model.error };
    [
        format!("{}{}", model.name, if model.served_as.is_empty() { "" } else { " *" }),
        model.place().label().to_owned(),
        model.architecture.clone(),
        model.weight_type.clone(),
        known(model.parameters),
        render::bytes(model.file_bytes),
        known(model.context.into()),
        servable.to_owned(),
    ]
}
