//! `cache`: looking at the KV cache, and tending it.

mod explain;
mod gc;
mod ls;
pub(crate) mod pin;
mod rm;
mod show;
mod stats;
mod verify;

use clap::Subcommand;

use crate::failure::Outcome;
use crate::session::Session;

/// What can be done with the cache. A key may be shortened as long as it stays unique.
#[derive(Debug, Subcommand)]
pub(crate) enum CacheCommand {
    /// List the cached prompts, most recently used first
    Ls(ls::LsArgs),
    /// Show one cached prompt
    Show(show::ShowArgs),
    /// Tell what would be reused for a prompt, and where it parts from its relatives
    Explain(explain::ExplainArgs),
    /// Keep a prompt from being evicted for a time
    Pin(pin::PinArgs),
    /// Let a pinned prompt be evicted again
    Unpin(pin::UnpinArgs),
    /// Remove prompts, and all that continue them, from memory and disk
    Rm(rm::RmArgs),
    /// Sum up the cache
    Stats,
    /// Read everything on disk and compare checksums
    Verify,
    /// Enforce the budgets now
    Gc,
}

pub(crate) async fn run(command: CacheCommand, session: &Session) -> Outcome {
    match command {
        CacheCommand::Ls(args) => ls::run(args, session).await,
        CacheCommand::Show(args) => show::run(args, session).await,
        CacheCommand::Explain(args) => explain::run(args, session).await,
        CacheCommand::Pin(args) => pin::run(args, session).await,
        CacheCommand::Unpin(args) => pin::undo(args, session).await,
        CacheCommand::Rm(args) => rm::run(args, session).await,
        CacheCommand::Stats => stats::run(session).await,
        CacheCommand::Verify => verify::run(session).await,
        CacheCommand::Gc => gc::run(session).await,
    }
}
