//! `bandwidth BYTES THREADS`: how fast so many threads read so many bytes, in GB/s.
//!
//! The limit of whatever has to read all its weights for each token; `make bench-peers` prints
//! both. The best pass of half a second counts.

use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

const PATIENCE: Duration = Duration::from_millis(500);

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |name: &str| -> anyhow::Result<usize> {
        let given = arguments.next().with_context(|| format!("no {name} given"))?;
        given.parse().with_context(|| format!("{name} is {given:?}"))
    };
    let (bytes, threads) = (number("BYTES")?, number("THREADS")?);
    let words: Vec<u64> = (0..bytes as u64 / 8).collect();
    ensure!(threads > 0 && words.len() >= threads, "{threads} threads cannot share {bytes} bytes");
    let best = best_pass(&words, threads);
    say(&format!("{:.2}", words.len() as f64 * 8.0 / best.as_secs_f64() / 1e9));
    Ok(())
}

fn best_pass(words: &[u64], threads: usize) -> Duration {
    let begin = Instant::now();
    let mut best = Duration::MAX;
    while begin.elapsed() < PATIENCE {
        let start = Instant::now();
        thread::scope(|scope| {
            for share in words.chunks(words.len().div_ceil(threads)) {
                scope.spawn(|| black_box(sum(share)));
            }
        });
        best = best.min(start.elapsed());
    }
    best
}

fn sum(words: &[u64]) -> u64 {
    words.iter().fold(0, |sum, word| sum.wrapping_add(*word))
}

#[expect(clippy::print_stdout, reason = "a report is what it is for")]
fn say(line: &str) {
    println!("{line}");
}
