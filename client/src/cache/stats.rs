//! `cache stats`: the cache in sums.

use tinygpt_proto::v1::{StatsRequest, StatsResponse};

use crate::failure::Outcome;
use crate::render;
use crate::session::Session;

pub(crate) async fn run(session: &Session) -> Outcome {
    let connection = session.connect().await?;
    let request = session.request(StatsRequest {})?;
    let stats = session.accept(session.at_once(connection.cache().stats(request)).await?);
    let (schema, name) = ("tinygpt.cache.stats/1", "StatsResponse");
    render::answer(session, schema, name, &stats, |stats| render::pairs(rows(stats)))
}

fn rows(stats: &StatsResponse) -> Vec<(&'static str, String)> {
    let mappings = stats.mappings.unwrap_or_default();
    vec![
        ("prompts", stats.entries.to_string()),
        ("records", stats.records.to_string()),
        ("blocks", stats.blocks.to_string()),
        ("segments", stats.segments.to_string()),
        ("in memory", render::budget(stats.memory)),
        ("on disk", render::budget(stats.disk)),
        ("packed weights", render::bytes(stats.packed_bytes)),
        ("of running", render::budget(stats.active)),
        ("to be written", render::budget(stats.write_queue)),
        ("mapped", render::counted(mappings.used, "segment")),
        ("quarantined", render::counted(stats.quarantined, "segment")),
        ("reused", reused(stats)),
        (
            "folder",
            match &*stats.cache_dir {
                "" => "nothing is written to disk".to_owned(),
                folder => folder.to_owned(),
            },
        ),
    ]
}

fn reused(stats: &StatsResponse) -> String {
    let (cached, all) = (stats.cached_tokens, stats.prompt_tokens);
    let share = if all == 0 { 0.0 } else { 100.0 * cached as f64 / all as f64 };
    format!("{cached} of {all} prompt tokens ({share:.1} %)")
}
