//! The models that the daemon serves, each with the tokenizer that belongs to it.
//!
//! An engine says when its model is loaded, and again when it was loaded anew under the same name.
//! A task per engine then builds the tokenizer, off the runtime, and publishes both together as
//! [`Served`]: a request never sees a model with the tokenizer of another.
//! The engine hands a vocabulary over once, and nobody keeps it: the tokenizer has all that counts.

use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::timeout;

use super::refusal::Refusal;
use crate::engine::handle::Refused;
use crate::engine::{EngineHandle, ModelInfo, State};
use crate::model::load::Vocabulary;
use crate::sys::heap;
use crate::text::{Tokenizer, TokenizerError};

/// How long a request waits for a model that is loading. A client that starts the daemon itself
/// needs not know that it takes a moment.
const PATIENCE: Duration = Duration::from_secs(30);

/// An engine that runs shows a sign of life more often: a step is a fraction of a second.
const SIGN_OF_LIFE: Duration = Duration::from_secs(3);

/// The models, the default one first.
#[derive(Debug, Clone)]
pub struct Models {
    slots: Arc<[Slot]>,
    /// Told whenever the readiness of any of them changes.
    changes: watch::Receiver<()>,
}

/// A model by name, loaded or not.
#[derive(Debug, Clone)]
pub struct Slot {
    engine: EngineHandle,
    readiness: watch::Receiver<Readiness>,
}

/// Whether a model can serve.
#[derive(Debug, Clone)]
pub enum Readiness {
    /// It is being loaded.
    Loading,
    /// It can.
    Ready(Arc<Served>),
    /// Loading it failed; the words say why.
    Failed(String),
    /// Its engine has died or ended.
    Stopped,
}

/// A loaded model and its tokenizer.
#[derive(Debug)]
pub struct Served {
    /// The model.
    pub info: Arc<ModelInfo>,
    /// Its tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// Bytes of its longest token: no text has fewer tokens than its bytes divided by this.
    pub longest: usize,
}

impl Served {
    fn new(info: Arc<ModelInfo>, vocabulary: Vocabulary) -> Result<Self, TokenizerError> {
        let tokenizer = Tokenizer::new(&vocabulary)?;
        let ids = 0..u32::try_from(tokenizer.vocab()).unwrap_or(u32::MAX);
        let longest = ids.map(|id| tokenizer.token_bytes(id).len()).max();
        Ok(Self { info, tokenizer: Arc::new(tokenizer), longest: longest.unwrap_or(0).max(1) })
    }
}

impl Models {
    /// Follows `engines`, of which the first serves requests that name no model. Must be called
    /// on a runtime.
    pub fn follow(engines: Vec<EngineHandle>) -> Self {
        let (told, changes) = watch::channel(());
        let told = Arc::new(told);
        let follow = |engine| Slot::follow(engine, Arc::clone(&told));
        Self { slots: engines.into_iter().map(follow).collect(), changes }
    }

    /// All of them, the default one first.
    pub fn all(&self) -> &[Slot] {
        &self.slots
    }

    /// The model called `name`; the default one for an empty name.
    pub fn find(&self, name: &str) -> Result<&Slot, Refusal> {
        let mut slots = self.slots.iter();
        let found = slots.find(|slot| name.is_empty() || slot.engine.name() == name);
        found.ok_or_else(|| {
            let known: Vec<_> = self.slots.iter().map(|slot| slot.engine.name()).collect();
            Refusal::UnknownModel { name: name.to_owned(), known: known.join(", ") }
        })
    }

    /// To wait for a change in the readiness of any model.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.clone()
    }

    /// Whether every model can serve.
    pub fn are_ready(&self) -> bool {
        self.slots.iter().all(|slot| matches!(slot.readiness(), Readiness::Ready(_)))
    }

    /// Returns when the thread of any engine has died.
    pub async fn poisoned(&self) {
        let mut changes = self.changes();
        // An error is the end of every engine, and every one of them was looked at before.
        while !self.slots.iter().any(Slot::is_poisoned) && changes.changed().await.is_ok() {}
        if !self.slots.iter().any(Slot::is_poisoned) {
            pending().await
        }
    }

    /// Returns when the first load of any model, its tokenizer included, has failed, and why.
    pub async fn first_failure(self) -> String {
        let failures = self.slots.iter().cloned().map(Slot::first_failure);
        let mut failures: JoinSet<_> = failures.collect();
        while let Some(failure) = failures.join_next().await {
            if let Ok(Some(words)) = failure {
                return words;
            }
        }
        pending().await
    }

    /// Has every engine end when its requests have, at `deadline` at the latest.
    pub fn drain(&self, deadline: Instant) {
        self.slots.iter().for_each(|slot| slot.engine.drain(deadline));
    }

    /// Whether an engine may be running requests: one that reads a model for the first time, or is
    /// stuck, shows no sign of life. One whose file changed does, until its requests have ended.
    pub fn any_runs(&self) -> bool {
        let runs = |slot: &Slot| match slot.readiness() {
            Readiness::Ready(_) => true,
            Readiness::Loading | Readiness::Failed(_) => slot.engine.silence() < SIGN_OF_LIFE,
            Readiness::Stopped => false,
        };
        self.slots.iter().any(runs)
    }

    /// Returns when every engine has ended.
    pub async fn ended(&self) {
        for slot in &*self.slots {
            // An error is the end of the sender, which is the end of the engine.
            let mut state = slot.engine.state();
            while state.changed().await.is_ok() {}
        }
    }
}

impl Slot {
    /// The engine behind it.
    pub fn engine(&self) -> &EngineHandle {
        &self.engine
    }

    /// Whether it can serve, now. An engine that gives no sign of life cannot.
    pub fn readiness(&self) -> Readiness {
        let readiness = self.readiness.borrow().clone();
        match readiness {
            Readiness::Ready(_) if self.engine.is_stuck() => Readiness::Stopped,
            readiness => readiness,
        }
    }

    /// The model, waited for while it is loading; until a moment before `deadline` at most, since
    /// an answer after it is not heard.
    pub async fn served(&self, deadline: Option<Instant>) -> Result<Arc<Served>, Refusal> {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let patience = left.map_or(PATIENCE, |left| PATIENCE.min(left * 9 / 10));
        let mut readiness = self.readiness.clone();
        let loaded = readiness.wait_for(|readiness| !matches!(readiness, Readiness::Loading));
        let name = || self.engine.name().to_owned();
        if self.engine.is_stuck() {
            return Err(Refusal::Stuck { name: name(), silence: self.engine.silence() });
        }
        match timeout(patience, loaded).await {
            Err(_) => Err(Refusal::Loading { name: name() }),
            Ok(Err(_)) => Err(Refusal::Stopped { name: name() }),
            Ok(Ok(readiness)) => match &*readiness {
                Readiness::Ready(served) => Ok(Arc::clone(served)),
                Readiness::Failed(why) => {
                    Err(Refusal::ModelFailed { name: name(), why: why.clone() })
                }
                Readiness::Loading | Readiness::Stopped => Err(Refusal::Stopped { name: name() }),
            },
        }
    }

    /// Whether its model is being loaded.
    pub fn is_loading(&self) -> bool {
        matches!(*self.readiness.borrow(), Readiness::Loading)
    }

    /// Why its first load failed; `None` when it did not.
    async fn first_failure(self) -> Option<String> {
        let mut readiness = self.readiness;
        let settled = readiness.wait_for(|readiness| !matches!(readiness, Readiness::Loading));
        match settled.await.as_deref() {
            Ok(Readiness::Failed(words)) => Some(words.clone()),
            _ => None,
        }
    }

    fn is_poisoned(&self) -> bool {
        matches!(*self.engine.state().borrow(), State::Poisoned)
    }

    fn follow(engine: EngineHandle, changes: Arc<watch::Sender<()>>) -> Self {
        let (told, readiness) = watch::channel(Readiness::Loading);
        let (mut state, mut last) = (engine.state(), Last { engine: engine.clone(), built: None });
        tokio::spawn(async move {
            loop {
                let seen = state.borrow_and_update().clone();
                told.send_replace(last.readiness(seen).await);
                changes.send_replace(());
                if state.changed().await.is_err() {
                    break;
                }
            }
            told.send_if_modified(Readiness::end);
            changes.send_replace(());
        });
        Self { engine, readiness }
    }
}

/// An engine, and what came of the model that it loaded last.
struct Last {
    engine: EngineHandle,
    /// Its generation, and whether a tokenizer could be built for it.
    built: Option<(u64, Readiness)>,
}

impl Last {
    async fn readiness(&mut self, state: State) -> Readiness {
        match state {
            State::Loading => Readiness::Loading,
            State::Ready(info) => self.with_tokenizer(info).await,
            State::Failed(why) => Readiness::Failed(why),
            State::Poisoned => Readiness::Stopped,
        }
    }

    /// A model comes a second time when its file was touched and is the same after all.
    async fn with_tokenizer(&mut self, info: Arc<ModelInfo>) -> Readiness {
        let generation = info.generation;
        match &self.built {
            Some((built, readiness)) if *built == generation => readiness.clone(),
            _ => {
                let readiness = Readiness::build(self.engine.clone(), info).await;
                let settled = !matches!(readiness, Readiness::Loading);
                self.built = settled.then(|| (generation, readiness.clone()));
                readiness
            }
        }
    }
}

impl Readiness {
    async fn build(engine: EngineHandle, info: Arc<ModelInfo>) -> Self {
        let path = info.path.as_ref().map(|path| path.display().to_string());
        let model = path.unwrap_or_else(|| info.name.clone());
        let built = spawn_blocking(move || {
            loop {
                return match engine.vocabulary(info.generation) {
                    Ok(Some(vocabulary)) => Self::with(info, vocabulary),
                    // It is being loaded anew.
                    Ok(None) => Ok(Self::Loading),
                    // In the middle of a step or a load that take long.
                    Err(Refused::Silent(_)) => continue,
                    Err(_) => Ok(Self::Stopped),
                };
            }
        });
        let why = match built.await {
            Ok(Ok(readiness)) => return readiness,
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        Self::Failed(format!("cannot build the tokenizer of model {model}: {why}"))
    }

    fn with(info: Arc<ModelInfo>, vocabulary: Vocabulary) -> Result<Self, TokenizerError> {
        // Once what is left of loading, and once of building.
        heap::give_back();
        let served = Served::new(info, vocabulary);
        heap::give_back();
        Ok(Self::Ready(Arc::new(served?)))
    }

    /// What is left when the engine has ended: the reason, where there is one.
    fn end(&mut self) -> bool {
        let ended = !matches!(self, Self::Failed(_));
        if ended {
            *self = Self::Stopped;
        }
        ended
    }
}
