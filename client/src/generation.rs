//! The events of a request's generations, followed to the end.

use std::time::Duration;

use serde_json::{Map, Value};
use tinygpt_client::exit::Exit;
use tinygpt_proto::v1::sample_response::Event;
use tinygpt_proto::v1::{Admitted, Delta, Done, FinishReason, TokenLogprobs};
use tokio::time::{Instant, timeout_at};
use tokio_stream::{Stream, StreamExt};
use tonic::Status;

use crate::failure::Failure;
use crate::json;

/// How much later than its deadline a daemon may answer before this side gives up by itself.
const GRACE: Duration = Duration::from_secs(1);

/// A generation that has ended: one of the texts that a request asked for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Generation {
    pub(crate) admitted: Admitted,
    pub(crate) text: String,
    pub(crate) token_ids: Vec<u32>,
    pub(crate) logprobs: Vec<TokenLogprobs>,
    pub(crate) done: Done,
}

/// What happens to each event on its way.
pub(crate) trait Viewer {
    /// Shows an event of the choice with this number.
    async fn show(&mut self, choice: u32, event: &Event) -> Result<(), Failure>;
}

/// Takes no notice.
impl Viewer for () {
    async fn show(&mut self, _: u32, _: &Event) -> Result<(), Failure> {
        Ok(())
    }
}

impl Generation {
    /// Follows a stream of events to the end of each of `choices` texts. `limit` is the deadline
    /// that the daemon was given.
    pub(crate) async fn follow(
        mut events: impl Stream<Item = Result<(u32, Option<Event>), Status>> + Unpin,
        viewer: &mut impl Viewer,
        choices: u32,
        limit: Option<Duration>,
    ) -> Result<Vec<Self>, Failure> {
        let patience = limit.map(|limit| (limit, Instant::now() + limit + GRACE));
        let mut open = choices.max(1);
        let mut all = vec![Self::default(); open as usize];
        while let Some(event) = next(&mut events, patience).await? {
            let (choice, Some(event)) = event? else { continue };
            viewer.show(choice, &event).await?;
            let generation = all.get_mut(choice as usize).ok_or(Failure::CutShort)?;
            open -= u32::from(generation.take(event));
            if open == 0 {
                let admitted = all[0].admitted.clone();
                all.iter_mut().for_each(|one| one.admitted.clone_from(&admitted));
                return Ok(all);
            }
        }
        Err(Failure::CutShort)
    }

    /// Adds an event; whether it was the last.
    fn take(&mut self, event: Event) -> bool {
        match event {
            Event::Admitted(admitted) => self.admitted = admitted,
            Event::PrefillProgress(_) => {}
            Event::Delta(delta) => self.extend(delta),
            Event::Done(done) => {
                self.done = done;
                return true;
            }
        }
        false
    }

    fn extend(&mut self, delta: Delta) {
        self.text += &delta.text;
        self.token_ids.extend(delta.token_ids);
        self.logprobs.extend(delta.logprobs);
    }

    /// Things the caller should know, told at admission or at the end.
    pub(crate) fn warnings(&self) -> impl Iterator<Item = &String> {
        let late = self.done.warnings.iter().filter(|w| !self.admitted.warnings.contains(w));
        self.admitted.warnings.iter().chain(late)
    }

    /// The exit status: a daemon that drains ends what it has not finished as CANCELLED.
    pub(crate) fn exit(&self) -> Exit {
        match self.done.finish_reason() {
            FinishReason::Cancelled => Exit::Cancelled,
            _ => Exit::Done,
        }
    }

    /// As JSON: what `Done` says, and before it what led there. `echoed` and `scored` say whether
    /// prompt ids and log-probabilities were asked for.
    pub(crate) fn report(&self, schema: &str, echoed: bool, scored: bool) -> Map<String, Value> {
        let admitted = &self.admitted;
        let mut report = Map::new();
        let mut add = |name: &str, value: Value| report.insert(name.into(), value);
        add("schema", schema.into());
        add("text", (&*self.text).into());
        add("token_ids", (&*self.token_ids).into());
        if echoed {
            add("prompt_token_ids", (&*admitted.prompt_token_ids).into());
        }
        if scored {
            add("logprobs", json::all("TokenLogprobs", &self.logprobs));
        }
        add("model", (&*admitted.model).into());
        add("seed", admitted.seed.into());
        report.extend(json::fields("Done", &self.done));
        report.insert("warnings".into(), self.warnings().map(|words| &**words).collect());
        report
    }
}

/// The next item, or a failure when the daemon outstays its deadline.
async fn next<T>(
    stream: &mut (impl Stream<Item = T> + Unpin),
    patience: Option<(Duration, Instant)>,
) -> Result<Option<T>, Failure> {
    match patience {
        None => Ok(stream.next().await),
        Some((limit, end)) => {
            timeout_at(end, stream.next()).await.map_err(|_| Failure::Overdue(limit))
        }
    }
}
