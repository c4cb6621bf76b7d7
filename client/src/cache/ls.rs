//! `cache ls`: the cached prompts.

use clap::Args;
use comfy_table::CellAlignment;
use serde_json::json;
use tinygpt_client::connect::Connection;
use tinygpt_client::exit::Exit;
use tinygpt_proto::v1::{CacheEntry, CacheServiceListRequest};
use tonic::Request;

use crate::failure::{Failure, Outcome};
use crate::session::Session;
use crate::{json, render};

/// Digits of a key that are shown: enough to be unique in any cache, and short enough to copy.
const KEY_DIGITS: usize = 12;

const COLUMNS: [&str; 11] = [
    "KEY", "MODEL", "TOKENS", "KV", "MEMORY", "MAPPED", "DISK", "RECORD", "PINNED", "USED",
    "BEGINS",
];

/// Lists the cached prompts, most recently used first.
///
/// MEMORY is what of a prompt is in the daemon's own memory, MAPPED what it reads in place from its
/// files, DISK what is in these files. Blocks that prompts share count for each of them. RECORD
/// says whether the prompt as a whole is answered without running a layer, PINNED for how long it is
/// kept from eviction.
#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    /// Only those of this model [default: all]
    #[arg(short, long, value_name = "NAME", default_value = "", hide_default_value = true)]
    model: String,
}

pub(crate) async fn run(args: LsArgs, session: &Session) -> Outcome {
    let connection = session.connect().await?;
    let request = session.request(CacheServiceListRequest { model: args.model })?;
    let entries = session.at_once(entries(&connection, request, session)).await?;
    if session.json {
        let entries = json::all("CacheEntry", &entries);
        render::json(&json!({ "schema": "tinygpt.cache.ls/1", "entries": entries }))?;
        return Ok(Exit::Done);
    }
    if entries.is_empty() {
        session.say("nothing is cached");
    }
    let mut table = render::columns(&COLUMNS);
    render::align(&mut table, &[2, 4, 5, 6], CellAlignment::Right);
    for entry in &entries {
        table.add_row(row(entry));
    }
    render::line(&render::table(&table))?;
    Ok(Exit::Done)
}

async fn entries(
    connection: &Connection,
    request: Request<CacheServiceListRequest>,
    session: &Session,
) -> Result<Vec<CacheEntry>, Failure> {
    let mut stream = session.accept(connection.cache().list(request).await?);
    let mut entries = Vec::new();
    while let Some(response) = stream.message().await? {
        entries.extend(response.entry);
    }
    Ok(entries)
}

fn row(entry: &CacheEntry) -> Vec<String> {
    vec![
        entry.prompt_key.chars().take(KEY_DIGITS).collect(),
        entry.model.clone(),
        entry.tokens.to_string(),
        entry.kv_dtype.clone(),
        render::bytes(entry.memory_bytes),
        render::bytes(entry.mapped_bytes),
        render::bytes(entry.disk_bytes),
        if entry.record { "yes" } else { "" }.to_owned(),
        render::until(entry.pinned_until),
        render::ago(entry.last_used),
        format!("{:?}", entry.preview.chars().take(40).collect::<String>()),
    ]
}
