//! `pull`: a model from a Hugging Face hub into the cache that all tools share.
//!
//! What is fetched is what the daemon can load, and no more. It needs HTTP and TLS, so it is behind
//! the cargo feature `pull`; without it the command is there and says so.

#[cfg(feature = "pull")]
mod cache;
#[cfg(feature = "pull")]
mod choice;
#[cfg(feature = "pull")]
mod digest;
#[cfg(feature = "pull")]
mod download;
#[cfg(feature = "pull")]
mod error;
#[cfg(feature = "pull")]
mod hub;
#[cfg(feature = "pull")]
mod meter;
#[cfg(feature = "pull")]
mod model;
#[cfg(feature = "pull")]
mod part;
#[cfg(feature = "pull")]
mod surroundings;
#[cfg(not(feature = "pull"))]
mod unbuilt;

use clap::Args;

#[cfg(feature = "pull")]
pub(crate) use self::model::run;
#[cfg(not(feature = "pull"))]
pub(crate) use self::unbuilt::run;

/// Which model, and which of its revisions.
#[derive(Debug, Args)]
pub(crate) struct PullArgs {
    /// The repository, and behind a colon the GGUF file in it: by name, glob or quantisation
    ///
    /// Without a colon the safetensors files are fetched with what belongs to them, or the only
    /// GGUF file where there are none.
    #[arg(value_name = "OWNER/NAME[:FILE]")]
    model: String,
    /// A branch, a tag or a commit
    #[arg(long, value_name = "REVISION", default_value = "main")]
    revision: String,
}
