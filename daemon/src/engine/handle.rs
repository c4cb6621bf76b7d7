//! How everyone else talks to an engine: a mailbox in, a state to watch, events out.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::adapters::AdapterInfo;
use super::explain::Inquiry;
use super::hand_over::{Closed, Outside};
use super::job::{Job, Namespace, Reuse};
use crate::kv::block::Block;
use crate::kv::codec::Codec;
use crate::kv::device::Usage;
use crate::kv::key::{BlockKey, Digest, End, Fields, RecordKey};
use crate::kv::layout::Layout;
use crate::metrics::Meter;
use crate::model::AdapterId;
use crate::model::load::Vocabulary;
use crate::store::{Family, Glimpse, Restored};

/// What is known about a loaded model.
#[derive(Debug)]
pub struct ModelInfo {
    /// The name that requests use.
    pub name: String,
    /// Counts loads; a job made for another generation is answered with `Reloaded`.
    pub generation: u64,
    /// Where it came from; `None` for the built-in model.
    pub path: Option<std::path::PathBuf>,
    /// `tinygpt` or `gguf`.
    pub format: &'static str,
    /// `tinygpt`, `llama`, ..
    pub architecture: String,
    /// The weights' types, in words.
    pub quantisation: String,
    /// Most tokens of prompt and text together.
    pub context: usize,
    /// V.
    pub vocab: usize,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Bytes of the weights in memory.
    pub weight_bytes: u64,
    /// Numbers in its weight matrices.
    pub parameters: u64,
    /// How long the load took.
    pub load: Duration,
    /// C, the width of the residual stream.
    pub width: usize,
    /// H, to tell what the cache would hold without grouped heads.
    pub heads: usize,
    /// The kind of its tokenizer, in words.
    pub tokenizer: String,
    /// The arrangement of blocks for a codec's sake: `layouts[codec]` in the order of `Codec::ALL`.
    pub layouts: Vec<Arc<Layout>>,
    /// The fields of every fingerprint of this model; codec, layout, identity and namespace vary,
    /// and so does the adapter, which is none here.
    pub fields: Fields,
    /// The numerics label.
    pub numerics: &'static str,
    /// The codec of requests that name none.
    pub default_codec: Codec,
    /// What requests may add to it.
    pub adapters: Vec<AdapterInfo>,
}

impl ModelInfo {
    /// The arrangement of blocks under `codec`.
    pub fn layout(&self, codec: Codec) -> &Arc<Layout> {
        let index = Codec::ALL.iter().position(|known| *known == codec);
        &self.layouts[index.expect("ALL lists every codec")]
    }

    /// The adapter that has this field of a fingerprint; `None` where none is meant.
    pub(super) fn adapter(&self, digest: Digest) -> Option<AdapterId> {
        self.adapters.iter().position(|adapter| adapter.digest == digest).map(AdapterId)
    }

    /// The fields of chains with `codec` and an adapter in `namespace`.
    pub fn fields(&self, codec: Codec, adapter: Digest, namespace: &Namespace) -> Fields {
        Fields {
            adapter,
            codec: Digest::of("codec", codec.name().as_bytes()),
            layout: self.layout(codec).digest(),
            identity: namespace.identity,
            namespace: namespace.sub,
            ..self.fields
        }
    }

    /// Chains with `codec` and an adapter in `namespace`.
    pub(super) fn family(&self, codec: Codec, adapter: Digest, namespace: &Namespace) -> Family {
        let fields = self.fields(codec, adapter, namespace);
        let layout = Arc::clone(self.layout(codec));
        Family { fingerprint: fields.fingerprint(), fields, layout, width: self.width }
    }

    /// What a token would take under the default codec if every query head had KV of its own.
    pub fn mha_token_bytes(&self) -> usize {
        let layout = self.layout(self.default_codec);
        let layer = |layer| {
            let shape = layout.shape(layer);
            self.heads * (shape.k_dim + shape.v_dim) * layout.codec().bytes()
        };
        (0..layout.layers()).map(layer).sum()
    }

    /// Whether this model computed the chains with `fields`, under whichever codec, with whichever
    /// of its adapters and for whomever.
    pub fn computed(&self, fields: &Fields) -> bool {
        let adapter = self.adapter(fields.adapter).map_or(self.fields.adapter, |_| fields.adapter);
        let same = Fields {
            adapter,
            codec: fields.codec,
            layout: fields.layout,
            identity: fields.identity,
            namespace: fields.namespace,
            ..self.fields
        };
        same == *fields
    }
}

/// Where an engine stands.
#[derive(Debug, Clone)]
pub enum State {
    /// The model is being read.
    Loading,
    /// Requests are served.
    Ready(Arc<ModelInfo>),
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
    Vocabulary(u64, mpsc::Sender<Option<Vocabulary>>),
    Explain(Box<Question>, mpsc::Sender<Explanation>),
    Glimpsed(Box<(Inquiry, Glimpse)>),
    List(mpsc::Sender<Vec<Held>>),
    Holds(Arc<[BlockKey]>, mpsc::Sender<Vec<bool>>),
    Report(mpsc::Sender<Report>),
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
    pub(super) mailbox: Outside<Message>,
    pub(super) state: watch::Receiver<State>,
    pub(super) shared: Arc<Shared>,
}

/// What the engine thread and its handles both see.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) silence: Duration,
    /// Milliseconds since `epoch` at the engine's last sign of life.
    pub(super) beat: AtomicU64,
    pub(super) epoch: Instant,
    pub(super) meter: Meter,
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
    /// large models on slow machines; one that loads its model gives none for as long as it takes.
    pub fn is_stuck(&self) -> bool {
        !matches!(*self.state.borrow(), State::Loading) && self.silence() > self.shared.silence
    }

    /// Requests that wait for admission.
    pub fn waiting(&self) -> usize {
        self.mailbox.waiting()
    }

    /// Whether the engine reads its mailbox: while it loads its model it does not.
    pub fn is_ready(&self) -> bool {
        matches!(*self.state.borrow(), State::Ready(_))
    }

    /// What the tokenizer of the model of a generation is built from. It is handed over once:
    /// `None` for whoever comes later, or asks for a model that was loaded anew since. Blocks for
    /// up to one step: call it off the runtime.
    ///
    /// # Errors
    /// As for [`remove`](Self::remove).
    pub fn vocabulary(&self, generation: u64) -> Result<Option<Vocabulary>, Refused> {
        self.ask(|reply| Message::Vocabulary(generation, reply))
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

    fn ask<T>(&self, message: impl FnOnce(mpsc::Sender<T>) -> Message) -> Result<T, Refused> {
        let (reply, answer) = mpsc::channel();
        self.mailbox.send(message(reply)).map_err(|_| Refused::Stopped)?;
        let patience = self.shared.silence;
        answer.recv_timeout(patience).map_err(|error| match error {
            RecvTimeoutError::Timeout => Refused::Silent(patience),
            RecvTimeoutError::Disconnected => Refused::Stopped,
        })
    }
}
