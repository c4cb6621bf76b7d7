//! `cache show`: one cached prompt.

use clap::Args;
use tinygpt_proto::v1::{CacheBlock, CacheEntry, CacheServiceGetRequest, CacheServiceGetResponse};

use crate::failure::Outcome;
use crate::render;
use crate::session::Session;

/// Shows one cached prompt, its text and its blocks.
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// Its key, or a unique beginning of it
    key: String,
}

pub(crate) async fn run(args: ShowArgs, session: &Session) -> Outcome {
    let connection = session.connect().await?;
    let request = session.request(CacheServiceGetRequest { key: args.key })?;
    let response = session.accept(session.at_once(connection.cache().get(request)).await?);
    let (schema, name) = ("tinygpt.cache.show/1", "CacheServiceGetResponse");
    render::answer(session, schema, name, &response, |response| render::pairs(rows(response)))
}

fn rows(response: &CacheServiceGetResponse) -> Vec<(&'static str, String)> {
    let entry = response.entry.clone().unwrap_or_default();
    let mut rows = about(&entry);
    rows.push(("in reach", share(&response.blocks, |block| block.memory)));
    rows.push(("on disk", share(&response.blocks, |block| block.disk)));
    let text = if response.text.is_empty() { &entry.preview } else { &response.text };
    rows.push(("text", format!("{text:?}")));
    rows
}

fn about(entry: &CacheEntry) -> Vec<(&'static str, String)> {
    vec![
        ("key", entry.prompt_key.clone()),
        ("model", entry.model.clone()),
        ("fingerprint", entry.fingerprint.clone()),
        ("numerics", entry.numerics.clone()),
        ("KV", entry.kv_dtype.clone()),
        ("tokens", entry.tokens.to_string()),
        ("memory", render::bytes(entry.memory_bytes)),
        ("mapped", render::bytes(entry.mapped_bytes)),
        ("disk", render::bytes(entry.disk_bytes)),
        ("record", if entry.record { "yes" } else { "no" }.to_owned()),
        ("pinned", pinned(entry)),
        ("created", render::ago(entry.created)),
        ("used", render::ago(entry.last_used)),
    ]
}

fn pinned(entry: &CacheEntry) -> String {
    match entry.pinned_until {
        Some(until) => format!("for {}", render::until(Some(until))),
        None => "no".to_owned(),
    }
}

fn share(blocks: &[CacheBlock], has: impl Fn(&CacheBlock) -> bool) -> String {
    let held = blocks.iter().filter(|block| has(block)).count();
    format!("{held} of {}", render::counted(blocks.len() as u64, "block"))
}
