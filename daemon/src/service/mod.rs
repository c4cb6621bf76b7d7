//! Where the wire ends and the daemon begins.
//!
//! This module and its children are the only ones that know tonic, the protocol's messages and
//! text. A request is read once, refused here and nowhere later, turned into token ids and placed
//! with an engine; the engine's events become messages again.
//!
//! Reading order: `accept`, [`authority`] and [`peer`] are about who may come in, [`models`] about
//! what they find. [`order`] follows a request in, by way of [`prompt`] and [`convert`]; [`stream`] follows
//! the answer out. [`grpc`] has a file for each service and each larger RPC; what they ask engines
//! and the store beside orders is in `inquire`. What is measured is read by `page`, and told to whoever scrapes by [`scrape`]. `warmth` is what the daemon asks of itself. `health` tells the world whether all this works,
//! [`refusal`] lists everything that is said when it does not.
//!
//! Invariants: no request reaches an engine whose peer is not the daemon's own user; no text or
//! number of a client reaches one unchecked; nothing here waits for a disk or a model on a thread
//! of the runtime.

mod accept;
pub mod authority;
pub mod clock;
pub mod convert;
mod entries;
pub mod grpc;
mod health;
mod inquire;
mod page;
pub mod models;
pub mod order;
pub mod peer;
pub mod presence;
pub mod prompt;
pub mod refusal;
pub mod scrape;
mod serve;
pub mod stream;
pub mod tally;
mod warmth;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::{EnvFilter, Registry, reload};

use self::models::Models;
use self::presence::Presence;
use self::tally::Tally;
use crate::engine::Settings;
use crate::model::found::Places;
use crate::store::StoreHandle;

pub use self::serve::{Ended, Limits, ServeError, serve};
pub use self::warmth::Warmth;

/// Changes what is logged while the daemon runs.
pub type LogFilter = reload::Handle<EnvFilter, Registry>;

/// Why a log filter cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LogFilterError {
    /// It says nothing, which would silence every log.
    #[error("it is empty; off is the filter that logs nothing")]
    Empty,
    /// It cannot be read.
    #[error(transparent)]
    Parse(#[from] ParseError),
}

/// The filter that `words` mean.
///
/// # Errors
/// When they mean none.
pub fn log_filter(words: &str) -> Result<EnvFilter, LogFilterError> {
    if words.split(',').all(|directive| directive.trim().is_empty()) {
        return Err(LogFilterError::Empty);
    }
    Ok(EnvFilter::try_new(words)?)
}

/// What the service tells about the daemon, and is not told by an engine or the store.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The socket it listens on; `None` when it was inherited and has no name.
    pub socket: Option<PathBuf>,
    /// Where cached blocks lie on disk; `None` when nothing is written.
    pub cache_dir: Option<PathBuf>,
    /// When it started.
    pub started: SystemTime,
    /// Compute threads.
    pub threads: usize,
    /// Settings of every engine, for their budgets.
    pub engine: Settings,
    /// Where models may lie that are not served.
    pub places: Places,
    /// What to compute at start.
    pub warm: Vec<Warmth>,
}

impl Facts {
    fn socket(&self) -> String {
        display(self.socket.as_deref())
    }

    fn cache_dir(&self) -> String {
        display(self.cache_dir.as_deref())
    }
}

/// A path on the wire; empty for none.
fn display(path: Option<&Path>) -> String {
    path.map(|path| path.display().to_string()).unwrap_or_default()
}

/// Everything that answering a request may take.
#[derive(Debug)]
pub struct Daemon {
    models: Models,
    store: Option<StoreHandle>,
    facts: Facts,
    logs: Option<LogFilter>,
    tally: Tally,
    presence: Presence,
    /// One for the search for models.
    searches: Arc<Semaphore>,
    /// Cancelled by the request to drain.
    drain: CancellationToken,
}

impl Daemon {
    /// A service over `models`.
    pub fn new(
        models: Models,
        store: Option<StoreHandle>,
        facts: Facts,
        logs: Option<LogFilter>,
    ) -> Self {
        Self {
            models,
            store,
            facts,
            logs,
            tally: Tally::default(),
            presence: Presence::default(),
            searches: Arc::new(Semaphore::new(1)),
            drain: CancellationToken::new(),
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests;
