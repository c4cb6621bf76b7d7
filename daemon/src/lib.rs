//! tinygptd: a daemon that owns language models and their persistent, shared KV caches.
//!
//! Several agent processes on one machine load the same model and prefill the same long prompt.
//! The daemon ends that: it loads once, and it keeps what attention computed from each prompt as
//! a chain of immutable blocks that live in memory and on disk with the same bytes. A prompt that
//! begins like an earlier one starts where the two part; the same prompt again runs no layer.
//!
//! The promise that everything else serves: on the processor, a cached answer equals an uncached
//! one, bit for bit, whatever ran beside it.
//!
//! Modules in reading order, each importing only what stands below it (a test holds them to it):
//!
//! * [`service`] speaks gRPC over Unix sockets and is the only place that knows it, and text;
//! * [`text`] turns text into token ids and back;
//! * [`engine`] owns a model and all its sequences on one thread;
//! * [`model`] reads model files and runs their architectures;
//! * [`store`] keeps blocks on disk;
//! * [`kv`] is the blocks themselves, their names and their index;
//! * [`metrics`] is what all of them measure;
//! * [`sys`] is the operating system; the arithmetic is in the crate `tinygpt_kernels`.
//!
//! [`config`] resolves what the user wants, [`log`] says what happened, and [`run`] puts it all
//! together.

pub mod config;
pub mod exit;
pub mod install;
pub mod log;
pub mod self_check;

pub mod service;
pub mod text;
pub mod engine;
pub mod model;
pub mod store;
pub mod kv;
pub mod metrics;
pub mod sys;

use std::convert::Infallible;
use std::future::Future;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context, anyhow};
use tinygpt_kernels::Pool;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnixListenerStream;

use self::config::Config;
use self::engine::{Ground, Source};
use self::exit::{Exit, Usage};
use self::model::Machine;
use self::service::models::Models;
use self::service::scrape::{Place, Scrapes};
use self::service::{Daemon, Ended, Facts, Limits, LogFilter};
use self::store::StoreHandle;

/// Serves `listeners` until `shutdown`, and says how the process is to end.
///
/// # Errors
/// When threads cannot be started or connections cannot be served.
pub async fn run(
    config: Config,
    listeners: Vec<UnixListener>,
    store: Option<StoreHandle>,
    logs: Option<LogFilter>,
    shutdown: impl Future<Output = ()>,
) -> anyhow::Result<Exit> {
    let models = start_models(&config, store.clone())?;
    let facts = Facts {
        socket: listeners.first().and_then(sys::socket::address),
        cache_dir: config.store.as_ref().map(|store| store.dir.clone()),
        started: SystemTime::now(),
        threads: config.threads.get(),
        engine: config.engine.clone(),
        places: config.places.clone(),
        warm: config.warm.clone(),
    };
    let daemon = Arc::new(Daemon::new(models.clone(), store, facts, logs));
    let scraped = scrape(config.metrics.as_ref(), Arc::clone(&daemon)).await?;
    let limits = Limits { grace: config.grace, idle_exit: config.idle_exit };
    let incoming = merge(listeners)?;
    sys::supervisor::ready();
    let ended = tokio::select! {
        ended = service::serve(daemon, incoming, shutdown, limits) => ended?,
        words = models.clone().first_failure() => {
            tracing::error!("{words}");
            return Ok(Exit::Model);
        }
        never = scraped => match never {},
        never = watchdog(&models) => match never {},
    };
    sys::supervisor::stopping();
    Ok(if ended == Ended::Poisoned { Exit::Internal } else { Exit::Done })
}

/// Tells what is measured where somebody wants to hear it.
async fn scrape(
    place: Option<&Place>,
    daemon: Arc<Daemon>,
) -> anyhow::Result<impl Future<Output = Infallible>> {
    let open = match place {
        Some(place) => Some(Scrapes::open(place).await.context("cannot listen for --metrics")?),
        None => None,
    };
    Ok(async move {
        match open {
            Some(open) => open.answer(daemon).await,
            None => std::future::pending().await,
        }
    })
}

/// The configured models, of which the first is being loaded.
fn start_models(config: &Config, store: Option<StoreHandle>) -> anyhow::Result<Models> {
    let first = config.models.iter().take(1).filter_map(|model| model.path.as_deref());
    let bytes: u64 = first.map(Source::file_bytes).sum();
    if let Some(limit) = config.rules.memory.filter(|limit| bytes > *limit) {
        let words = anyhow!("the first model takes {bytes} bytes, --model-memory is {limit}");
        return Err(Usage(words).into());
    }
    let models = Models::start(ground(config, store)?, config.models.clone(), config.rules);
    models.context("cannot start an engine")
}

/// What all engines stand on: one compute pool and one device.
///
/// # Errors
/// When the device cannot be used.
pub fn ground(config: &Config, store: Option<StoreHandle>) -> anyhow::Result<Ground> {
    let pool = Arc::new(Pool::new(config.threads));
    let device = config.device.open(config.device_memory).map_err(|error| Usage(error.into()))?;
    if let Some(device) = &device {
        tracing::info!(?device, "computing there");
    }
    Ok(Ground { settings: config.engine.clone(), machine: Machine { pool, device }, store })
}

/// All connections, wherever they come in.
fn merge(
    listeners: Vec<UnixListener>,
) -> anyhow::Result<impl tokio_stream::Stream<Item = std::io::Result<tokio::net::UnixStream>>> {
    let mut streams = tokio_stream::StreamMap::new();
    for (at, listener) in listeners.into_iter().enumerate() {
        let listener = tokio::net::UnixListener::from_std(listener);
        streams.insert(at, UnixListenerStream::new(listener.context("cannot use a listener")?));
    }
    Ok(streams.map(|(_, connection)| connection))
}

/// Tells the supervisor for as long as no engine is stuck.
async fn watchdog(models: &Models) -> Infallible {
    let Some(interval) = sys::supervisor::watchdog_interval() else {
        return std::future::pending().await;
    };
    loop {
        if !models.is_any_stuck() {
            sys::supervisor::alive();
        }
        tokio::time::sleep(interval).await;
    }
}
