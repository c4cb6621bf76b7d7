//! The engine: one thread that owns a model and all its sequences.
//!
//! It admits, plans, runs, samples and settles, synchronously and in token ids; it knows neither
//! text nor the wire, and nothing in it is shared but a mailbox, a state and a heartbeat
//! ([`handle`]). What one thread owns needs no lock.
//!
//! ```text
//!   mailbox ─▶ admit ─▶ (loader) ─▶ plan ─▶ forward ─▶ sample ─▶ settle ─▶ events
//!                           ▲                                      │
//!                           └───────────── index, store ◀──────────┘
//! ```
//!
//! An engine without its model is what is left in `life`: it waits there until it is told to load
//! again.
//!
//! Reading order: [`job`] is what goes in, [`event`] what comes out, [`sequence`] is a request in
//! flight, `admit`, `look_up`, `step` and `settle` are its life, `line` and `room` say
//! when, `charge` on whose account.
//!
//! Invariants: the loop never waits for a disk or for a reader; cancels and deadlines are seen at
//! every step; blocks are published only when all their rows are complete and the model file is
//! still the one that was loaded.

pub mod constraint;
pub mod job;
pub mod event;
pub mod sequence;
pub mod handle;
pub mod source;

mod adapters;
mod admit;
mod announce;
mod charge;
mod explain;
mod flight;
mod history;
mod info;
mod inquire;
mod fork;
mod hand_over;
mod kept;
mod life;
mod line;
mod look_up;
mod measure;
mod pace;
mod pins;
mod queue;
mod room;
mod sampler;
mod scheduler;
mod settle;
mod step;
mod turns;
mod why;

/// What threads meet in; a model checker brings its own.
mod sync {
    pub(super) use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    pub(super) use std::sync::{Arc, mpsc};
    pub(super) use std::thread::yield_now;
}

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use tokio::sync::watch;

pub use self::adapters::{AdapterInfo, AdapterSource};
pub use self::event::Event;
pub use self::handle::{EngineHandle, State};
pub use self::history::{divergence, reason_of};
pub use self::info::ModelInfo;
pub use self::job::Job;
pub use self::life::{Ground, spawn};
pub use self::source::Source;

use self::event::{Done, Failure};
use self::flight::Claims;
use self::hand_over::{Inside, Outside};
use self::handle::{Message, Shared};
use self::history::History;
use self::kept::Kept;
use self::life::{Rest, Unreadable};
use self::line::Blocked;
use self::pace::Pace;
use self::queue::Queue;
use self::sampler::Sampler;
use self::sequence::{SeqId, Sequence};
use self::source::Loaded;
use self::step::Scratch;
use crate::kv::codec::Codec;
pub use crate::kv::index::Budget;
use crate::kv::index::Index;
use crate::kv::key::Fingerprint;
use crate::kv::seq::Slabs;
use crate::model::Machine;
use crate::store::{Family, Restored, StoreHandle};

/// How often an idle engine shows that it lives.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// Bytes of mapped weights that move to huge pages between two steps: a few milliseconds.
const BETWEEN_STEPS: usize = 4 << 20;
/// How often they do.
const EXCHANGES: Duration = Duration::from_millis(50);
/// The same while nothing runs, between two looks at the mailbox.
const AT_REST: usize = 16 << 20;
/// How often an engine looks for cancels while its sequences wait for something.
const GLANCE: Duration = Duration::from_millis(5);

/// What an engine is told at start.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Most jobs that wait for admission.
    pub queue: usize,
    /// Most bytes of KV that admitted requests may come to own.
    pub active_budget: usize,
    /// Most heap bytes and mappings of cached blocks.
    pub cache_budget: Budget,
    /// How long a reader may leave its events unread.
    pub stall: Duration,
    /// How long the engine may show no sign of life before it counts as stuck.
    pub silence: Duration,
}

/// One model and everything that runs on it.
struct Engine {
    settings: Settings,
    source: Source,
    machine: Machine,
    pace: Pace,
    scratch: Scratch,
    /// When mapped weights were moved last, or were asked to.
    exchanged: Instant,
    sampler: Sampler,
    store: Option<StoreHandle>,
    kept: Option<Kept>,
    mailbox: Inside<Message>,
    own: Outside<Message>,
    state: watch::Sender<State>,
    shared: Arc<Shared>,
    loaded: Loaded,
    generation: u64,
    /// The model file is no longer the one that was loaded: nothing is published any more.
    stale: bool,
    /// The changed files, which cannot be read: there is no model to go on with.
    unreadable: Option<Unreadable>,
    draining: Option<Instant>,
    /// No more jobs are taken, and the model goes when those that were have ended.
    unloading: bool,
    queue: Queue,
    blocked: Option<Blocked>,
    sequences: Vec<Sequence>,
    unsynced: HashMap<SeqId, Done>,
    next: u64,
    /// When there was something to compute last.
    worked: Instant,
    families: HashMap<Fingerprint, Arc<Family>>,
    slabs: HashMap<Codec, Slabs>,
    index: Index,
    claims: Claims,
    history: History,
    /// How often something was removed on request.
    removals: u64,
}

impl Engine {
    /// Runs until it is told to end, or to give its model up: then what is left goes on without.
    fn run(mut self) -> Option<Rest> {
        let packed = if self.loaded.packed.is_kept() { "before" } else { "now" };
        tracing::info!(model = self.source.name, load = ?self.loaded.info.load, packed, "ready");
        self.recall_pins();
        let mut busy = false;
        while self.receive(busy) {
            self.shared.beat();
            self.sweep();
            self.bury();
            self.watch_source();
            if self.stale && self.sequences.is_empty() && !self.unloading {
                self.reload();
            }
            self.admit();
            self.follow();
            self.observe();
            busy = self.step();
            if busy {
                self.worked = Instant::now();
                self.exchange_between_steps();
            }
            self.bury();
            self.observe();
            let empty = self.sequences.is_empty() && self.queue.is_empty();
            if self.draining.is_some() && empty {
                return None;
            }
            if (self.unloading || self.unreadable.is_some()) && empty {
                return Some(self.give_up());
            }
        }
        None
    }

    /// Takes in what has arrived, and waits for more when nothing can run. False when nobody can
    /// ever send again.
    fn receive(&mut self, busy: bool) -> bool {
        if !busy {
            let idle = self.sequences.is_empty() && self.queue.is_empty() && !self.stale;
            let rests = idle && self.worked.elapsed() >= HEARTBEAT;
            if rests {
                self.keep_pack();
            }
            let exchanges = rests && self.loaded.packed.exchange(AT_REST);
            let patience = match (exchanges, idle) {
                (true, _) => Duration::ZERO,
                (false, true) => HEARTBEAT,
                (false, false) => GLANCE,
            };
            match self.mailbox.receiver.recv_timeout(patience) {
                Ok(message) => self.take(message),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
        while let Ok(message) = self.mailbox.receiver.try_recv() {
            self.take(message);
        }
        true
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Job(job) if self.unloading => self.refuse(&job, Failure::Reloaded),
            Message::Job(job) => self.enqueue(*job),
            Message::Restored(id, removals, found) => {
                // What was found before a removal may be what was removed.
                let current = removals == self.removals;
                self.restored(id, if current { found } else { Restored::default() });
            }
            Message::Published(blocks) => self.published(blocks),
            Message::LetGo(keys) => self.index.let_go(&keys),
            Message::Durable(id, synced) => self.synced(id, synced),
            Message::Remove(what, reply) => {
                // An asker that is gone needs no answer; the same below.
                let _ = reply.send(self.remove(&what));
            }
            Message::Pin(lease, reply) => {
                let pinned = self.index.pin(lease);
                let _ = reply.map(|reply| reply.send(pinned));
            }
            Message::Unpin(key) => self.index.unpin(&key),
            Message::Explain(question, reply) => self.explain(*question, reply),
            Message::Glimpsed(glimpsed) => self.explained(glimpsed.0, &glimpsed.1),
            Message::List(reply) => {
                let _ = reply.send(self.list());
            }
            Message::Holds(keys, reply) => {
                let _ = reply.send(keys.iter().map(|key| self.index.contains(key)).collect());
            }
            Message::Report(reply) => {
                let _ = reply.send(self.report());
            }
            // It has its model, or has it again when it has given it up.
            Message::Load => self.shared.obeyed(),
            Message::Unload => {
                self.unloading = true;
                self.state.send_replace(State::Unloading);
                self.shared.obeyed();
            }
            Message::Drain(deadline) => self.draining = Some(deadline),
        }
    }

    /// Moves a part of mapped weights, seldom enough for whoever waits for tokens.
    fn exchange_between_steps(&mut self) {
        if self.exchanged.elapsed() >= EXCHANGES {
            self.loaded.packed.exchange(BETWEEN_STEPS);
            self.exchanged = Instant::now();
        }
    }

    /// Has weights that were packed in this process written: not before the engine has had nothing
    /// to compute for a moment, since nobody waits for that and the first tokens want the
    /// processor.
    fn keep_pack(&mut self) {
        if let (Some(kept), Some(unkept)) = (&self.kept, self.loaded.packed.take()) {
            kept.keep_pack(unkept);
        }
    }

    /// Notices that the model file was changed under its name.
    fn watch_source(&mut self) {
        if !self.stale && self.loaded.is_stale() {
            tracing::warn!(model = self.source.name, "a file changed: reloading");
            self.stale = true;
            if !self.unloading {
                self.state.send_replace(State::Loading);
            }
        }
    }

    /// Loads the model again, once its file is left alone. Jobs made for the old one are told so.
    /// When that cannot be read the old one goes: nobody is served by it, and it takes memory that
    /// others may want.
    fn reload(&mut self) {
        if !self.loaded.is_stale() {
            // Whoever overwrote a file took it away again; what was in it is in memory.
            self.stale = false;
            self.state.send_replace(State::Ready(Arc::clone(&self.loaded.info)));
            return;
        }
        let Some(stamps) = self.source.settled() else { return };
        self.state.send_replace(State::Loading);
        let shared = Arc::clone(&self.shared);
        let hand = shared.hand(self.generation + 1);
        match self.source.load(self.generation + 1, &self.machine, self.kept.as_ref(), &hand) {
            Ok(loaded) => {
                self.drop_old_pack(&loaded);
                self.generation += 1;
                self.stale = false;
                self.index.clear();
                self.recall_pins();
                self.families.clear();
                self.slabs.clear();
                self.claims = Claims::default();
                self.pace = Pace::default();
                self.state.send_replace(State::Ready(Arc::clone(&loaded.info)));
                self.loaded = loaded;
            }
            Err(source::SourceError::Changed { .. }) => {}
            // There may be room for the new one once the old one is gone.
            Err(error @ source::SourceError::Place { .. }) => {
                tracing::warn!(%error, "model not reloaded beside the old one");
                self.unloading = true;
            }
            Err(error) => {
                tracing::error!(%error, "model not reloaded");
                self.unreadable = Some(Unreadable::new(stamps, &error));
            }
        }
    }

    /// A model that is trained on leaves no pack behind for each of its states.
    fn drop_old_pack(&self, new: &Loaded) {
        let (old, new) = (self.loaded.info.fields.weights, new.info.fields.weights);
        if let Some(kept) = self.kept.as_ref().filter(|_| old != new) {
            kept.drop_pack(old);
        }
    }

    fn position(&self, id: SeqId) -> Option<usize> {
        self.sequences.iter().position(|sequence| sequence.id == id)
    }
}
