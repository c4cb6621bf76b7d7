//! A model by name, in memory or not.

use std::future::pending;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::follow::follow;
use super::{Readiness, Served};
use crate::engine::{EngineHandle, ModelInfo, Source, State};
use crate::service::presence::{Presence, Visit};
use crate::service::refusal::{Count, Refusal};

/// How long a request waits for a model that is loading. A client that starts the daemon itself
/// needs not know that it takes a moment.
const PATIENCE: Duration = Duration::from_secs(30);

/// Nobody has looked how many bytes it takes.
const UNKNOWN: u64 = u64::MAX;

/// An engine that runs shows a sign of life more often: a step is a fraction of a second.
const SIGN_OF_LIFE: Duration = Duration::from_secs(3);

/// A model by name, in memory or not.
#[derive(Debug, Clone)]
pub struct Slot {
    engine: EngineHandle,
    readiness: watch::Receiver<Readiness>,
    /// The requests that have it or wait for it.
    pub(super) presence: Presence,
    /// Those that wait for it. One that has had it and is about to end wants it no more.
    waiting: Presence,
    /// Bytes that its weights took when they were loaded last; before that, those of its files once
    /// somebody has looked, and [`UNKNOWN`] before.
    expected: Arc<AtomicU64>,
    /// Why it has to wait.
    shortage: Arc<watch::Sender<Option<Shortage>>>,
    /// Tells whoever tends the models that one is wanted.
    wake: Arc<Notify>,
    /// Most bytes of weights of all models.
    limit: Option<u64>,
}

/// There is no room for a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shortage {
    /// What it takes.
    pub bytes: u64,
    /// What the others take.
    pub taken: u64,
    /// Most that all may take.
    pub limit: u64,
}

/// A loaded model and its tokenizer, for a request: it stays in memory for as long as this lives,
/// unless somebody asks for its end.
#[derive(Debug)]
pub struct Lease {
    served: Arc<Served>,
    _visit: Visit,
}

impl Deref for Lease {
    type Target = Arc<Served>;

    fn deref(&self) -> &Arc<Served> {
        &self.served
    }
}

impl Slot {
    /// Follows `engine`, and tells `changes` of each change in its readiness.
    pub(super) fn new(
        engine: EngineHandle,
        changes: Arc<watch::Sender<()>>,
        wake: Arc<Notify>,
        limit: Option<u64>,
    ) -> Self {
        let expected = Arc::new(AtomicU64::new(UNKNOWN));
        let readiness = follow(engine.clone(), Arc::clone(&expected), changes);
        let shortage = Arc::new(watch::channel(None).0);
        let (presence, waiting) = (Presence::default(), Presence::default());
        Self { engine, readiness, presence, waiting, expected, shortage, wake, limit }
    }

    /// The engine behind it.
    pub fn engine(&self) -> &EngineHandle {
        &self.engine
    }

    fn name(&self) -> String {
        self.engine.name().to_owned()
    }

    /// Whether it can serve, now. An engine that gives no sign of life cannot.
    pub fn readiness(&self) -> Readiness {
        let readiness = self.readiness.borrow().clone();
        match readiness {
            Readiness::Ready(_) if self.engine.is_stuck() => Readiness::Stopped,
            readiness => readiness,
        }
    }

    /// What is known of the model: everything while it is loaded, what was so when it was loaded
    /// last while it is not.
    pub fn info(&self) -> Option<Arc<ModelInfo>> {
        match &*self.readiness.borrow() {
            Readiness::Ready(served) => Some(Arc::clone(&served.info)),
            Readiness::Unloaded(info) => info.clone(),
            _ => None,
        }
    }

    /// The model, loaded if need be and waited for; until a moment before `deadline` at most, since
    /// an answer after it is not heard.
    ///
    /// # Errors
    /// When it cannot serve, or not in time.
    pub async fn served(&self, deadline: Option<Instant>) -> Result<Lease, Refusal> {
        let visit = self.presence.enter();
        let _waits = self.waiting.enter();
        if self.engine.is_stuck() {
            return Err(Refusal::Stuck { name: self.name(), silence: self.engine.silence() });
        }
        let served = match timeout(patience(deadline), self.arrival()).await {
            Ok(arrived) => arrived?,
            Err(_) => return Err(self.late()),
        };
        Ok(Lease { served, _visit: visit })
    }

    /// Waits until the model is there. An engine that has just begun to load or to unload is not
    /// believed to be ready because nobody has heard of it yet.
    async fn arrival(&self) -> Result<Arc<Served>, Refusal> {
        if !self.engine.is_ready() {
            self.estimate().await?;
            self.wake.notify_one();
        }
        let mut readiness = self.readiness.clone();
        let settled = readiness.wait_for(|readiness| match readiness {
            Readiness::Loading | Readiness::Unloading | Readiness::Unloaded(_) => false,
            Readiness::Ready(_) => self.engine.is_ready(),
            Readiness::Failed(_) | Readiness::Stopped => true,
        });
        match settled.await.as_deref() {
            Ok(Readiness::Ready(served)) => Ok(Arc::clone(served)),
            Ok(Readiness::Failed(why)) => {
                Err(Refusal::ModelFailed { name: self.name(), why: why.clone() })
            }
            _ => Err(Refusal::Stopped { name: self.name() }),
        }
    }

    /// Learns how much room it needs, where there is a limit.
    async fn estimate(&self) -> Result<(), Refusal> {
        let Some(limit) = self.limit else { return Ok(()) };
        self.survey().await;
        let bytes = self.expected();
        if bytes > limit {
            let (bytes, limit) = (Count(bytes), Count(limit));
            return Err(Refusal::ModelTooLarge { name: self.name(), bytes, limit });
        }
        Ok(())
    }

    /// Takes it to need the bytes of its files, unless more is known.
    pub(super) async fn survey(&self) {
        if self.is_estimated() {
            return;
        }
        let path = self.engine.path().map(Path::to_owned);
        let look = move || path.as_deref().map(Source::file_bytes);
        let bytes = spawn_blocking(look).await.ok().flatten().unwrap_or(0);
        // Whoever has loaded it meanwhile knows better.
        let _ = self.expected.compare_exchange(UNKNOWN, bytes, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Bytes that it takes, or is thought to take; 0 when nobody has asked.
    pub(super) fn expected(&self) -> u64 {
        if self.is_estimated() { self.expected.load(Ordering::Acquire) } else { 0 }
    }

    fn is_estimated(&self) -> bool {
        self.expected.load(Ordering::Acquire) != UNKNOWN
    }

    /// Whether a request waits for a model that is out of memory, and knows how much it needs.
    pub(super) fn is_wanted(&self) -> bool {
        let out = matches!(*self.engine.state().borrow(), State::Unloaded);
        let known = self.limit.is_none() || self.is_estimated();
        out && known && !self.engine.is_ordered() && self.waiting.is_attended()
    }

    pub(super) fn tell_shortage(&self, shortage: Option<Shortage>) {
        self.shortage.send_replace(shortage);
    }

    /// Why it is not there in time.
    fn late(&self) -> Refusal {
        let out = matches!(*self.engine.state().borrow(), State::Unloaded);
        let name = self.name();
        match *self.shortage.borrow() {
            Some(Shortage { bytes, taken, limit }) if out => Refusal::NoRoom {
                name,
                bytes: Count(bytes),
                taken: Count(taken),
                limit: Count(limit),
            },
            _ => Refusal::Loading { name },
        }
    }

    /// Has the model go when its requests have ended, and waits for that.
    ///
    /// # Errors
    /// When they do not end in time: it goes all the same, later.
    pub async fn unload(&self, deadline: Option<Instant>) -> Result<(), Refusal> {
        if matches!(*self.engine.state().borrow(), State::Unloaded | State::Failed(_)) {
            return Ok(());
        }
        self.engine.unload();
        let mut state = self.engine.state();
        let gone = state.wait_for(|state| match state {
            State::Ready(_) => !self.engine.is_ordered(),
            State::Unloading => false,
            State::Loading => false,
            State::Unloaded | State::Failed(_) | State::Poisoned => true,
        });
        match timeout(patience(deadline), gone).await {
            Ok(_) => Ok(()),
            Err(_) => Err(Refusal::InUse { name: self.name() }),
        }
    }

    /// Whether its model is being loaded.
    pub fn is_loading(&self) -> bool {
        matches!(*self.readiness.borrow(), Readiness::Loading)
    }

    /// Whether it serves, or would when it is asked.
    pub fn would_serve(&self) -> bool {
        use Readiness::{Ready, Unloaded, Unloading};
        matches!(self.readiness(), Ready(_) | Unloading | Unloaded(_))
    }

    /// Whether its engine may be running requests: one that reads a model for the first time, or
    /// is stuck, shows no sign of life. One whose file changed does, until its requests have ended.
    pub(super) fn may_run(&self) -> bool {
        match self.readiness() {
            Readiness::Ready(_) | Readiness::Unloading => true,
            Readiness::Loading | Readiness::Failed(_) => self.engine.silence() < SIGN_OF_LIFE,
            Readiness::Unloaded(_) | Readiness::Stopped => false,
        }
    }

    /// The load that it is there by, when it is.
    pub fn generation(&self) -> Option<u64> {
        match &*self.readiness.borrow() {
            Readiness::Ready(served) => Some(served.info.generation),
            _ => None,
        }
    }

    /// Waits until it is there by another load than `generation`.
    pub async fn another_load(&self, generation: Option<u64>) {
        let mut readiness = self.readiness.clone();
        let other = |readiness: &Readiness| match readiness {
            Readiness::Ready(served) => Some(served.info.generation) != generation,
            _ => false,
        };
        if readiness.wait_for(other).await.is_err() {
            pending().await
        }
    }

    /// Why its first load failed; `None` when it did not.
    pub(super) async fn first_failure(self) -> Option<String> {
        let mut readiness = self.readiness;
        let settled = readiness.wait_for(|readiness| !matches!(readiness, Readiness::Loading));
        match settled.await.as_deref() {
            Ok(Readiness::Failed(words)) => Some(words.clone()),
            _ => None,
        }
    }

    pub(super) fn is_poisoned(&self) -> bool {
        matches!(*self.engine.state().borrow(), State::Poisoned)
    }
}

/// How long whoever has until `deadline` may wait.
fn patience(deadline: Option<Instant>) -> Duration {
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    left.map_or(PATIENCE, |left| PATIENCE.min(left * 9 / 10))
}
