//! What `grpc.health.v1` says: the truth about the engines, not about the server.
//!
//! A service that generates, and the daemon as a whole (the empty name), are healthy while a request
//! that names no model would be served and every engine that has a model shows signs of life. A
//! model that waits for its first request is no illness, and neither is one that somebody asked for
//! and that cannot be read. Services that only look after things are
//! healthy as soon as they answer. While the daemon drains, nothing is.

use std::convert::Infallible;
use std::time::Duration;

use tinygpt_proto::v1::admin_service_server::AdminServiceServer;
use tinygpt_proto::v1::cache_service_server::CacheServiceServer;
use tinygpt_proto::v1::inference_service_server::InferenceServiceServer;
use tinygpt_proto::v1::model_service_server::ModelServiceServer;
use tokio::time::sleep;
use tonic::server::NamedService;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use super::Daemon;
use super::grpc::{Admin, Cache, Inference, Models};

/// How often signs of life are looked for. Changes that are told are seen at once.
const GLANCE: Duration = Duration::from_secs(1);

/// Services that need models.
const GENERATING: [&str; 3] =
    ["", InferenceServiceServer::<Inference>::NAME, CacheServiceServer::<Cache>::NAME];

/// Services that only need the daemon.
const TENDING: [&str; 2] = [ModelServiceServer::<Models>::NAME, AdminServiceServer::<Admin>::NAME];

/// Keeps what `reporter` says true, for ever.
pub(super) async fn follow(daemon: &Daemon, reporter: &HealthReporter) -> Infallible {
    let mut changes = daemon.models.changes();
    let mut told = None;
    loop {
        let drains = daemon.drain.is_cancelled();
        let now = (!drains && daemon.models.are_ready(), !drains);
        if told != Some(now) {
            told = Some(now);
            tell(reporter, &GENERATING, now.0).await;
            tell(reporter, &TENDING, now.1).await;
        }
        tokio::select! {
            () = daemon.drain.cancelled(), if !drains => {}
            Ok(()) = changes.changed() => {}
            () = sleep(GLANCE) => {}
        }
    }
}

async fn tell(reporter: &HealthReporter, services: &[&str], healthy: bool) {
    let status = if healthy { ServingStatus::Serving } else { ServingStatus::NotServing };
    for service in services {
        reporter.set_service_status(service, status).await;
    }
}
