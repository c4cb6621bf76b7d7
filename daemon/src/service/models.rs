//! The models that the daemon serves, each with the tokenizer that belongs to it.
//!
//! An engine hands over its model's vocabulary when it has read it, and says when the model is
//! loaded; both again when it is loaded anew under the same name. A task per engine builds the
//! tokenizer meanwhile, off the runtime, and publishes both together as [`Served`] when both are
//! there and of one load: a request never sees a model with the tokenizer of another.
//! The engine hands a vocabulary over once, and nobody keeps it: the tokenizer has all that counts.
//!
//! The first model is loaded at the start, every other one when the first request for it comes. A
//! request holds a [`Lease`], so that it is known who is in use; one more task, `tend`, loads what
//! is waited for and unloads what is not needed. What goes is decided in [`room`].

mod add;
mod follow;
pub mod room;
mod slot;
mod tend;

use std::future::pending;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};

use super::refusal::Refusal;
use crate::engine::{Ground, ModelInfo, Source};
use crate::model::load::Vocabulary;
use crate::text::{Tokenizer, TokenizerError};

pub use self::slot::{Lease, Shortage, Slot};

use self::tend::Tending;

/// The models, the default one first.
#[derive(Debug, Clone)]
pub struct Models {
    slots: Arc<watch::Sender<Arc<[Slot]>>>,
    ground: Arc<Ground>,
    /// What a model that is added has in common with the first.
    like: Arc<Source>,
    rules: Rules,
    /// Told whenever the readiness of any of them changes.
    changes: Arc<watch::Sender<()>>,
    /// Told when one is wanted.
    wake: Arc<Notify>,
}

/// When models leave memory by themselves.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rules {
    /// After so long without a request; `None` for never.
    pub unload_after: Option<Duration>,
    /// When the weights of all would take more than so many bytes.
    pub memory: Option<u64>,
}

/// Whether a model can serve.
#[derive(Debug, Clone)]
pub enum Readiness {
    /// It is not in memory, and comes when it is asked. What it was when it was there last.
    Unloaded(Option<Arc<ModelInfo>>),
    /// It is being loaded.
    Loading,
    /// It can.
    Ready(Arc<Served>),
    /// It leaves memory when its requests have ended.
    Unloading,
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

/// What a vocabulary gives of a [`Served`] model.
struct Parts {
    tokenizer: Arc<Tokenizer>,
    longest: usize,
}

impl Parts {
    fn new(vocabulary: &Vocabulary) -> Result<Self, TokenizerError> {
        let tokenizer = Tokenizer::new(vocabulary)?;
        let ids = 0..u32::try_from(tokenizer.vocab()).unwrap_or(u32::MAX);
        let longest = ids.map(|id| tokenizer.token_bytes(id).len()).max();
        Ok(Self { tokenizer: Arc::new(tokenizer), longest: longest.unwrap_or(0).max(1) })
    }
}

impl Served {
    fn new(info: Arc<ModelInfo>, Parts { tokenizer, longest }: Parts) -> Self {
        Self { info, tokenizer, longest }
    }
}

impl Models {
    /// Starts an engine for each of `sources`, of which the first is loaded at once and serves
    /// requests that name no model. Must be called on a runtime.
    ///
    /// # Errors
    /// When the system refuses a thread.
    ///
    /// # Panics
    /// When there are no sources.
    pub fn start(ground: Ground, sources: Vec<Source>, rules: Rules) -> io::Result<Self> {
        let models = Self {
            slots: Arc::new(watch::channel(Arc::from([])).0),
            like: Arc::new(sources.first().expect("there is always the built-in model").clone()),
            ground: Arc::new(ground),
            rules,
            changes: Arc::new(watch::channel(()).0),
            wake: Arc::default(),
        };
        let engine = |(at, source)| match at {
            0 => models.ground.loading(source),
            _ => models.ground.unloaded(source),
        };
        let engines = sources.into_iter().enumerate().map(engine);
        let engines: Vec<_> = engines.collect::<io::Result<_>>()?;
        models.slots.send_replace(engines.into_iter().map(|engine| models.slot(engine)).collect());
        tokio::spawn(Tending::default().of(models.clone()));
        Ok(models)
    }

    fn slot(&self, engine: crate::engine::EngineHandle) -> Slot {
        Slot::new(engine, Arc::clone(&self.changes), Arc::clone(&self.wake), self.rules.memory)
    }

    /// All of them, the default one first.
    pub fn all(&self) -> Arc<[Slot]> {
        Arc::clone(&self.slots.borrow())
    }

    /// The model called `name`; the default one for an empty name.
    ///
    /// # Errors
    /// When there is none.
    pub fn find(&self, name: &str) -> Result<Slot, Refusal> {
        let slots = self.all();
        let found = slots.iter().find(|slot| name.is_empty() || slot.engine().name() == name);
        found.cloned().ok_or_else(|| {
            let known: Vec<_> = slots.iter().map(|slot| slot.engine().name()).collect();
            Refusal::UnknownModel { name: name.to_owned(), known: known.join(", ") }
        })
    }

    /// To wait for a change in the readiness of any model.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Whether requests are served: those that name no model, and nobody is stuck with others'.
    pub fn are_ready(&self) -> bool {
        let slots = self.all();
        slots.first().is_some_and(Slot::would_serve)
            && !slots.iter().any(|slot| matches!(slot.readiness(), Readiness::Stopped))
    }

    /// Returns when the thread of any engine has died.
    pub async fn poisoned(&self) {
        let mut changes = self.changes();
        while !self.all().iter().any(Slot::is_poisoned) && changes.changed().await.is_ok() {}
    }

    /// Whether an engine shows no sign of life any more.
    pub fn is_any_stuck(&self) -> bool {
        self.all().iter().any(|slot| slot.engine().is_stuck())
    }

    /// Returns when the first load of the default model, its tokenizer included, has failed, and
    /// why. Whoever asks for another model that cannot be loaded is told so, and nobody else.
    pub async fn first_failure(self) -> String {
        let first = self.all().first().cloned();
        match first {
            Some(slot) => match slot.first_failure().await {
                Some(words) => words,
                None => pending().await,
            },
            None => pending().await,
        }
    }

    /// Has every engine end when its requests have, at `deadline` at the latest.
    pub fn drain(&self, deadline: Instant) {
        self.all().iter().for_each(|slot| slot.engine().drain(deadline));
    }

    /// Whether an engine may be running requests.
    pub fn any_runs(&self) -> bool {
        self.all().iter().any(Slot::may_run)
    }

    /// Returns when every engine has ended.
    pub async fn ended(&self) {
        for slot in &*self.all() {
            // An error is the end of the sender, which is the end of the engine.
            let mut state = slot.engine().state();
            while state.changed().await.is_ok() {}
        }
    }
}
