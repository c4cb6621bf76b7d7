//! A daemon that ends by itself when nobody has called for a while.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::time::{Duration, Instant};

use tinygpt_tests::process::{Home, PATIENCE};
use tokio::time::sleep;
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

/// Longer than a client takes to start and to ask, on a busy machine.
const LIMIT: Duration = Duration::from_secs(3);

#[tokio::test]
async fn calls_of_any_kind_keep_it_and_looking_at_its_health_does_not() {
    let home = Home::new();
    let _daemon = home.serve(&["--idle-exit", &format!("{}s", LIMIT.as_secs())]);
    let begun = Instant::now();
    while begun.elapsed() < 2 * LIMIT {
        let _ = home.run(&["tokenize", "--prompt", "ROMEO:"]).ok();
        sleep(LIMIT / 10).await;
    }
    let endpoint = Endpoint::from_shared(format!("unix://{}", home.socket().display())).unwrap();
    let mut health = HealthClient::new(endpoint.connect().await.unwrap());
    while health.check(HealthCheckRequest::default()).await.is_ok() {
        assert!(begun.elapsed() < PATIENCE, "looking at its health keeps it");
        sleep(LIMIT / 30).await;
    }
}
