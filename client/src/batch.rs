//! `sample --batch`: JSON lines in, JSON lines out, in the order of the input.
//!
//! A line is an object with `prompt` or `token_ids`, if you like an `id` of any kind, a `model` and
//! an `adapter`, and any of the sampling parameters by their names in the protocol, which then stand
//! in for the flags. An answer has the line's `index` (from 0; blank lines count and have no answer)
//! and `id`, and either what `sample --json` prints or an `error`. A bad line is answered like any
//! other and stops nothing; the exit status tells that there was one, or one that the daemon
//! cancelled.

use std::path::Path;
use std::pin::{Pin, pin};

use futures_util::{Stream, StreamExt, stream};
use indicatif::HumanCount;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tinygpt_client::connect::Connection;
use tinygpt_client::exit::Exit;
use tinygpt_proto::v1::{FinishReason, SampleRequest};
use tinygpt_proto::{Label, MAX_MESSAGE_BYTES};
use tokio::fs::File;
use tokio::io::{self, AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tonic::Code;

use crate::cli::{AdapterArg, ModelArg};
use crate::failure::{Failure, Outcome, code_name, reason};
use crate::patience;
use crate::prompt::Prompt;
use crate::sample::{SampleOptions, generate};
use crate::session::Session;

/// One line of input.
type Line = Map<String, Value>;

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
    Report(Map<String, Value>),
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
    let numbered = lines(open(path).await?).enumerate();
    let answers = numbered
        .filter(|(_, line)| std::future::ready(!is_blank(line)))
        .map(async |(index, line)| Ok(batch.answer(index, &line?).await))
        .buffered(jobs.max(1).into());
    let mut answers = pin!(answers);
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

async fn open(path: &Path) -> Result<Pin<Box<dyn AsyncBufRead>>, Failure> {
    if path == Path::new("-") {
        return Ok(Box::pin(BufReader::new(io::stdin())));
    }
    match File::open(path).await {
        Ok(file) => Ok(Box::pin(BufReader::new(file))),
        Err(source) => Err(Failure::Input { path: path.to_owned(), source }),
    }
}

/// The lines of a file. Reading ends at a line that no message could hold, for some files never
/// end.
fn lines(file: Pin<Box<dyn AsyncBufRead>>) -> impl Stream<Item = io::Result<Vec<u8>>> {
    const MOST: u64 = MAX_MESSAGE_BYTES as u64;
    stream::try_unfold(file, async |mut file| {
        let mut line = Vec::new();
        let bytes = (&mut file).take(MOST + 1).read_until(b'\n', &mut line).await?;
        if bytes as u64 > MOST {
            let words = format!("a line has more than {} bytes", HumanCount(MOST));
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, words));
        }
        Ok((bytes > 0).then_some((line, file)))
    })
}

fn is_blank(line: &io::Result<Vec<u8>>) -> bool {
    line.as_ref().is_ok_and(|line| line.trim_ascii().is_empty())
}

impl Content {
    /// Whether it is what the line asked for; what the daemon cancelled is not.
    fn is_whole(&self) -> bool {
        match self {
            Self::Report(report) => report["finish_reason"] != FinishReason::Cancelled.label(),
            Self::Error { .. } => false,
        }
    }
}

impl Batch<'_> {
    async fn answer(&self, index: usize, line: &[u8]) -> Answer {
        let (id, result) = match serde_json::from_slice::<Line>(line) {
            Ok(mut line) => (line.remove("id").unwrap_or_default(), self.generate(line).await),
            Err(error) => (Value::Null, Err(Failure::Usage(without_line(&error)))),
        };
        let content = match result {
            Ok(report) => Content::Report(report),
            Err(failure) => Content::Error { error: failure.into() },
        };
        Answer { index, id, content }
    }

    async fn generate(&self, line: Line) -> Result<Map<String, Value>, Failure> {
        let (request, options) = self.request(line)?;
        let call = async || generate(self.connection, request.clone(), self.session, &mut ()).await;
        let texts = patience::while_full(self.session, call).await?;
        Ok(options.report(&texts))
    }

    /// The flags' request with what the line has to say about it.
    fn request(&self, mut line: Line) -> Result<(SampleRequest, SampleOptions), Failure> {
        let prompt = match (take(&mut line, "prompt")?, take(&mut line, "token_ids")?) {
            (Some(text), None) => Prompt::Text(text),
            (None, Some(ids)) => Prompt::Ids(ids),
            _ => return Err(Failure::Usage("give either prompt or token_ids".into())),
        };
        let mut options = self.options.clone();
        if let Some(name) = take(&mut line, "model")? {
            options.model = ModelArg { name };
        }
        if let Some(name) = take(&mut line, "adapter")? {
            options.adapter = AdapterArg { name };
        }
        options.sampling = options.sampling.with(line)?;
        Ok((options.request(prompt), options))
    }
}

/// Takes a field out of a line; null is as good as nothing.
fn take<T: DeserializeOwned>(line: &mut Line, name: &str) -> Result<Option<T>, Failure> {
    let value = line.remove(name).unwrap_or_default();
    serde_json::from_value(value).map_err(|error| Failure::Usage(format!("{name}: {error}")))
}

/// An error in words that do not call every line the first.
fn without_line(error: &serde_json::Error) -> String {
    error.to_string().replace(" at line 1 column ", " at column ")
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
