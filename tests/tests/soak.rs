//! The short form of `make soak`.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use tinygpt_tests::soak::{self, Plan};

#[tokio::test(flavor = "multi_thread")]
async fn random_agents_leave_nothing_behind_and_get_what_they_would_get_alone() {
    let plan = Plan { time: Duration::from_secs(20), agents: 4, threads: 1, seed: 4 };
    soak::run(plan).await.unwrap();
}
