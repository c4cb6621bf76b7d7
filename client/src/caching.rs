//! How a request meets the cache.

use clap::{Args, ValueEnum};
use tinygpt_proto::v1::{CachePolicy, Persist};

use crate::cli::heading;

/// The flags about the cache of commands that keep what they compute.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = heading::CACHE)]
pub(crate) struct CachingArgs {
    #[command(flatten)]
    pub(crate) reuse: ReuseArgs,
    /// When what is computed reaches the disk
    #[arg(long, value_name = "WHEN", default_value = "behind")]
    persist: When,
    /// Keep what is computed in memory only: short for --persist no
    #[arg(long, conflicts_with = "persist")]
    no_persist: bool,
}

/// The flags about the cache of commands that meet it.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = heading::CACHE)]
pub(crate) struct ReuseArgs {
    /// How to use the cache
    #[arg(long, value_name = "POLICY", default_value = "use")]
    cache_policy: Policy,
    /// Share prompts within this namespace of your own only [default: the one without a name]
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub(crate) namespace: String,
    /// How to store the KV cache: f32, f16, bf16, .. [default: the daemon's]
    #[arg(long, value_name = "D", default_value = "", hide_default_value = true)]
    pub(crate) kv_dtype: String,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Policy {
    /// Reuse what is there, keep what is computed
    Use,
    /// Reuse what is there, keep nothing
    ReadOnly,
    /// Compute everything again and replace what is there
    Refresh,
    /// Neither reuse nor keep
    Bypass,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum When {
    /// Behind the answer
    Behind,
    /// Before the answer ends, synced
    Durable,
    /// Never
    No,
}

impl ReuseArgs {
    pub(crate) fn policy(&self) -> CachePolicy {
        match self.cache_policy {
            Policy::Use => CachePolicy::Use,
            Policy::ReadOnly => CachePolicy::ReadOnly,
            Policy::Refresh => CachePolicy::Refresh,
            Policy::Bypass => CachePolicy::Bypass,
        }
    }
}

impl CachingArgs {
    pub(crate) fn persist(&self) -> Persist {
        match self.persist {
            _ if self.no_persist => Persist::No,
            When::Behind => Persist::Behind,
            When::Durable => Persist::Durable,
            When::No => Persist::No,
        }
    }
}
