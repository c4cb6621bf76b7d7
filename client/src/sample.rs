//! `sample`: text from a prompt.

use std::io::{self, IsTerminal};
use std::path::PathBuf;

use clap::Args;
use serde_json::{Map, Value};
use tinygpt_client::connect::Connection;
use tinygpt_client::exit::Exit;
use tinygpt_proto::v1::SampleRequest;
use tokio_stream::StreamExt;

use crate::batch;
use crate::caching::CachingArgs;
use crate::cli::{AdapterArg, ModelArg, PriorityArg, StartArg, heading};
use crate::failure::{Failure, Outcome};
use crate::generation::{Generation, Viewer};
use crate::patience;
use crate::progress::Progress;
use crate::prompt::{Prompt, PromptArgs};
use crate::render;
use crate::sampling::SamplingArgs;
use crate::session::Session;
use crate::summary;
use crate::view::{LineView, TextView};

pub(crate) const SCHEMA: &str = "tinygpt.sample/1";

/// Generates text from a prompt: streamed to stdout as it comes, everything else to stderr.
#[derive(Debug, Args)]
pub(crate) struct SampleArgs {
    #[command(flatten)]
    prompt: PromptArgs,
    /// Read prompts from a file, one JSON object a line, and answer likewise; - is stdin [default: one prompt]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["PromptArgs", "TextArgs", "json_stream"], help_heading = heading::PROMPT)]
    batch: Option<PathBuf>,
    /// How many lines of a batch to run at once
    #[arg(
        long,
        value_name = "N",
        default_value_t = 4,
        requires = "batch",
        allow_negative_numbers = true,
        help_heading = heading::PROMPT
    )]
    jobs: u16,
    #[command(flatten)]
    pub(crate) options: SampleOptions,
    /// Print every event as one line of JSON
    #[arg(long, conflicts_with = "json", help_heading = heading::OUTPUT)]
    json_stream: bool,
    #[command(flatten)]
    start: StartArg,
}

/// All about a request but its prompt.
#[derive(Debug, Clone, Args)]
pub(crate) struct SampleOptions {
    #[command(flatten)]
    pub(crate) model: ModelArg,
    #[command(flatten)]
    pub(crate) adapter: AdapterArg,
    #[command(flatten)]
    pub(crate) priority: PriorityArg,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) caching: CachingArgs,
    /// Report the prompt's token ids
    #[arg(long, help_heading = heading::OUTPUT)]
    pub(crate) echo_ids: bool,
}

pub(crate) async fn run(args: SampleArgs, session: &Session) -> Outcome {
    if let Some(path) = &args.batch {
        let connection = session.connect_or_start(args.start.forced).await?;
        return batch::run(path, args.jobs, &args.options, &connection, session).await;
    }
    let request = args.options.request(args.prompt.read()?);
    let connection = session.connect_or_start(args.start.forced).await?;
    let mut progress = Progress::new(session.quiet);
    if args.json_stream {
        let texts = generate(&connection, request, session, &mut LineView::new()).await?;
        return Ok(exit(&texts));
    }
    if session.json {
        let texts = generate(&connection, request, session, &mut progress).await?;
        render::json(&args.options.report(&texts))?;
        return Ok(exit(&texts));
    }
    let texts = generate(&connection, request, session, &mut TextView::new(progress)).await;
    close_line(session, args.options.sampling.n)?;
    let texts = texts?;
    summary::tell(session, &texts[0]);
    for (nth, text) in texts.iter().enumerate().skip(1) {
        session.say(&format!("-- {} of {}", nth + 1, texts.len()));
        render::line(&text.text)?;
        session.say(&summary::line(&text.done));
    }
    Ok(exit(&texts))
}

/// The exit status: that of the first text that did not end well.
fn exit(texts: &[Generation]) -> Exit {
    texts.iter().map(Generation::exit).find(|exit| *exit != Exit::Done).unwrap_or(Exit::Done)
}

impl SampleOptions {
    pub(crate) fn request(&self, prompt: Prompt) -> SampleRequest {
        SampleRequest {
            model: self.model.name.clone(),
            adapter: self.adapter.name.clone(),
            prompt: Some(prompt.into()),
            sampling: Some(self.sampling.clone().into()),
            cache_policy: self.caching.reuse.policy().into(),
            namespace: self.caching.reuse.namespace.clone(),
            kv_dtype: self.caching.reuse.kv_dtype.clone(),
            persist: self.caching.persist().into(),
            priority: self.priority.wire().into(),
            echo_prompt_ids: self.echo_ids,
        }
    }

    /// The first text as JSON; where several were asked for, all of them are in its `choices`.
    pub(crate) fn report(&self, texts: &[Generation]) -> Map<String, Value> {
        let scored = self.sampling.logprobs.is_some();
        let report = |text: &Generation| text.report(SCHEMA, self.echo_ids, scored);
        let mut first = report(&texts[0]);
        if texts.len() > 1 {
            let all = texts.iter().map(report).map(Value::from).collect();
            first.insert("choices".into(), all);
        }
        first
    }
}

/// Sends a request and follows its events to the end of all its texts, at least one. Dropping the
/// future cancels them in the daemon.
pub(crate) async fn generate(
    connection: &Connection,
    request: SampleRequest,
    session: &Session,
    viewer: &mut impl Viewer,
) -> Result<Vec<Generation>, Failure> {
    let choices = request.sampling.as_ref().map_or(1, |sampling| sampling.n);
    let call = async |left| {
        let request = session.request_within(request.clone(), left)?;
        let response = connection.inference().sample(request).await?;
        Ok(session.accept(response))
    };
    let stream = patience::while_loading(connection, session, &request.model, call).await?;
    let events = stream.map(|message| message.map(|message| (message.choice, message.event)));
    Generation::follow(events, viewer, choices, session.timeout).await
}

/// Ends the text's last line where a person reads it, or another text follows; a pipe gets a text
/// alone as it is.
fn close_line(session: &Session, choices: u32) -> Result<(), Failure> {
    if choices > 1 || io::stdout().is_terminal() && !session.quiet {
        render::line("")?;
    }
    Ok(())
}
