//! The life of the gRPC server: from the first connection to the last.

use std::future::{Future, pending};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tinygpt_proto::v1::admin_service_server::AdminServiceServer;
use tinygpt_proto::v1::cache_service_server::CacheServiceServer;
use tinygpt_proto::v1::inference_service_server::InferenceServiceServer;
use tinygpt_proto::v1::model_service_server::ModelServiceServer;
use tinygpt_proto::{FILE_DESCRIPTOR_SET, MAX_MESSAGE_BYTES, VERSION_HEADER};
use tokio::net::UnixStream;
use tokio::time::sleep;
use tokio_stream::{Stream, StreamExt};
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::codegen::http::{HeaderValue, Response};
use tonic::service::InterceptorLayer;
use tonic::service::interceptor::ResponseBody;
use tonic::transport::Server;
use tonic_reflection::server::Builder;
use tower::layer::layer_fn;
use tower::util::MapResponseLayer;

use super::accept::Accepting;
use super::authority::AuthorityStream;
use super::grpc::{Admin, Cache, Inference, Models};
use super::models::Slot;
use super::peer::Peer;
use super::{Daemon, health};

/// How long connections may take to close when everything has been said. Streams that never end
/// by themselves, such as a watch of the health, would otherwise hold the daemon for ever.
const FAREWELL: Duration = Duration::from_millis(500);

/// How often engines that do not end are looked at: nothing tells when one gets stuck.
const GLANCE: Duration = Duration::from_millis(100);

/// How often a silent connection is asked whether it is still there.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// A deadline that nobody will see.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// When a daemon ends by itself, and how.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// What running requests get after `shutdown`.
    pub grace: Duration,
    /// End when nobody has called for so long, the health service aside.
    pub idle_exit: Option<Duration>,
}

/// Why a daemon ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// `shutdown` came.
    Shutdown,
    /// A client asked it to drain.
    Drained,
    /// Nobody asked anything for long enough.
    Idle,
    /// The thread of an engine died.
    Poisoned,
}

/// Why the server could not run.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The connections could not be served.
    #[error("cannot serve connections: {0}")]
    Transport(#[from] tonic::transport::Error),
    /// The protocol's own description is broken.
    #[error("cannot offer server reflection: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
}

/// A generated server with the protocol's message limit; they share no trait.
macro_rules! sized {
    ($server:expr) => {
        $server
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES)
    };
}

/// Serves `incoming` connections until `shutdown`, a request to drain, idleness, or the death of
/// an engine.
///
/// Then the engines are drained while requests are still answered, new ones with a refusal that
/// says so. Returns when the engines have ended and the connections are closed.
///
/// # Errors
/// When connections cannot be served at all.
pub async fn serve(
    daemon: impl Into<Arc<Daemon>>,
    incoming: impl Stream<Item = io::Result<UnixStream>>,
    shutdown: impl Future<Output = ()>,
    limits: Limits,
) -> Result<Ended, ServeError> {
    let daemon = daemon.into();
    let presence = daemon.presence.clone();
    let (reporter, health) = tonic_health::server::health_reporter();
    // It begins by calling the daemon as a whole healthy.
    reporter.set_service_status("", tonic_health::ServingStatus::NotServing).await;
    let router = Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE))
        .layer(MapResponseLayer::new(with_version::<ResponseBody<Body>>))
        .layer(InterceptorLayer::new(Peer::check::<()>))
        .layer(layer_fn(move |calls| presence.attend(calls)))
        .add_service(sized!(InferenceServiceServer::new(Inference(Arc::clone(&daemon)))))
        .add_service(sized!(CacheServiceServer::new(Cache(Arc::clone(&daemon)))))
        .add_service(sized!(ModelServiceServer::new(Models(Arc::clone(&daemon)))))
        .add_service(sized!(AdminServiceServer::new(Admin(Arc::clone(&daemon)))))
        .add_service(reflection().build_v1()?)
        .add_service(reflection().build_v1alpha()?)
        .add_service(health);
    let incoming =
        Accepting::new(Box::pin(incoming)).map(|connection| connection.map(AuthorityStream::new));
    let closing = CancellationToken::new();
    let served = router.serve_with_incoming_shutdown(incoming, closing.cancelled());
    let life = async {
        let ended = daemon.wind_down(shutdown, limits).await;
        closing.cancel();
        sleep(FAREWELL).await;
        ended
    };
    let mut life = pin!(life);
    tokio::select! {
        served = served => served?,
        ended = &mut life => return Ok(ended),
        never = health::follow(&daemon, &reporter) => match never {},
        never = daemon.keep_warm() => match never {},
    }
    // The connections were closed before the farewell was over.
    Ok(life.await)
}

impl Daemon {
    /// Waits for a reason to end, has the engines end, and returns when they have and their
    /// clients have had a moment to hear of it.
    async fn wind_down(&self, shutdown: impl Future<Output = ()>, limits: Limits) -> Ended {
        let mut shutdown = pin!(shutdown);
        let ended = tokio::select! {
            () = &mut shutdown => Ended::Shutdown,
            () = self.drain.cancelled() => Ended::Drained,
            () = self.idle(limits.idle_exit) => Ended::Idle,
            () = self.models.poisoned() => Ended::Poisoned,
        };
        tracing::info!(reason = ?ended, "ending");
        self.drain.cancel();
        let patience = if ended == Ended::Drained { FOREVER } else { limits.grace };
        self.models.drain(Instant::now() + patience);
        tokio::select! {
            () = self.engines_end(limits.grace) => {}
            // Whoever asked for patience is overruled by whoever has none.
            () = shutdown, if ended != Ended::Shutdown => {
                self.models.drain(Instant::now() + limits.grace);
                self.engines_end(limits.grace).await;
            }
        }
        ended
    }

    /// Returns when every engine has ended; after `grace`, those that load a model or are stuck are
    /// not waited for. Reading a pipe or a dead mount may take for ever.
    async fn engines_end(&self, grace: Duration) {
        let none_runs = async {
            sleep(grace).await;
            while self.models.any_runs() {
                sleep(GLANCE).await;
            }
        };
        tokio::select! {
            () = self.models.ended() => {}
            () = none_runs => {}
        }
    }

    /// Returns when nobody has asked anything for `limit`. Idleness begins when every model is
    /// loaded: whoever has started this daemon for a model waits for it until then.
    async fn idle(&self, limit: Option<Duration>) {
        let Some(limit) = limit else { return pending().await };
        let mut changes = self.models.changes();
        loop {
            let idle = self.presence.idle();
            let loading = self.models.all().iter().any(Slot::is_loading);
            if idle >= limit && !loading {
                return;
            }
            tokio::select! {
                Ok(()) = changes.changed(), if loading => self.presence.touch(),
                () = sleep(limit.saturating_sub(idle)), if !loading => {}
            }
        }
    }
}

/// Every answer tells which version gave it.
fn with_version<B>(mut response: Response<B>) -> Response<B> {
    let version = HeaderValue::from_static(env!("CARGO_PKG_VERSION"));
    response.headers_mut().insert(VERSION_HEADER, version);
    response
}

/// Describes our protocol and the health protocol; reflection describes itself.
fn reflection() -> Builder<'static> {
    Builder::configure()
        .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::num::NonZeroUsize;
    use std::path::Path;
    use std::process::Command;
    use std::time::SystemTime;

    use tinygpt_kernels::Pool;

    use super::*;
    use crate::engine::{Budget, Ground, Settings, Source};
    use crate::model::found::Places;
    use crate::service::Facts;
    use crate::service::models::{Models, Rules};

    /// A daemon whose model is read from a pipe: it loads until somebody has written there.
    fn loading(pipe: &Path) -> Daemon {
        assert!(Command::new("mkfifo").arg(pipe).status().unwrap().success());
        let engine = Settings {
            queue: 1,
            active_budget: 1 << 20,
            cache_budget: Budget { heap: 1 << 20, mappings: 1 },
            stall: Duration::from_secs(1),
            silence: Duration::from_secs(60),
        };
        let source = Source::new("slow", Some(pipe.into()));
        let pool = Arc::new(Pool::new(NonZeroUsize::MIN));
        let ground = Ground { settings: engine.clone(), machine: pool.into(), store: None };
        let models = Models::start(ground, vec![source], Rules::default()).unwrap();
        let started = SystemTime::now();
        let places = Places::default();
        let warm = Vec::new();
        let facts =
            Facts { socket: None, cache_dir: None, started, threads: 1, engine, places, warm };
        Daemon::new(models, None, facts, None)
    }

    #[tokio::test]
    async fn idleness_begins_when_the_models_are_loaded() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let limit = Duration::from_millis(200);
        let limits = Limits { grace: Duration::ZERO, idle_exit: Some(limit) };
        let daemon = loading(&pipe);
        let serving = tokio::spawn(serve(daemon, tokio_stream::pending(), pending(), limits));
        sleep(3 * limit).await;
        assert!(!serving.is_finished(), "it ended while its model was loading");
        // The pipe's end is the end of loading: no model, but nothing to wait for either.
        drop(std::fs::OpenOptions::new().write(true).open(&pipe).unwrap());
        let loaded = Instant::now();
        assert_eq!(serving.await.unwrap().unwrap(), Ended::Idle);
        assert!(loaded.elapsed() >= limit, "idle for {:?} only", loaded.elapsed());
    }
}
