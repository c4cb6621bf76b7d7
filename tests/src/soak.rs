//! Random agents against a real daemon, for as long as it is given.
//!
//! Budgets are so small that something is evicted all the time. Agents ask for random prompts that
//! begin alike, with adapters and without, score and warm them, pin, unpin and remove them, and leave
//! in every way there is: at the end, in the middle, at a deadline, killed.
//! Two thirds of the time is a storm, in which the daemon is restarted again and again on the same
//! cache, asked to end or killed; the rest is one life, after which nothing may be left of its
//! requests: no sequence, no byte, no descriptor, no growth. What was pinned goes like the rest when
//! its lease is over.
//!
//! A random tenth of the texts and scores is computed again without the cache, at once beside everything
//! else, and in the end by a fresh daemon one by one: the same ids, or the soak has failed.
//!
//! Everything follows from the seed but for what time decides: who is in which batch, and when
//! which daemon dies.

mod agent;
mod dice;
mod ground;
mod request;
mod stay;
mod replay;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use tokio::task::JoinSet;

use agent::{Agent, Haul};
pub use dice::Dice;
use ground::Ground;
use stay::{Growth, Stay};

/// How long, how many, and from which seed.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// How long agents ask.
    pub time: Duration,
    /// How many agents.
    pub agents: u64,
    /// Threads of the daemon.
    pub threads: u32,
    /// What everything follows from.
    pub seed: u64,
}

/// What was seen, when nothing was wrong with it.
#[derive(Debug)]
pub struct Outcome {
    haul: Haul,
    restarts: u32,
    evictions: u64,
    life: Growth,
    replayed: usize,
}

/// Soaks.
///
/// # Errors
/// With the first thing that was wrong.
pub async fn run(plan: Plan) -> anyhow::Result<Outcome> {
    let mut dice = Dice::new(plan.seed);
    let ground = Arc::new(Ground::prepare(plan.threads)?);
    let mut haul = Haul::default();
    let (restarts, mut evictions) = storm(&ground, &plan, &mut dice, &mut haul).await?;
    let (life, evicted) = calm(&ground, &plan, &mut dice, &mut haul).await?;
    evictions += evicted;
    ensure!(evictions > 0, "nothing was evicted from the disk");
    let replayed = replay::alone(&haul.kept, plan).await?;
    Ok(Outcome { haul, restarts, evictions, life, replayed })
}

/// Agents, and a daemon that does not stay. Returns how often it was started again, and what it
/// evicted.
async fn storm(
    ground: &Arc<Ground>,
    plan: &Plan,
    dice: &mut Dice,
    haul: &mut Haul,
) -> anyhow::Result<(u32, u64)> {
    let end = Instant::now() + plan.time * 2 / 3;
    let mut stay = Stay::begin(ground).await?;
    let mut agents = send_out(ground, plan, dice, end, false).await?;
    let (mut restarts, mut evictions) = (0, 0);
    while Instant::now() < end {
        // Short lives in a short soak, and some longer ones in a long one.
        let life = plan.time.mul_f64(dice.fraction() / 10.0).min(Duration::from_secs(20));
        stay.watch(end.min(Instant::now() + Duration::from_millis(300) + life)).await?;
        evictions += stay.evictions();
        match dice.chance(50) {
            true => stay.kill(),
            false => stay.terminate()?,
        }
        stay = Stay::begin(ground).await?;
        restarts += 1;
    }
    gather(&mut agents, haul).await?;
    stay.is_idle().await?;
    stay.terminate()?;
    Ok((restarts, evictions))
}

/// One daemon and agents that come and go.
async fn calm(
    ground: &Arc<Ground>,
    plan: &Plan,
    dice: &mut Dice,
    haul: &mut Haul,
) -> anyhow::Result<(Growth, u64)> {
    let mut stay = Stay::begin(ground).await?;
    stay.warm_up().await?;
    let end = Instant::now() + plan.time / 3;
    let mut agents = send_out(ground, plan, dice, end, true).await?;
    stay.watch(end).await?;
    gather(&mut agents, haul).await?;
    stay.is_idle().await?;
    let growth = stay.growth()?;
    stay.is_sound().await?;
    ensure!(!haul.pinned.is_empty(), "nothing was pinned");
    stay.lets_go_of(&haul.pinned).await?;
    let evictions = stay.evictions();
    stay.terminate()?;
    ground.log_is_clean()?;
    Ok((growth, evictions))
}

/// Starts the agents. A `steady` daemon does not go away under them.
async fn send_out(
    ground: &Arc<Ground>,
    plan: &Plan,
    dice: &mut Dice,
    end: Instant,
    steady: bool,
) -> anyhow::Result<JoinSet<anyhow::Result<Haul>>> {
    let models = Arc::new(ground.models().await?);
    let mut agents = JoinSet::new();
    for number in 0..plan.agents {
        let dice = dice.child(number);
        let (ground, models, keys) = (ground.clone(), models.clone(), Vec::new());
        let agent = Agent { ground, models, dice, keys, steady };
        agents
            .spawn(async move { agent.run(end).await.with_context(|| format!("agent {number}")) });
    }
    Ok(agents)
}

async fn gather(agents: &mut JoinSet<anyhow::Result<Haul>>, haul: &mut Haul) -> anyhow::Result<()> {
    while let Some(agent) = agents.join_next().await {
        haul.add(agent??);
    }
    Ok(())
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { haul, restarts, evictions, life, replayed } = self;
        writeln!(f, "{haul}")?;
        writeln!(f, "{restarts} restarts, {evictions} files evicted; {life}")?;
        let kept = haul.kept.len();
        write!(f, "{} replies were the same again at once, {replayed} of {kept} alone", haul.same)
    }
}
