//! `make soak`: random agents, restarts and evictions; what must hold is in [`tinygpt_tests::soak`].

use std::time::Duration;

use anyhow::Context;
use tinygpt_tests::soak::{self, Plan};

const USAGE: &str = "usage: soak SECONDS [AGENTS [THREADS [SEED]]]";

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut numbers = std::env::args().skip(1).map(|word| word.parse::<u64>().context(USAGE));
    let seconds = numbers.next().context(USAGE)??;
    let agents = numbers.next().unwrap_or(Ok(6))?;
    let threads = u32::try_from(numbers.next().unwrap_or(Ok(1))?)?;
    let seed = numbers.next().unwrap_or_else(|| Ok(u64::from(std::process::id())))?;
    let plan = Plan { time: Duration::from_secs(seconds), agents, threads, seed };
    say(&format!("{seconds} s, {agents} agents, {threads} threads, seed {seed}"));
    say(&soak::run(plan).await?.to_string());
    Ok(())
}

#[expect(clippy::print_stdout, reason = "the soak's outcome")]
fn say(line: &str) {
    println!("{line}");
}
