//! `sample --batch`: JSON lines in, JSON lines out, in the order of the input.
//!
//! A line is an object with `prompt` or `token_ids`, if you like an `id` of any kind and a `model`,
//! and any of the sampling parameters by their names in the protocol, which then stand in for the
//! flags. An answer has the line's `index` (from 0, blank lines not counted) and `id`, and either
//! what `sample --json` prints or an `error`. A bad line is answered like any other and stops
//! nothing; the exit status tells that there was one, or one that the daemon cancelled.

use std::path::Path;
use std::pin::Pin;

use futures_util::StreamExt;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tinygpt_client::connect::Connection;
use tinygpt_client::exit::Exit;
use tinygpt_proto::Label;
use tinygpt_proto::v1::{FinishReason, SampleRequest};
use tokio::fs::File;
use tokio::io::{self, AsyncBufReadExt, AsyncRead, AsyncWriteExt, BufReader};
use tokio_stream::wrappers::SplitStream;
use tonic::Code;

use crate::failure::{Failure, Outcome, code_name, reason};
use crate::prompt::Prompt;
use crate::report::Report;
use crate::sample::{SampleOptions, generate};
use crate::session::Session;

/// One line of input. What is left over are sampling parameters.
#[derive(Debug, Deserialize)]
struct Line {
    #[serde(default)]
    id: Value,
    model: Option<String>,
    prompt: Option<String>,
    token_ids: Option<Vec<u32>>,
    #[serde(flatten)]
    sampling: Map<String, Value>,
}

/// One line of output.
#[derive(Debug, Serialize)]
struct Answer {
    index: usize,
    #[serde(skip_serializing_if = "Value::is_null")]
    id: Value,
    #[serde(flatten)]
    content: Content,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Content {
    Report(Box<Report>),
    Error { error: Problem },
}

/// Why a line has no report.
#[derive(Debug, Serialize)]
struct Problem {
    code: String,
    reason: Option<String>,
    message: String,
}

/// What all lines have in common.
#[derive(Debug)]
struct Batch<'a> {
    options: &'a SampleOptions,
    connection: &'a Connection,
    session: &'a Session,
}

pub(crate) async fn run(
    path: &Path,
    jobs: u16,
    options: &SampleOptions,
    connection: &Connection,
    session: &Session,
) -> Outcome {
    let batch = Batch { options, connection, session };
    let lines = SplitStream::new(BufReader::new(open(path).await?).split(b'\n'));
    let numbered = lines.filter(|line| std::future::ready(!is_blank(line))).enumerate();
    let mut answers = numbered
        .map(async |(index, line)| Ok(batch.answer(index, &line?).await))
        .buffered(jobs.max(1).into());
    let mut stdout = io::stdout();
    let mut exit = Exit::Done;
    while let Some(answer) = answers.next().await {
        let answer: Answer =
            answer.map_err(|source| Failure::Input { path: path.to_owned(), source })?;
        if !answer.content.is_whole() {
            exit = Exit::Partial;
        }
        let mut line = serde_json::to_vec(&answer).map_err(io::Error::from)?;
        line.push(b'\n');
        stdout.write_all(&line).await?;
        stdout.flush().await?;
    }
    Ok(exit)
}

async fn open(path: &Path) -> Result<Pin<Box<dyn AsyncRead>>, Failure> {
    if path == Path::new("-") {
        return Ok(Box::pin(io::stdin()));
    }
    match File::open(path).await {
        Ok(file) => Ok(Box::pin(file)),
        Err(source) => Err(Failure::Input { path: path.to_owned(), source }),
    }
}

fn is_blank(line: &io::Result<Vec<u8>>) -> bool {
    line.as_ref().is_ok_and(|line| line.trim_ascii().is_empty())
}

impl Content {
    /// Whether it is what the line asked for; what the daemon cancelled is not.
    fn is_whole(&self) -> bool {
        match self {
            Self::Report(report) => report.finish_reason != Some(FinishReason::Cancelled.label()),
            Self::Error { .. } => false,
        }
    }
}

impl Batch<'_> {
    async fn answer(&self, index: usize, line: &[u8]) -> Answer {
        let (id, result) = match serde_json::from_slice::<Line>(line) {
            Ok(line) => (line.id.clone(), self.generate(line).await),
            Err(error) => (Value::Null, Err(Failure::Usage(error.to_string()))),
        };
        let content = match result {
            Ok(report) => Content::Report(Box::new(report)),
            Err(failure) => Content::Error { error: failure.into() },
        };
        Answer { index, id, content }
    }

    async fn generate(&self, line: Line) -> Result<Report, Failure> {
        let (request, options) = self.request(line)?;
        let generation = generate(self.connection, request, self.session, &mut ()).await?;
        Ok(options.report(generation))
    }

    /// The flags' request with what the line has to say about it.
    fn request(&self, line: Line) -> Result<(SampleRequest, SampleOptions), Failure> {
        let prompt = match (line.prompt, line.token_ids) {
            (Some(text), None) => Prompt::Text(text),
            (None, Some(ids)) => Prompt::Ids(ids),
            _ => return Err(Failure::Usage("give either prompt or token_ids".into())),
        };
        let sampling = self.options.sampling.with(line.sampling);
        let options = SampleOptions {
            model: line.model.unwrap_or_else(|| self.options.model.clone()),
            sampling: sampling.map_err(|error| Failure::Usage(error.to_string()))?,
            ..self.options.clone()
        };
        Ok((options.request(prompt), options))
    }
}

impl From<Failure> for Problem {
    fn from(failure: Failure) -> Self {
        let (code, reason) = match &failure {
            Failure::Daemon(status) => (status.code(), reason(status)),
            Failure::Usage(_) => (Code::InvalidArgument, None),
            Failure::Overdue(_) => (Code::DeadlineExceeded, None),
            _ => (Code::Unavailable, None),
        };
        Self { code: code_name(code), reason, message: failure.to_string() }
    }
}
