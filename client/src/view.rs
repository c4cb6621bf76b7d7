//! How a generation is shown while it goes on.

use serde_json::json;
use tinygpt_proto::v1::sample_response::Event;
use tinygpt_proto::v1::{Admitted, Delta, Done};
use tokio::io::{AsyncWriteExt, Stdout};

use crate::failure::Failure;
use crate::generation::Viewer;
use crate::progress::Progress;
use crate::report::{Logprobs, Timings, Usage, label};

/// Writes text to stdout as it comes.
///
/// Writing happens off the runtime's thread, so that a reader who does not read keeps neither
/// Ctrl-C nor the connection from being noticed.
#[derive(Debug)]
pub(crate) struct TextView {
    stdout: Stdout,
    progress: Progress,
}

/// Writes events to stdout, one JSON object a line.
#[derive(Debug)]
pub(crate) struct LineView {
    stdout: Stdout,
}

/// Shows nothing but the progress of a long prefill.
impl Viewer for Progress {
    async fn show(&mut self, event: &Event) -> Result<(), Failure> {
        match event {
            Event::PrefillProgress(progress) => Progress::show(self, progress),
            _ => self.clear(),
        }
        Ok(())
    }
}

impl TextView {
    pub(crate) fn new(progress: Progress) -> Self {
        Self { stdout: tokio::io::stdout(), progress }
    }
}

impl Viewer for TextView {
    async fn show(&mut self, event: &Event) -> Result<(), Failure> {
        Viewer::show(&mut self.progress, event).await?;
        if let Event::Delta(delta) = event
            && !delta.text.is_empty()
        {
            self.stdout.write_all(delta.text.as_bytes()).await?;
            self.stdout.flush().await?;
        }
        Ok(())
    }
}

impl LineView {
    pub(crate) fn new() -> Self {
        Self { stdout: tokio::io::stdout() }
    }
}

impl Viewer for LineView {
    async fn show(&mut self, event: &Event) -> Result<(), Failure> {
        let line = format!("{}\n", json(event));
        self.stdout.write_all(line.as_bytes()).await?;
        self.stdout.flush().await?;
        Ok(())
    }
}

/// An event as JSON: its name, then its fields as the protocol names them.
fn json(event: &Event) -> serde_json::Value {
    match event {
        Event::Admitted(admitted) => admitted_json(admitted),
        Event::PrefillProgress(progress) => json!({
            "event": "prefill_progress",
            "done_tokens": progress.done_tokens,
            "total_tokens": progress.total_tokens,
        }),
        Event::Delta(delta) => delta_json(delta),
        Event::Done(done) => done_json(done),
    }
}

fn admitted_json(admitted: &Admitted) -> serde_json::Value {
    json!({
        "event": "admitted",
        "model": admitted.model,
        "prompt_tokens": admitted.prompt_tokens,
        "max_tokens": admitted.max_tokens,
        "queue_ms": admitted.queue_ms,
        "verdict": label(admitted.verdict()),
        "reason": label(admitted.reason()),
        "divergence": admitted.divergence.clone().map(crate::report::Divergence::from),
        "warnings": admitted.warnings,
        "prompt_token_ids": admitted.prompt_token_ids,
        "seed": admitted.seed,
    })
}

fn delta_json(delta: &Delta) -> serde_json::Value {
    json!({
        "event": "delta",
        "text": delta.text,
        "token_ids": delta.token_ids,
        "logprobs": delta.logprobs.iter().cloned().map(Logprobs::from).collect::<Vec<_>>(),
    })
}

fn done_json(done: &Done) -> serde_json::Value {
    json!({
        "event": "done",
        "finish_reason": label(done.finish_reason()),
        "verdict": label(done.verdict()),
        "reason": label(done.reason()),
        "divergence": done.divergence.clone().map(crate::report::Divergence::from),
        "usage": Usage::from(done.usage.unwrap_or_default()),
        "timings": Timings::from(done.timings.unwrap_or_default()),
        "numerics": done.numerics,
        "prompt_key": done.prompt_key,
        "warnings": done.warnings,
    })
}
