//! How a generation is shown while it goes on.

use serde_json::{Map, Value};
use tinygpt_proto::v1::sample_response::Event;
use tokio::io::{self, AsyncWriteExt, Stdout};

use crate::failure::Failure;
use crate::generation::Viewer;
use crate::json;
use crate::progress::Progress;

/// Writes the first text to stdout as it comes.
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
    async fn show(&mut self, _: u32, event: &Event) -> Result<(), Failure> {
        match event {
            Event::PrefillProgress(progress) => Progress::show(self, progress),
            _ => self.clear(),
        }
        Ok(())
    }
}

impl TextView {
    pub(crate) fn new(progress: Progress) -> Self {
        Self { stdout: io::stdout(), progress }
    }
}

impl Viewer for TextView {
    async fn show(&mut self, choice: u32, event: &Event) -> Result<(), Failure> {
        Viewer::show(&mut self.progress, choice, event).await?;
        if let Event::Delta(delta) = event
            && choice == 0
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
        Self { stdout: io::stdout() }
    }

    /// Writes an event: its name and choice, then its fields as the protocol names them.
    pub(crate) async fn line(
        &mut self,
        name: &str,
        choice: u32,
        fields: Map<String, Value>,
    ) -> Result<(), Failure> {
        let head = [("event".to_owned(), name.into()), ("choice".to_owned(), choice.into())];
        let object: Map<_, _> = head.into_iter().chain(fields).collect();
        let mut line = serde_json::to_vec(&object).map_err(io::Error::from)?;
        line.push(b'\n');
        self.stdout.write_all(&line).await?;
        self.stdout.flush().await?;
        Ok(())
    }
}

impl Viewer for LineView {
    async fn show(&mut self, choice: u32, event: &Event) -> Result<(), Failure> {
        let (name, fields) = match event {
            Event::Admitted(admitted) => ("admitted", json::fields("Admitted", admitted)),
            Event::PrefillProgress(progress) => {
                ("prefill_progress", json::fields("PrefillProgress", progress))
            }
            Event::Delta(delta) => ("delta", json::fields("Delta", delta)),
            Event::Done(done) => ("done", json::fields("Done", done)),
        };
        self.line(name, choice, fields).await
    }
}
