//! `warm`: a prompt computed and kept, for those that will begin with it.

use clap::Args;
use tinygpt_client::connect::Connection;
use tinygpt_proto::v1::sample_response::Event;
use tinygpt_proto::v1::{WarmRequest, warm_response};
use tokio_stream::StreamExt;

use crate::caching::CachingArgs;
use crate::cli::{AdapterArg, ModelArg, PriorityArg, StartArg};
use crate::failure::{Failure, Outcome};
use crate::generation::{Generation, Viewer};
use crate::patience;
use crate::progress::Progress;
use crate::prompt::PromptArgs;
use crate::render;
use crate::session::Session;
use crate::summary;

const SCHEMA: &str = "tinygpt.warm/1";

/// Computes a prompt, a system prompt for example, and keeps it.
#[derive(Debug, Args)]
pub(crate) struct WarmArgs {
    #[command(flatten)]
    prompt: PromptArgs,
    #[command(flatten)]
    model: ModelArg,
    #[command(flatten)]
    adapter: AdapterArg,
    #[command(flatten)]
    priority: PriorityArg,
    #[command(flatten)]
    caching: CachingArgs,
    #[command(flatten)]
    start: StartArg,
}

pub(crate) async fn run(args: WarmArgs, session: &Session) -> Outcome {
    let request = WarmRequest {
        model: args.model.name,
        adapter: args.adapter.name,
        prompt: Some(args.prompt.read()?.into()),
        cache_policy: args.caching.reuse.policy().into(),
        persist: args.caching.persist().into(),
        priority: args.priority.wire().into(),
        namespace: args.caching.reuse.namespace,
        kv_dtype: args.caching.reuse.kv_dtype,
    };
    let connection = session.connect_or_start(args.start.forced).await?;
    let mut progress = Progress::new(session.quiet);
    let generation = warm(&connection, request, session, &mut progress).await?;
    if session.json {
        render::json(&generation.report(SCHEMA, false, false))?;
    } else {
        render::line(&generation.done.prompt_key)?;
        summary::tell(session, &generation);
    }
    Ok(generation.exit())
}

async fn warm(
    connection: &Connection,
    request: WarmRequest,
    session: &Session,
    viewer: &mut impl Viewer,
) -> Result<Generation, Failure> {
    let call = async |left| {
        let request = session.request_within(request.clone(), left)?;
        let response = connection.inference().warm(request).await?;
        Ok(session.accept(response))
    };
    let stream = patience::while_loading(connection, session, &request.model, call).await?;
    let events = stream.map(|message| message.map(|message| (0, message.event.map(as_sampled))));
    Ok(Generation::follow(events, viewer, 1, session.timeout).await?.remove(0))
}

/// A warm-up is a generation without deltas.
fn as_sampled(event: warm_response::Event) -> Event {
    match event {
        warm_response::Event::Admitted(admitted) => Event::Admitted(admitted),
        warm_response::Event::PrefillProgress(progress) => Event::PrefillProgress(progress),
        warm_response::Event::Done(done) => Event::Done(done),
    }
}
