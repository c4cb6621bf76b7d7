//! From what an engine says of itself to what a request may have: a model with its tokenizer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;
use tokio::task::spawn_blocking;

use super::{Parts, Readiness, Served};
use crate::engine::{EngineHandle, ModelInfo, State};
use crate::model::load::Vocabulary;
use crate::sys::heap;

/// Follows `engine` from where it stands; tells `changes` of each change, and `expected` what the
/// model's weights take.
pub(super) fn follow(
    engine: EngineHandle,
    expected: Arc<AtomicU64>,
    changes: Arc<watch::Sender<()>>,
) -> watch::Receiver<Readiness> {
    let mut state = engine.state();
    let first = match *state.borrow() {
        State::Unloaded => Readiness::Unloaded(None),
        _ => Readiness::Loading,
    };
    let (told, readiness) = watch::channel(first);
    let mut vocabularies = engine.vocabularies();
    let mut last = Last { engine, early: None, served: None, known: None };
    tokio::spawn(async move {
        loop {
            let seen = state.borrow_and_update().clone();
            let readiness = last.readiness(seen).await;
            if let Some(info) = &last.known {
                expected.store(info.weight_bytes, Ordering::Release);
            }
            let settled = !matches!(readiness, Readiness::Loading | Readiness::Unloading);
            told.send_replace(readiness);
            if settled {
                // What loading took besides the model; or its tokenizer, unless a request has it.
                drop(spawn_blocking(heap::give_back));
            }
            changes.send_replace(());
            tokio::select! {
                changed = state.changed() => if changed.is_err() {
                    break;
                },
                Ok(()) = vocabularies.changed() => {}
            }
        }
        told.send_if_modified(Readiness::end);
        changes.send_replace(());
    });
    readiness
}

/// An engine, and what came of the models that it loaded.
struct Last {
    engine: EngineHandle,
    /// What came of the vocabulary that was handed over last, and which load it belongs to.
    early: Option<(u64, Result<Parts, String>)>,
    /// The model that was ready last, with its generation.
    served: Option<(u64, Readiness)>,
    /// What was known of it.
    known: Option<Arc<ModelInfo>>,
}

impl Last {
    /// The state was read first: what a load that has ended handed over is there then.
    async fn readiness(&mut self, state: State) -> Readiness {
        if let Some((generation, vocabulary)) = self.engine.vocabulary() {
            self.early = Some((generation, build(vocabulary).await));
        }
        match state {
            State::Unloaded => {
                (self.early, self.served) = (None, None);
                Readiness::Unloaded(self.known.clone())
            }
            State::Loading => Readiness::Loading,
            State::Ready(info) => self.ready(info),
            State::Unloading => Readiness::Unloading,
            State::Failed(why) => {
                (self.early, self.served) = (None, None);
                Readiness::Failed(why)
            }
            State::Poisoned => Readiness::Stopped,
        }
    }

    /// A model comes a second time when its file was touched and is the same after all.
    fn ready(&mut self, info: Arc<ModelInfo>) -> Readiness {
        let generation = info.generation;
        self.known = Some(Arc::clone(&info));
        if let Some((_, readiness)) = self.served.as_ref().filter(|(of, _)| *of == generation) {
            return readiness.clone();
        }
        let Some((_, parts)) = self.early.take_if(|(of, _)| *of == generation) else {
            // It is being loaded anew, and that one's vocabulary has come already.
            return Readiness::Loading;
        };
        let readiness = match parts {
            Ok(parts) => Readiness::Ready(Arc::new(Served::new(info, parts))),
            Err(why) => {
                let path = info.path.as_ref().map(|path| path.display().to_string());
                let model = path.unwrap_or_else(|| info.name.clone());
                Readiness::Failed(format!("cannot build the tokenizer of model {model}: {why}"))
            }
        };
        self.served = Some((generation, readiness.clone()));
        readiness
    }
}

/// Builds a tokenizer off the runtime.
async fn build(vocabulary: Vocabulary) -> Result<Parts, String> {
    let built = spawn_blocking(move || {
        // Once what is left of reading, and once of building.
        heap::give_back();
        let parts = Parts::new(&vocabulary);
        drop(vocabulary);
        heap::give_back();
        parts
    });
    match built.await {
        Ok(built) => built.map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    }
}

impl Readiness {
    /// What is left when the engine has ended: the reason, where there is one.
    fn end(&mut self) -> bool {
        let ended = !matches!(self, Self::Failed(_));
        if ended {
            *self = Self::Stopped;
        }
        ended
    }
}
