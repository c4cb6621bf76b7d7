//! `make bench`: what a prompt costs cold, hot and after a restart, in whole processes.
//!
//! Every round starts a daemon without a cache, asks twice, restarts it and asks once more, so the
//! three are measured side by side; medians over the rounds, in milliseconds of wall time.
//! `cold` begins with the start of the daemon and includes its loading of the model; `hot` is one
//! client process; `restart` is one client process after the daemon has been restarted and is
//! ready. The table goes into `docs/performance.md`.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::Value;
use tinygpt_tests::process::{Home, Started};
use tinygpt_tests::prompts;
use tinygpt_tests::seeded::Shape;

const ROUNDS: usize = 5;

/// What is asked of which model.
struct Case {
    name: &'static str,
    model: PathBuf,
    prompt: Prompt,
    tokens: &'static str,
}

/// A prompt of so many bytes, or so many token ids.
enum Prompt {
    Bytes(usize),
    Ids(usize),
}

/// One client process: wall time, time to first token and prefill as the daemon saw them.
#[derive(Clone, Copy)]
struct Sample {
    wall: f64,
    first: f64,
    prefill: f64,
    decode: f64,
}

fn main() -> anyhow::Result<()> {
    let models = tempfile::tempdir()?;
    heading();
    for case in cases(models.path())? {
        case.run().with_context(|| case.name)?;
    }
    Ok(())
}

fn cases(models: &Path) -> anyhow::Result<Vec<Case>> {
    let (huge, behemoth) = (models.join("huge.tinygpt"), models.join("behemoth.tinygpt"));
    Shape::HUGE.write(&huge)?;
    Shape::BEHEMOTH.write(&behemoth)?;
    let mut cases = vec![
        Case {
            name: "huge, 201 bytes, 20 tokens",
            model: huge,
            prompt: Prompt::Bytes(201),
            tokens: "20",
        },
        Case {
            name: "behemoth, 1,000 bytes, 20 tokens",
            model: behemoth,
            prompt: Prompt::Bytes(1000),
            tokens: "20",
        },
    ];
    match std::env::var_os("TINYGPT_REAL_MODEL").map(PathBuf::from).filter(|path| path.exists()) {
        Some(model) => cases.push(Case {
            name: "SmolLM2-135M Q4_1, 1,000 tokens, 20 tokens",
            model,
            prompt: Prompt::Ids(1000),
            tokens: "20",
        }),
        None => say("skipped: SmolLM2 is not there (make model fetches it)"),
    }
    Ok(cases)
}

impl Case {
    fn run(&self) -> anyhow::Result<()> {
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            rounds.push(self.round()?);
        }
        let [cold, hot, restart] =
            [0, 1, 2].map(|at| median(rounds.iter().map(|round| round[at]).collect()));
        say(&format!(
            "| {} | {:.0} | {:.0} | {:.1} | {:.2} | {:.1} | {:.2} | {:.1}x |",
            self.name,
            cold.wall,
            cold.prefill,
            hot.wall,
            hot.first,
            restart.wall,
            restart.first,
            cold.wall / hot.wall
        ));
        let rate = 19.0 / hot.decode * 1e3;
        say(&format!("| … decode, tokens/s | | | {rate:.0} | | | | |"));
        Ok(())
    }

    /// Cold, hot, restart.
    fn round(&self) -> anyhow::Result<[Sample; 3]> {
        let home = Home::new();
        let started = Instant::now();
        let mut daemon = self.start(&home);
        let mut cold = self.ask(&home, "COLD")?;
        cold.wall = started.elapsed().as_secs_f64() * 1e3;
        let hot = self.ask(&home, "FULL_MEMORY")?;
        // Written behind, within half a second on an idle disk.
        thread::sleep(Duration::from_millis(800));
        daemon.terminate();
        let _daemon = self.start(&home);
        Ok([cold, hot, self.ask(&home, "FULL_DISK")?])
    }

    fn start(&self, home: &Home) -> Started {
        home.serve(&["--log", "error", "--model", &self.model.display().to_string()])
    }

    fn ask(&self, home: &Home, verdict: &str) -> anyhow::Result<Sample> {
        let mut command = home.client();
        command.args(["sample", "--temperature", "0", "-n", self.tokens, "--json"]);
        match self.prompt {
            Prompt::Bytes(bytes) => command.arg("--prompt").arg(prompts::long(bytes)),
            Prompt::Ids(ids) => command.arg("--token-ids").arg(token_ids(ids)),
        };
        let started = Instant::now();
        let output = command.output()?;
        let wall = started.elapsed().as_secs_f64() * 1e3;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let answer: Value = serde_json::from_slice(&output.stdout)?;
        ensure!(answer["verdict"] == verdict, "expected {verdict}, got {}", answer["verdict"]);
        let time = |name: &str| answer["timings"][name].as_f64().unwrap_or(f64::NAN);
        let (first, prefill) = (time("ttft_ms"), time("prefill_ms"));
        Ok(Sample { wall, first, prefill, decode: time("decode_ms") })
    }
}

/// Ids that every vocabulary has, without a period that blocks would share.
fn token_ids(count: usize) -> String {
    let ids = (0..count).map(|i| (1000 + i * 7919 % 20_011).to_string());
    ids.collect::<Vec<_>>().join(",")
}

/// The sample in the middle by wall time.
fn median(mut samples: Vec<Sample>) -> Sample {
    samples.sort_by(|a, b| a.wall.total_cmp(&b.wall));
    samples[samples.len() / 2]
}

fn heading() {
    say(
        "| ms | cold: whole | cold: prefill | hot: client | hot: TTFT | restart: client | restart: TTFT | cold / hot |",
    );
    say("|---|---|---|---|---|---|---|---|");
}

#[expect(clippy::print_stdout, reason = "the benchmark's table")]
fn say(line: &str) {
    println!("{line}");
}
