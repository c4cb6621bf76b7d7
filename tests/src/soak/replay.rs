//! Replies computed again by a daemon that knows nothing, one by one.

use std::time::Instant;

use anyhow::Context;

use super::Plan;
use super::agent::Kept;
use super::ground::Ground;

/// Computes replies again for as long as the soak took at most: how many were the same.
pub(super) async fn alone(kept: &[Kept], plan: Plan) -> anyhow::Result<usize> {
    let ground = Ground::prepare(plan.threads)?;
    let _daemon = ground.start_afresh().await;
    let connection = ground.connect().await?;
    let end = Instant::now() + plan.time;
    let mut same = 0;
    for kept in kept {
        if Instant::now() > end {
            break;
        }
        kept.compare(&kept.again(&connection).await?)
            .context("computed again by a fresh daemon")?;
        same += 1;
    }
    Ok(same)
}
