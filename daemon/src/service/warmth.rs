//! What the daemon asks of itself: the prompts that `[[warm]]` tables of its configuration name.
//!
//! At start they are computed one after another, with low priority, in the user's own namespace and
//! by the way of every request, which loads their models. Those that are to be pinned are, and their
//! leases are renewed for as long as the daemon lives. A prompt file is read once in the life of a
//! model: what is edited counts from the next start on.

use std::convert::Infallible;
use std::fs::File;
use std::future::pending;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tinygpt_proto::MAX_MESSAGE_BYTES;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, sleep_until};

use super::Daemon;
use super::clock::Clock;
use super::models::Readiness;
use super::order::{Order, Wish};
use super::peer::Peer;
use super::prompt::Prompt;
use super::refusal::Refusal;
use crate::engine::Event;
use crate::engine::event::{Done, Finish};
use crate::engine::job::{Persist, Policy, Priority};

/// How often a prompt is placed again for which there was no place.
const GLANCE: Duration = Duration::from_millis(100);

/// A lease is renewed when this part of it is over.
const RENEWAL: u32 = 2;

/// A prompt to compute at start.
#[derive(Debug, Clone)]
pub struct Warmth {
    /// Name of the model.
    pub model: String,
    /// Where the prompt is, as text that is taken byte for byte.
    pub prompt_file: PathBuf,
    /// Sub-namespace within the user's own.
    pub namespace: String,
    /// Name of the codec; empty for the model's default.
    pub kv_dtype: String,
    /// Name of the adapter; empty for none.
    pub adapter: String,
    /// For how long to pin it; `None` for not at all.
    pub pin: Option<Duration>,
}

/// Why a prompt was not computed.
#[derive(Debug, thiserror::Error)]
enum Cold {
    #[error("cannot read it: {0}")]
    Unreadable(#[from] io::Error),
    #[error("{0}")]
    Refused(#[from] Refusal),
    #[error("the daemon ends")]
    Ending,
}

/// A pinned prompt.
#[derive(Debug)]
struct Pinned<'a> {
    warmth: &'a Warmth,
    lasts: Duration,
    key: String,
    /// The model that computed it, by its loads.
    generation: u64,
    /// When to renew its lease.
    due: Instant,
}

impl Daemon {
    /// Computes what the configuration names, and keeps it, for ever.
    pub(super) async fn keep_warm(&self) -> Infallible {
        let mut pinned = Vec::new();
        for warmth in &self.facts.warm {
            pinned.extend(self.warm_up(warmth).await);
        }
        while let Some(next) = earliest(&mut pinned) {
            sleep_until(next.due).await;
            let warmth = next.warmth;
            match self.renew(next).await {
                Ok(()) => {}
                Err(Refusal::UnknownKey { .. }) => {
                    tracing::info!(prompt = %warmth.prompt_file.display(), "gone, and not kept");
                    pinned.retain(|pinned| !std::ptr::eq(pinned.warmth, warmth));
                }
                Err(refusal) => {
                    let prompt = warmth.prompt_file.display();
                    tracing::warn!(%prompt, %refusal, "its pin was not renewed");
                }
            }
        }
        pending().await
    }

    /// Computes a prompt, and pins it if that is wanted. Whatever goes wrong is said in the log.
    async fn warm_up<'a>(&self, warmth: &'a Warmth) -> Option<Pinned<'a>> {
        let (prompt, model) = (warmth.prompt_file.display(), &warmth.model);
        match self.compute(warmth).await {
            Ok((key, generation)) => {
                tracing::info!(%prompt, %model, %key, "warm");
                let lasts = warmth.pin?;
                let due = Instant::now() + lasts / RENEWAL;
                Some(Pinned { warmth, lasts, key, generation, due })
            }
            Err(Cold::Ending) => None,
            Err(error) => {
                tracing::error!(%prompt, %model, %error, "a prompt was not warmed");
                None
            }
        }
    }

    /// The key of the prompt, and the generation of the model that computed it.
    async fn compute(&self, warmth: &Warmth) -> Result<(String, u64), Cold> {
        let path = warmth.prompt_file.clone();
        let read = spawn_blocking(move || text(&path)).await;
        let text: Arc<str> = read.map_err(io::Error::other)??.into();
        // Nobody calls an idle daemon that is busy with this.
        let _visit = self.presence.enter();
        loop {
            match self.run_warmth(warmth, Arc::clone(&text)).await {
                // A large model takes longer than a client would wait.
                Err(Cold::Refused(Refusal::Loading { .. } | Refusal::QueueFull { .. })) => {
                    sleep(GLANCE).await;
                }
                done => return done,
            }
        }
    }

    async fn run_warmth(&self, warmth: &Warmth, text: Arc<str>) -> Result<(String, u64), Cold> {
        let peer = Peer::own();
        let order = Order {
            prompt: Prompt::Text(text),
            wish: Wish::prefill(),
            caller: peer.caller(Priority::Low),
            namespace: peer.namespace(&warmth.namespace),
            kv_dtype: warmth.kv_dtype.clone(),
            adapter: warmth.adapter.clone(),
            policy: Policy::Use,
            persist: Persist::Behind,
            pin: warmth.pin,
            clock: Clock::endless(),
        };
        let (mut running, mut flight) = self.place(order, &warmth.model).await?;
        let done = loop {
            let event = running.next().await.inspect_err(|_| flight.failed())?;
            if let Event::Done(done) = event {
                break done;
            }
        };
        let placed = running.placed();
        flight.finished(placed.tokens.ids.len(), &done);
        let Done { finish: Finish::Stop | Finish::Length, key: Some(key), .. } = done else {
            return Err(Cold::Ending);
        };
        let key = key.to_string();
        if let Some(lasts) = warmth.pin {
            self.pin(peer, &key, lasts).await?;
        }
        Ok((key, placed.served.info.generation))
    }

    /// Extends a lease; a model that was loaded anew computes the prompt again.
    async fn renew(&self, pinned: &mut Pinned<'_>) -> Result<(), Refusal> {
        pinned.due = Instant::now() + pinned.lasts / RENEWAL;
        let slot = self.models.find(&pinned.warmth.model)?;
        let loaded = match slot.readiness() {
            Readiness::Ready(served) => Some(served.info.generation),
            _ => None,
        };
        if loaded.is_some_and(|generation| generation != pinned.generation) {
            if let Some(again) = self.warm_up(pinned.warmth).await {
                (pinned.key, pinned.generation) = (again.key, again.generation);
            }
            return Ok(());
        }
        match self.pin(Peer::own(), &pinned.key, pinned.lasts).await {
            // What was in memory only went with the model, and is computed again with the next.
            Err(Refusal::UnknownKey { .. }) if loaded.is_none() => Ok(()),
            renewed => renewed.map(drop),
        }
    }
}

fn earliest<'a, 'b>(pinned: &'b mut [Pinned<'a>]) -> Option<&'b mut Pinned<'a>> {
    pinned.iter_mut().min_by_key(|pinned| pinned.due)
}

/// The text of a file that could be sent as a prompt: some files never end.
fn text(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_MESSAGE_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > MAX_MESSAGE_BYTES {
        let words = format!("it has more than {MAX_MESSAGE_BYTES} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, words));
    }
    String::from_utf8(bytes).map_err(|error| {
        let words = format!("it is not UTF-8 at byte {}", error.utf8_error().valid_up_to());
        io::Error::new(io::ErrorKind::InvalidData, words)
    })
}
