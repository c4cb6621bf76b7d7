//! How everyone else talks to an engine: a mailbox in, a state to watch, events out.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::event::Reuse;
use super::explain::Inquiry;
use super::hand_over::{Closed, Outside};
use super::info::ModelInfo;
use super::job::{Job, Namespace};
use crate::kv::block::Block;
use crate::kv::codec::Codec;
use crate::kv::device::Usage;
use crate::kv::key::{BlockKey, Digest, End, Fields, RecordKey};
use crate::kv::pin::{Lease, NoRoom, Pinned};
use crate::metrics::Meter;
use crate::model::load::Vocabulary;
use crate::store::{Glimpse, Restored};

/// Where an engine stands.
#[derive(Debug, Clone)]
pub enum State {
    /// The model is not in memory, until somebody asks for it.
    Unloaded,
    /// The model is being read.
    Loading,
    /// Requests are served.
    Ready(Arc<ModelInfo>),
    /// The model leaves memory when the requests that have it have ended.
    Unloading,
    /// The model could not be read; the words say why.
    Failed(String),
    /// The engine thread died.
    Poisoned,
}

/// What an engine reads from its mailbox.
pub(super) enum Message {
    Job(Box<Job>),
    /// A loader's answer, and how many removals the engine had seen when it was asked for.
    Restored(super::sequence::SeqId, u64, Restored),
    Published(Vec<Arc<Block>>),
    LetGo(Vec<BlockKey>),
    Durable(super::sequence::SeqId, bool),
    Remove(Removal, mpsc::Sender<Removed>),
    Pin(Lease, Option<mpsc::Sender<Result<Pinned, NoRoom>>>),
    Unpin(RecordKey),
    Explain(Box<Question>, mpsc::Sender<Explanation>),
    Glimpsed(Box<(Inquiry, Glimpse)>),
    List(mpsc::Sender<Vec<Held>>),
    Holds(Arc<[BlockKey]>, mpsc::Sender<Vec<bool>>),
    Report(mpsc::Sender<Report>),
    Load,
    Unload,
    Drain(Instant),
}

/// What `cache rm` takes away.
#[derive(Debug, Clone)]
pub enum Removal {
    /// One prompt's chain with what goes with it.
    Prompt(End),
    /// Everything.
    All,
}

/// What was removed.
#[derive(Debug, Clone, Copy, Default)]
pub struct Removed {
    /// Blocks.
    pub blocks: u64,
    /// Records.
    pub records: u64,
    /// Pins, which went with their prompts.
    pub pins: u64,
}

/// A prompt to explain.
#[derive(Debug)]
pub struct Question {
    /// Its ids.
    pub tokens: Arc<[u32]>,
    /// Its text's digest.
    pub text: Option<Digest>,
    /// Whose.
    pub namespace: Namespace,
    /// Under which codec.
    pub codec: Codec,
    /// With which adapter: its field of a fingerprint.
    pub adapter: Digest,
}

/// What would be reused, now.
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    /// What, and why no more.
    pub reuse: Reuse,
    /// The prompt's name.
    pub key: RecordKey,
}

/// A prompt or a generation whose chain memory holds to its end.
#[derive(Debug, Clone)]
pub struct Held {
    /// Its name.
    pub key: RecordKey,
    /// What its family is made from.
    pub fields: Fields,
    /// The ids of the whole chain.
    pub tokens: Vec<u32>,
    /// Bytes on the heap of its blocks, shared ones included, and of its record.
    pub heap_bytes: u64,
    /// Bytes of its blocks in mapped files, shared ones included.
    pub mapped_bytes: u64,
    /// Whether the record holds a final hidden state.
    pub complete: bool,
    /// Until when it is pinned, in milliseconds since the epoch.
    pub pinned_ms: Option<u64>,
    /// Where it is.
    pub end: End,
}

/// What an engine reports about itself.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Requests with memory reserved.
    pub running: u32,
    /// Requests waiting for admission.
    pub waiting: u32,
    /// Blocks in the index.
    pub blocks: u64,
    /// Heap bytes of indexed blocks and records.
    pub heap_bytes: u64,
    /// Bytes of KV in use or reserved by running requests.
    pub active_bytes: u64,
    /// Records in the index.
    pub records: u64,
    /// What is on a device, where the model runs on one.
    pub device: Option<Usage>,
}

/// Why a job was not taken.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Refused {
    /// The queue is full.
    #[error("{waiting} requests are waiting, the queue holds {limit}")]
    QueueFull {
        /// Requests that wait.
        waiting: usize,
        /// Most that may.
        limit: usize,
    },
    /// The engine is gone.
    #[error("the engine has stopped")]
    Stopped,
    /// The engine is there and does not answer, because it loads its model again or is stuck.
    #[error("the engine has not answered for {0:?}")]
    Silent(Duration),
}

/// A cheap, cloneable way to an engine.
#[derive(Debug, Clone)]
pub struct EngineHandle {
    pub(super) name: Arc<str>,
    pub(super) path: Option<Arc<Path>>,
    pub(super) mailbox: Outside<Message>,
    pub(super) state: watch::Receiver<State>,
    pub(super) shared: Arc<Shared>,
}

/// What the engine thread and its handles both see.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) silence: Duration,
    /// Orders to load or to unload that the engine has not come to yet.
    pub(super) orders: AtomicUsize,
    /// Milliseconds since `epoch` at the engine's last sign of life.
    pub(super) beat: AtomicU64,
    pub(super) epoch: Instant,
    pub(super) meter: Meter,
    /// What the tokenizer of the model is built from that is being loaded or was loaded last, and
    /// its generation, until somebody takes it: it is too large to keep.
    pub(super) vocabulary: watch::Sender<Option<(u64, Vocabulary)>>,
}

impl EngineHandle {
    /// The model's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What is measured of the engine: it need not be asked.
    pub fn meter(&self) -> &Meter {
        &self.shared.meter
    }

    /// Where its model comes from; `None` for the built-in one.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Has the engine load its model, unless it has it.
    pub fn load(&self) {
        self.order(Message::Load);
    }

    /// Has the engine give its model's memory back when the requests that it has taken have ended.
    /// Later ones are answered `Reloaded`.
    pub fn unload(&self) {
        self.order(Message::Unload);
    }

    fn order(&self, order: Message) {
        self.shared.orders.fetch_add(1, Ordering::AcqRel);
        // An engine that is gone has no model.
        let _ = self.mailbox.send(order);
    }

    /// Whether the engine was told to load or to unload and has not begun yet: its state is about
    /// to change.
    pub fn is_ordered(&self) -> bool {
        self.shared.orders.load(Ordering::Acquire) > 0
    }

    /// Where the engine stands, to read or to wait for a change.
    pub fn state(&self) -> watch::Receiver<State> {
        self.state.clone()
    }

    /// Queues a job.
    ///
    /// # Errors
    /// When the queue is full or the engine has stopped.
    pub fn submit(&self, job: Job) -> Result<(), Refused> {
        self.mailbox.submit(Message::Job(Box::new(job))).map_err(|closed| match closed {
            Closed::Full(waiting) => Refused::QueueFull { waiting, limit: self.mailbox.limit() },
            Closed::Gone => Refused::Stopped,
        })
    }

    /// How long ago the engine last showed a sign of life. It does so at every step, and every
    /// second while idle.
    pub fn silence(&self) -> Duration {
        let beat = Duration::from_millis(self.shared.beat.load(Ordering::Acquire));
        self.shared.epoch.elapsed().saturating_sub(beat)
    }

    /// Whether the engine gives no sign of life any more. The longest steps are prefill slices of
    /// large models on slow machines; one that loads its model gives none for as long as it takes,
    /// and one that has none gives none at all.
    pub fn is_stuck(&self) -> bool {
        let silent = matches!(*self.state.borrow(), State::Loading | State::Unloaded);
        !silent && self.silence() > self.shared.silence
    }

    /// Requests that wait for admission.
    pub fn waiting(&self) -> usize {
        self.mailbox.waiting()
    }

    /// Whether the engine has its model: while it loads one it does not read its mailbox.
    pub fn is_ready(&self) -> bool {
        matches!(*self.state.borrow(), State::Ready(_))
    }

    /// What the tokenizer of a model is built from, and the generation of that model. It is handed
    /// over once for each load, as soon as the engine has read it, which is before the model is
    /// ready. A load may fail after that, and the next one hands over another.
    pub fn vocabulary(&self) -> Option<(u64, Vocabulary)> {
        let mut taken = None;
        self.shared.vocabulary.send_if_modified(|there| {
            taken = there.take();
            // It is no news to anybody that it is gone.
            false
        });
        taken
    }

    /// Changes when there is another vocabulary to take.
    pub fn vocabularies(&self) -> watch::Receiver<Option<(u64, Vocabulary)>> {
        self.shared.vocabulary.subscribe()
    }

    /// Has the engine forget chains when it reads its mailbox the next time.
    pub fn remove_behind(&self, what: Removal) {
        let (reply, _) = mpsc::channel();
        // An engine that is gone holds nothing.
        let _ = self.mailbox.send(Message::Remove(what, reply));
    }

    /// Forgets chains in memory, and what loaders find of a disk that was asked before. So tell
    /// the store first. Blocks for up to one step: call it off the runtime.
    ///
    /// # Errors
    /// When the engine has stopped or does not answer; the same for the questions below.
    pub fn remove(&self, what: Removal) -> Result<Removed, Refused> {
        self.ask(|reply| Message::Remove(what, reply))
    }

    /// What would be reused for a prompt. Blocks for up to one step, and while a loader reads
    /// headers: call it off the runtime.
    ///
    /// # Errors
    /// As for [`remove`](Self::remove).
    pub fn explain(&self, question: Question) -> Result<Explanation, Refused> {
        self.ask(|reply| Message::Explain(Box::new(question), reply))
    }

    /// The chain ends in memory, most recently used first. Blocks for up to one step: call it off
    /// the runtime.
    ///
    /// # Errors
    /// As for [`remove`](Self::remove).
    pub fn list(&self) -> Result<Vec<Held>, Refused> {
        self.ask(Message::List)
    }

    /// Which of these blocks memory holds. Blocks for up to one step: call it off the runtime.
    ///
    /// # Errors
    /// As for [`remove`](Self::remove).
    pub fn holds(&self, keys: Arc<[BlockKey]>) -> Result<Vec<bool>, Refused> {
        self.ask(|reply| Message::Holds(keys, reply))
    }

    /// What the engine holds. Blocks for up to one step: call it off the runtime.
    ///
    /// # Errors
    /// As for [`remove`](Self::remove).
    pub fn report(&self) -> Result<Report, Refused> {
        self.ask(Message::Report)
    }

    /// Takes no more jobs; running ones end by themselves or at `deadline`, then the engine ends.
    pub fn drain(&self, deadline: Instant) {
        // An engine that is gone has drained.
        let _ = self.mailbox.send(Message::Drain(deadline));
    }

    pub(super) fn ask<T>(
        &self,
        message: impl FnOnce(mpsc::Sender<T>) -> Message,
    ) -> Result<T, Refused> {
        let (reply, answer) = mpsc::channel();
        self.mailbox.send(message(reply)).map_err(|_| Refused::Stopped)?;
        let patience = self.shared.silence;
        answer.recv_timeout(patience).map_err(|error| match error {
            RecvTimeoutError::Timeout => Refused::Silent(patience),
            RecvTimeoutError::Disconnected => Refused::Stopped,
        })
    }
}
