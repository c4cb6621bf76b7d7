//! `make demo`: one prompt, cold, from memory, after a restart, and by four clients at once.
//!
//! Everything runs as its users run it: a daemon process with a cache directory of its own, and a
//! client process for each request.

use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::Value;
use tinygpt_tests::process::{Home, Started};
use tinygpt_tests::prompts;

/// Bytes of the prompt.
const PROMPT: usize = 900;
/// Tokens that each client asks for.
const TOKENS: &str = "64";

fn main() -> anyhow::Result<()> {
    let model = model(std::env::args().skip(1))?;
    let demo = Demo { home: Home::new(), model };
    heading();
    let mut daemon = demo.start()?;
    demo.row("cold", &prompts::long(PROMPT))?;
    demo.row("warm (memory)", &prompts::long(PROMPT))?;
    // Written behind, within half a second on an idle disk.
    thread::sleep(Duration::from_millis(700));
    daemon.terminate();
    let _daemon = demo.start()?;
    demo.row("warm after restart (disk)", &prompts::long(PROMPT))?;
    demo.four_at_once()
}

/// The value of `--model`, if given.
fn model(mut arguments: impl Iterator<Item = String>) -> anyhow::Result<Option<String>> {
    let Some(flag) = arguments.next() else { return Ok(None) };
    ensure!(flag == "--model", "usage: demo [--model PATH]");
    Ok(Some(arguments.next().context("--model needs a path")?))
}

struct Demo {
    home: Home,
    model: Option<String>,
}

/// A client process and when it was started.
struct Asked {
    child: Child,
    started: Instant,
}

impl Demo {
    /// Starts the daemon, whose errors are for the terminal, and waits until its model is loaded.
    fn start(&self) -> anyhow::Result<Started> {
        let mut command = self.home.daemon();
        command.args(["--log", "warn"]).stderr(Stdio::inherit());
        command.args(self.model.iter().flat_map(|model| ["--model", model]));
        let mut daemon = Started::new(&mut command);
        while !self.is_ready()? {
            ensure!(!daemon.has_ended(), "the daemon ended at once");
        }
        Ok(daemon)
    }

    fn is_ready(&self) -> anyhow::Result<bool> {
        let mut command = self.home.client();
        command.args(["wait", "--ready", "--timeout", "1s", "--quiet"]);
        Ok(command.stderr(Stdio::null()).stdout(Stdio::null()).status()?.success())
    }

    fn row(&self, name: &str, prompt: &str) -> anyhow::Result<()> {
        let (answer, wall) = self.ask(prompt)?.answer()?;
        row(name, &answer, wall);
        Ok(())
    }

    /// Four clients with one prompt that nobody has seen.
    fn four_at_once(&self) -> anyhow::Result<()> {
        let prompt = format!("Once more: {}", prompts::long(PROMPT - 11));
        let asked: Vec<Asked> = (0..4).map(|_| self.ask(&prompt)).collect::<anyhow::Result<_>>()?;
        for (client, asked) in (1..).zip(asked) {
            let (answer, wall) = asked.answer()?;
            row(&format!("four at once, client {client}"), &answer, wall);
        }
        Ok(())
    }

    fn ask(&self, prompt: &str) -> anyhow::Result<Asked> {
        let started = Instant::now();
        let mut command = self.home.client();
        command.args(["sample", "--temperature", "0", "-n", TOKENS, "--json", "--prompt", prompt]);
        let command = command.stdout(Stdio::piped());
        Ok(Asked { child: command.spawn()?, started })
    }
}

impl Asked {
    fn answer(self) -> anyhow::Result<(Value, Duration)> {
        let output = self.child.wait_with_output()?;
        let wall = self.started.elapsed();
        ensure!(output.status.success(), "a client failed: {}", output.status);
        Ok((serde_json::from_slice(&output.stdout)?, wall))
    }
}

#[expect(clippy::print_stdout, reason = "the demo's table")]
fn heading() {
    println!(
        "{:<26} {:>13}  {:<26} {:>9} {:>8} {:>9}",
        "", "cached/prompt", "verdict", "TTFT ms", "tok/s", "client ms"
    );
}

#[expect(clippy::print_stdout, reason = "the demo's table")]
fn row(name: &str, answer: &Value, wall: Duration) {
    let number = |pointer: &str| answer.pointer(pointer).and_then(Value::as_f64).unwrap_or(0.0);
    let word = |key: &str| answer[key].as_str().unwrap_or("").to_owned();
    let cached = format!("{}/{}", number("/usage/cached_tokens"), number("/usage/prompt_tokens"));
    let verdict = match word("reason").as_str() {
        "" => word("verdict"),
        reason => format!("{} ({reason})", word("verdict")),
    };
    let after_first = number("/usage/completion_tokens") - 1.0;
    let rate = after_first / number("/timings/decode_ms") * 1e3;
    println!(
        "{name:<26} {cached:>13}  {verdict:<26} {:>9.1} {rate:>8.0} {:>9.1}",
        number("/timings/ttft_ms"),
        wall.as_secs_f64() * 1e3
    );
}
