//! What the daemon asks of itself: the prompts that `[[warm]]` tables of its configuration name.
//!
//! At start they are computed one after another, with low priority, in the user's own namespace and
//! by the way of every request, which loads their models. One that is refused for a reason that
//! passes, because other models take the room say, lets the others go first and is tried again until
//! it is warm; one that is refused for good, when its model has been loaded anew. Those that are to
//! be pinned are, and their leases are renewed for as long as the daemon lives. A prompt file is read
//! once in the life of a model: what is edited counts from the next start on.

use std::convert::Infallible;
use std::future::pending;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use tinygpt_proto::MAX_MESSAGE_BYTES;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::Daemon;
use super::clock::Clock;
use super::order::{Order, Wish};
use super::peer::Peer;
use super::prompt::Prompt;
use super::refusal::Refusal;
use crate::engine::Event;
use crate::engine::event::{Done, Finish};
use crate::engine::job::{Persist, Policy, Priority};
use crate::sys::file;

/// How long to wait before a prompt is tried again that was refused; twice as long each time.
const FIRST: Duration = Duration::from_secs(1);
/// No longer than this.
const LONGEST: Duration = Duration::from_secs(300);

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
    #[error("{0}")]
    Refused(#[from] Refusal),
    #[error("the daemon ends")]
    Ending,
}

/// Keeps one prompt warm.
#[derive(Debug, Clone, Copy)]
struct Keeper<'d> {
    daemon: &'d Daemon,
    warmth: &'d Warmth,
    /// Whose turn it is to compute.
    turn: &'d Mutex<()>,
}

/// A prompt that was computed.
#[derive(Debug)]
struct Warm {
    key: String,
    /// The model that computed it, by its loads.
    generation: u64,
    /// When its lease ends, if it has one.
    until: Option<SystemTime>,
}

impl Daemon {
    /// Computes what the configuration names, and keeps it, until the daemon drains.
    pub(super) async fn keep_warm(&self) -> Infallible {
        let turn = Mutex::new(());
        let keeper = |warmth| Keeper { daemon: self, warmth, turn: &turn };
        join_all(self.facts.warm.iter().map(|warmth| keeper(warmth).keep())).await;
        pending().await
    }
}

impl Keeper<'_> {
    /// `None` when there is nothing more to be done.
    async fn keep(self) -> Option<Infallible> {
        let (prompt, path) = (self.warmth.prompt_file.display(), self.warmth.prompt_file.clone());
        let read = spawn_blocking(move || text(&path)).await.map_err(io::Error::other).flatten();
        let text: Arc<str> = match read {
            Ok(text) => text.into(),
            Err(error) => {
                tracing::error!(%prompt, %error, "a prompt was not warmed: cannot read it");
                return None;
            }
        };
        loop {
            let warm = self.warm_up(&text).await?;
            self.renew(warm, self.warmth.pin?).await?;
        }
    }

    /// Computes the prompt, and pins it if that is wanted; a drain ends that, and what was computed
    /// stays. Whatever goes wrong is said in the log, and what passes is said once.
    async fn warm_up(&self, text: &Arc<str>) -> Option<Warm> {
        let (prompt, model) = (self.warmth.prompt_file.display(), &self.warmth.model);
        // A daemon that is busy with this is not idle; one that tries again may be.
        let mut visit = Some(self.daemon.presence.enter());
        let mut refused = 0;
        loop {
            let before = self.generation();
            match self.unless_draining(self.compute(text)).await? {
                Ok(warm) => {
                    tracing::info!(%prompt, %model, key = warm.key, "warm");
                    return Some(warm);
                }
                Err(Cold::Ending) => return None,
                // A large model takes longer than a client would wait.
                Err(Cold::Refused(Refusal::Loading { .. })) => {
                    self.unless_draining(sleep(FIRST)).await?
                }
                Err(Cold::Refused(refusal)) if refusal.passes() => {
                    if refused == 0 {
                        tracing::warn!(%prompt, %model, %refusal, "not warm yet: trying until it is");
                    }
                    drop(visit.take());
                    self.unless_draining(sleep(pause(refused))).await?;
                    refused += 1;
                }
                Err(error) => {
                    tracing::error!(%prompt, %model, %error, "a prompt was not warmed");
                    drop(visit.take());
                    self.another_load(before).await?;
                    refused = 0;
                }
            }
        }
    }

    /// Computes the prompt, when nobody else computes one.
    async fn compute(&self, text: &Arc<str>) -> Result<Warm, Cold> {
        let _turn = self.turn.lock().await;
        let Self { daemon, warmth, .. } = *self;
        let peer = Peer::own();
        let order = Order {
            prompt: Prompt::Text(Arc::clone(text)),
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
        let (mut running, mut flight) = daemon.place(order, &warmth.model).await?;
        let _visit = daemon.presence.enter();
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
        let (key, generation) = (key.to_string(), placed.served.info.generation);
        let until = warmth.pin.map(|lasts| SystemTime::now() + lasts);
        if let Some(lasts) = warmth.pin {
            daemon.pin(peer, &key, lasts).await?;
        }
        Ok(Warm { key, generation, until })
    }

    /// Renews a lease over and over, until a model that was loaded anew is to compute the prompt
    /// again.
    async fn renew(&self, mut warm: Warm, lasts: Duration) -> Option<()> {
        let prompt = self.warmth.prompt_file.display();
        loop {
            let due = self.unless_draining(sleep(lasts / RENEWAL));
            tokio::select! {
                slept = due => slept?,
                loaded = self.another_load(Some(warm.generation)) => return loaded,
            }
            let until = SystemTime::now() + lasts;
            match self.daemon.pin(Peer::own(), &warm.key, lasts).await {
                Ok(_) => warm.until = Some(until),
                // What was in memory only went with the model, and is computed again with the next.
                Err(Refusal::UnknownKey { .. }) if self.generation() != Some(warm.generation) => {}
                // The machine slept for longer than the lease lasted.
                Err(Refusal::UnknownKey { .. }) if warm.has_lapsed() => return Some(()),
                Err(Refusal::UnknownKey { .. }) => {
                    tracing::info!(%prompt, "removed, and not computed again");
                    return None;
                }
                Err(refusal) => tracing::warn!(%prompt, %refusal, "its pin was not renewed"),
            }
        }
    }

    /// What `future` gives; `None` when the daemon drains before.
    async fn unless_draining<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        self.daemon.drain.run_until_cancelled(future).await
    }

    /// Waits until the model was loaded by another load than `generation`; `None` when the daemon
    /// drains before.
    async fn another_load(&self, generation: Option<u64>) -> Option<()> {
        let slot = self.daemon.models.find(&self.warmth.model).ok()?;
        self.unless_draining(slot.another_load(generation)).await
    }

    /// The load that the model is there by, when it is.
    fn generation(&self) -> Option<u64> {
        self.daemon.models.find(&self.warmth.model).ok()?.generation()
    }
}

impl Warm {
    fn has_lapsed(&self) -> bool {
        self.until.is_some_and(|until| until < SystemTime::now())
    }
}

/// How long to wait after a refusal with so many before it.
fn pause(refused: u32) -> Duration {
    LONGEST.min(FIRST * 2_u32.saturating_pow(refused))
}

/// The text of a file that could be sent as a prompt.
fn text(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    file::open(path)?.take(MAX_MESSAGE_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > MAX_MESSAGE_BYTES {
        let words = format!("it has more than {MAX_MESSAGE_BYTES} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, words));
    }
    String::from_utf8(bytes).map_err(|error| {
        let words = format!("it is not UTF-8 at byte {}", error.utf8_error().valid_up_to());
        io::Error::new(io::ErrorKind::InvalidData, words)
    })
}

#[cfg(test)]
mod tests;
