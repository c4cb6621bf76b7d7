//! An engine thread's whole life: with a model and without one.
//!
//! What outlives a model is [`Rest`]; an [`Engine`] is that and a model. A thread that has none
//! sleeps until it is told to load, so that an unloaded model costs a parked thread and nothing
//! else: blocks, records and buffers go with the engine that held them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::event::{Event, Failure};
use super::hand_over::{Inside, Outside, hand_over};
use super::handle::{EngineHandle, Message, Removed, Report, Shared, State};
use super::kept::Kept;
use super::queue::Queue;
use super::sampler::Sampler;
use super::source::{Loaded, Source, SourceError};
use super::{Claims, Engine, HEARTBEAT, History, Pace, Scratch, Settings};
use crate::kv::index::Index;
use crate::kv::pin::Pinned;
use crate::metrics::Meter;
use crate::model::Machine;
use crate::model::identity::Stamps;
use crate::model::load::Vocabulary;
use crate::store::StoreHandle;
use crate::sys::heap;

/// How long files that could not be read for now are left alone.
const RETRY: Duration = Duration::from_secs(5);

/// What the engines of a process have in common.
#[derive(Debug, Clone)]
pub struct Ground {
    /// What each is told.
    pub settings: Settings,
    /// What all of them compute on.
    pub machine: Machine,
    /// Where all of them keep blocks.
    pub store: Option<StoreHandle>,
}

/// What is left of an engine when its model goes.
pub(super) struct Rest {
    pub(super) settings: Settings,
    pub(super) source: Source,
    pub(super) machine: Machine,
    pub(super) store: Option<StoreHandle>,
    pub(super) kept: Option<Kept>,
    pub(super) mailbox: Inside<Message>,
    pub(super) own: Outside<Message>,
    pub(super) state: watch::Sender<State>,
    pub(super) shared: Arc<Shared>,
    /// Counts loads: an answer for a sequence of an earlier model is told by neither number.
    pub(super) generation: u64,
    /// Counts sequences of all models.
    pub(super) next: u64,
    /// How often something was removed on request.
    pub(super) removals: u64,
    /// Why there is no model although one was wanted.
    pub(super) unreadable: Option<Unreadable>,
}

/// Files that could not be read.
pub(super) struct Unreadable {
    /// As they were then.
    stamps: Stamps,
    since: Instant,
    /// They may be loaded later as they are.
    passes: bool,
    why: String,
}

impl Unreadable {
    pub(super) fn new(stamps: Stamps, error: &SourceError) -> Self {
        Self { stamps, since: Instant::now(), passes: error.passes(), why: error.to_string() }
    }

    /// Whether it is worth another try at `now`, when the files are as `settled` says, if they are
    /// left alone.
    fn is_over(&self, settled: Option<Stamps>, now: Instant) -> bool {
        let again = self.passes && now.saturating_duration_since(self.since) >= RETRY;
        again || settled.is_some_and(|settled| settled != self.stamps)
    }
}

/// Starts an engine that loads its model at once. Jobs queue meanwhile.
pub fn spawn(
    settings: Settings,
    source: Source,
    machine: impl Into<Machine>,
    store: Option<StoreHandle>,
) -> std::io::Result<(EngineHandle, JoinHandle<()>)> {
    Ground { settings, machine: machine.into(), store }.start(source, State::Loading)
}

impl Ground {
    /// An engine that has its model at once.
    ///
    /// # Errors
    /// When the system refuses a thread; the same below.
    pub fn loading(&self, source: Source) -> std::io::Result<EngineHandle> {
        self.start(source, State::Loading).map(|(engine, _)| engine)
    }

    /// An engine that loads its model when it is told to.
    ///
    /// # Errors
    /// As for [`loading`](Self::loading).
    pub fn unloaded(&self, source: Source) -> std::io::Result<EngineHandle> {
        self.start(source, State::Unloaded).map(|(engine, _)| engine)
    }

    fn start(
        &self,
        source: Source,
        first: State,
    ) -> std::io::Result<(EngineHandle, JoinHandle<()>)> {
        let Self { settings, machine, store } = self.clone();
        let (own, mailbox) = hand_over(settings.queue);
        let (state, watched) = watch::channel(first);
        let shared = Arc::new(Shared {
            silence: settings.silence,
            orders: AtomicUsize::new(0),
            beat: AtomicU64::new(0),
            epoch: Instant::now(),
            meter: Meter::default(),
            vocabulary: watch::channel(None).0,
        });
        let handle = EngineHandle {
            name: Arc::from(source.name.as_str()),
            path: source.path.as_deref().map(Arc::from),
            mailbox: own.clone(),
            state: watched,
            shared: Arc::clone(&shared),
        };
        let name = format!("engine {}", source.name);
        let kept = store.as_ref().map(Kept::by);
        let (generation, next, removals, unreadable) = (0, 0, 0, None);
        let rest = Rest {
            settings,
            source,
            machine,
            store,
            kept,
            mailbox,
            own,
            state,
            shared,
            generation,
            next,
            removals,
            unreadable,
        };
        let thread = std::thread::Builder::new().name(name).spawn(move || rest.live())?;
        Ok((handle, thread))
    }
}

/// Tells everyone that the thread died of a panic.
struct Poison(watch::Sender<State>);

impl Drop for Poison {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.send_replace(State::Poisoned);
        }
    }
}

impl Rest {
    fn live(mut self) {
        let _poison = Poison(self.state.clone());
        self.feel_pressure();
        loop {
            if !matches!(*self.state.borrow(), State::Loading) && !self.sleep() {
                return;
            }
            let Some(loaded) = self.load() else { continue };
            match Engine::new(self, loaded).run() {
                Some(rest) => {
                    tracing::info!(model = rest.source.name, "unloaded");
                    rest.tell_empty();
                    self = rest;
                }
                None => return,
            }
        }
    }

    /// Has the store tell when its mappings become too many.
    fn feel_pressure(&self) {
        let Some(store) = &self.store else { return };
        let mailbox = self.own.clone();
        store.on_pressure(move |keys| {
            // An engine that is gone holds nothing.
            let _ = mailbox.send(Message::LetGo(keys.to_vec()));
        });
    }

    /// Waits until the model is wanted; false when the engine is to end.
    fn sleep(&mut self) -> bool {
        let mut looked = Instant::now();
        loop {
            if looked.elapsed() >= HEARTBEAT {
                looked = Instant::now();
                self.look_again();
            }
            match self.next_message() {
                Ok(Message::Load) if self.unreadable.is_none() => {
                    self.state.send_replace(State::Loading);
                    self.shared.obeyed();
                    return true;
                }
                // There is nothing to do.
                Ok(Message::Load | Message::Unload) => self.shared.obeyed(),
                Ok(Message::Drain(_)) | Err(RecvTimeoutError::Disconnected) => return false,
                Ok(message) => self.decline(message),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// A file that could not be read is looked at again and again; otherwise nothing happens until
    /// somebody says something.
    fn next_message(&self) -> Result<Message, RecvTimeoutError> {
        self.shared.beat();
        match self.unreadable {
            Some(_) => self.mailbox.receiver.recv_timeout(HEARTBEAT),
            None => self.mailbox.receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
        }
    }

    /// A file that could not be read may be tried again when it has changed, or when what was in the
    /// way may be gone: it counts as one that nobody has tried.
    fn look_again(&mut self) {
        let Some(unreadable) = &self.unreadable else { return };
        if unreadable.is_over(self.source.settled(), Instant::now()) {
            self.unreadable = None;
            self.state.send_replace(State::Unloaded);
        }
    }

    /// What an engine says that holds nothing. Answers for sequences that are gone are for nobody,
    /// and so is a question about a prompt: whoever asked hears that there is no answer.
    fn decline(&mut self, message: Message) {
        match message {
            Message::Job(job) => {
                self.mailbox.in_hand();
                let _ = job.events.try_send(Event::Failed(Failure::Reloaded));
            }
            // An asker that is gone needs no answer; the same below.
            Message::Remove(_, reply) => {
                self.removals += 1;
                let _ = reply.send(Removed::default());
            }
            Message::List(reply) => drop(reply.send(Vec::new())),
            Message::Holds(keys, reply) => drop(reply.send(vec![false; keys.len()])),
            Message::Report(reply) => drop(reply.send(Report::default())),
            // What the store keeps of a lease is taken over with the next model.
            Message::Pin(lease, reply) => {
                let nothing = Pinned { bytes: 0, until: lease.until, fresh: true };
                let _ = reply.map(|reply| reply.send(Ok(nothing)));
            }
            _ => {}
        }
    }

    fn load(&mut self) -> Option<Loaded> {
        let stamps = self.source.survey();
        self.generation += 1;
        let hand = self.shared.hand(self.generation);
        match self.source.load(self.generation, &self.machine, self.kept.as_ref(), &hand) {
            Ok(loaded) => {
                self.shared.beat();
                self.state.send_replace(State::Ready(Arc::clone(&loaded.info)));
                Some(loaded)
            }
            Err(error) => {
                tracing::error!(%error, "model not loaded");
                self.unreadable = Some(Unreadable::new(stamps, &error));
                self.tell_empty();
                None
            }
        }
    }

    /// Tells that there is no model, when everything that one took has been dropped: whoever goes
    /// by the state takes its memory to be free.
    fn tell_empty(&self) {
        heap::give_back();
        self.shared.meter.empty();
        self.shared.beat();
        let failed = |unreadable: &Unreadable| State::Failed(unreadable.why.clone());
        self.state.send_replace(self.unreadable.as_ref().map_or(State::Unloaded, failed));
    }
}

impl Shared {
    /// Shows a sign of life.
    pub(super) fn beat(&self) {
        let now = self.epoch.elapsed().as_millis();
        self.beat.store(u64::try_from(now).unwrap_or(u64::MAX), Ordering::Release);
    }

    /// Hands over the vocabulary of a load, in place of one that nobody has taken.
    pub(super) fn hand(&self, generation: u64) -> impl Fn(Vocabulary) {
        move |vocabulary| drop(self.vocabulary.send_replace(Some((generation, vocabulary))))
    }

    /// An order was carried out, as far as the state says so.
    pub(super) fn obeyed(&self) {
        self.orders.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Engine {
    /// An engine with its model, and nothing else yet.
    fn new(rest: Rest, loaded: Loaded) -> Self {
        Self {
            index: Index::new(rest.settings.cache_budget),
            settings: rest.settings,
            machine: rest.machine,
            pace: Pace::default(),
            scratch: Scratch::default(),
            exchanged: Instant::now(),
            sampler: Sampler::default(),
            source: rest.source,
            store: rest.store,
            kept: rest.kept,
            mailbox: rest.mailbox,
            own: rest.own,
            state: rest.state,
            shared: rest.shared,
            loaded,
            generation: rest.generation,
            stale: false,
            unreadable: None,
            draining: None,
            unloading: false,
            queue: Queue::default(),
            blocked: None,
            sequences: Vec::new(),
            unsynced: HashMap::new(),
            next: rest.next,
            worked: Instant::now(),
            families: HashMap::new(),
            slabs: HashMap::new(),
            claims: Claims::default(),
            history: History::default(),
            removals: rest.removals,
        }
    }

    /// Gives up the model and all that is in memory; packed weights that nobody has kept yet are
    /// kept now.
    pub(super) fn give_up(mut self) -> Rest {
        self.keep_pack();
        Rest {
            settings: self.settings,
            source: self.source,
            machine: self.machine,
            store: self.store,
            kept: self.kept,
            mailbox: self.mailbox,
            own: self.own,
            state: self.state,
            shared: self.shared,
            generation: self.generation,
            next: self.next,
            removals: self.removals,
            unreadable: self.unreadable,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, ErrorKind};

    use super::*;

    #[test]
    fn files_that_could_not_be_read_for_now_are_tried_again_and_others_when_they_have_changed() {
        let path = || "m.gguf".into();
        let read = |kind: ErrorKind| SourceError::Read { path: path(), error: kind.into() };
        let busy = SourceError::Read { path: path(), error: io::Error::from_raw_os_error(24) };
        let later = Instant::now() + RETRY + RETRY;
        let tried =
            |error, stamps, now| Unreadable::new(Stamps::default(), &error).is_over(stamps, now);
        let same = || Some(Stamps::default());
        assert!(tried(busy, same(), later));
        assert!(!tried(SourceError::Changed { path: path() }, same(), Instant::now()));
        assert!(tried(SourceError::Changed { path: path() }, None, later));
        assert!(!tried(read(ErrorKind::NotFound), same(), later));
        assert!(!tried(read(ErrorKind::PermissionDenied), None, later));
    }
}
