//! `warm`: a prompt computed and kept, for those that will begin with it.

use std::cell::Cell;
use std::time::Duration;

use clap::Args;
use serde_json::{Map, Value};
use tinygpt_client::connect::Connection;
use tinygpt_proto::v1::sample_response::Event;
use tinygpt_proto::v1::{PinResponse, WarmRequest, warm_response};
use tokio_stream::StreamExt;

use crate::cache::pin;
use crate::caching::CachingArgs;
use crate::cli::{AdapterArg, ModelArg, PriorityArg, StartArg, heading, lease};
use crate::failure::{Failure, Outcome};
use crate::generation::{Generation, Viewer};
use crate::json;
use crate::patience;
use crate::progress::Progress;
use crate::prompt::PromptArgs;
use crate::render;
use crate::session::Session;
use crate::summary;
use crate::view::LineView;

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
    /// Keep it from being evicted for so long: 90s, 30m, 12h, 7days, or seconds; at most 30 days [default: not at all]
    #[arg(long, value_name = "TIME", value_parser = lease, help_heading = heading::CACHE)]
    pin: Option<Duration>,
    /// Print every event as one line of JSON
    #[arg(long, conflicts_with = "json", help_heading = heading::OUTPUT)]
    json_stream: bool,
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
        pin: args.pin.and_then(|lasts| prost_types::Duration::try_from(lasts).ok()),
    };
    let connection = session.connect_or_start(args.start.forced).await?;
    let pinned = Cell::new(None);
    if args.json_stream {
        let mut viewer = Lines { view: LineView::new(), pinned: &pinned };
        let generation = warm(&connection, request, session, &mut viewer, &pinned).await?;
        return Ok(generation.exit());
    }
    let mut progress = Progress::new(session.quiet);
    let generation = warm(&connection, request, session, &mut progress, &pinned).await?;
    if session.json {
        render::json(&report(&generation, pinned.get()))?;
    } else {
        render::line(&generation.done.prompt_key)?;
        summary::tell(session, &generation);
        pinned.get().inspect(|pinned| session.say(&pin::text(pinned)));
    }
    Ok(generation.exit())
}

fn report(generation: &Generation, pinned: Option<PinResponse>) -> Map<String, Value> {
    let mut report = generation.report(SCHEMA, false, false);
    let pinned = pinned.map(|pinned| json::fields("PinResponse", &pinned).into());
    report.insert("pinned".into(), pinned.unwrap_or(Value::Null));
    report
}

/// The events of a warm-up as lines of JSON. That of the pin comes before the end.
struct Lines<'a> {
    view: LineView,
    pinned: &'a Cell<Option<PinResponse>>,
}

impl Viewer for Lines<'_> {
    async fn show(&mut self, choice: u32, event: &Event) -> Result<(), Failure> {
        if let Some(pinned) = self.pinned.get().filter(|_| matches!(event, Event::Done(_))) {
            self.view.line("pinned", choice, json::fields("PinResponse", &pinned)).await?;
        }
        self.view.show(choice, event).await
    }
}

/// Follows a warm-up to its end; `pinned` is what became of the pin.
async fn warm(
    connection: &Connection,
    request: WarmRequest,
    session: &Session,
    viewer: &mut impl Viewer,
    pinned: &Cell<Option<PinResponse>>,
) -> Result<Generation, Failure> {
    let call = async |left| {
        let request = session.request_within(request.clone(), left)?;
        let response = connection.inference().warm(request).await?;
        Ok(session.accept(response))
    };
    let stream = patience::while_loading(connection, session, &request.model, call).await?;
    let events = stream.map(|message| {
        message.map(|message| (0, message.event.and_then(|event| as_sampled(event, pinned))))
    });
    Ok(Generation::follow(events, viewer, 1, session.timeout).await?.remove(0))
}

/// A warm-up is a generation without deltas, and maybe with a pin.
fn as_sampled(event: warm_response::Event, pinned: &Cell<Option<PinResponse>>) -> Option<Event> {
    match event {
        warm_response::Event::Admitted(admitted) => Some(Event::Admitted(admitted)),
        warm_response::Event::PrefillProgress(progress) => Some(Event::PrefillProgress(progress)),
        warm_response::Event::Pinned(response) => {
            pinned.set(Some(response));
            None
        }
        warm_response::Event::Done(done) => Some(Event::Done(done)),
    }
}
