//! An engine in this process, and requests to it.
#![allow(dead_code, reason = "each test file uses its part")]
#![expect(clippy::unwrap_used, reason = "tests")]

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tinygpt_kernels::Pool;
use tinygptd::engine::event::{Done, Event, Failure, Reuse, Token};
use tinygptd::engine::handle::Report;
use tinygptd::engine::job::{
    Caller, ClientId, Job, Namespace, Persist, Policy, Priority, Sampling, Task,
};
use tinygptd::engine::{self, EngineHandle, ModelInfo, Source, State};
use tinygptd::kv::codec::Codec;
use tinygptd::kv::index::Budget;
use tinygptd::kv::key::Digest;
use tinygptd::model::Machine;
use tinygptd::model::device::Choice;
use tinygptd::store::{self, StoreHandle};
use tokio::sync::mpsc;

/// Room for the admission and a few tokens, after which a request waits for its reader.
pub(crate) const LITTLE: usize = 16;

pub(crate) type Events = mpsc::Receiver<Event>;

/// What an engine runs with.
pub(crate) struct Setup {
    pub threads: usize,
    pub cache: Option<PathBuf>,
    pub source: Source,
    pub device: Choice,
    /// Bytes of KV on the device.
    pub device_memory: usize,
    pub heap: usize,
    pub active: usize,
    pub queue: usize,
    pub stall: Duration,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            threads: 2,
            cache: None,
            source: Source::new("builtin", None),
            device: Choice::Cpu,
            device_memory: 1 << 30,
            heap: 1 << 30,
            active: 1 << 30,
            queue: 64,
            stall: Duration::from_secs(600),
        }
    }
}

/// A running engine; dropping it ends it.
pub(crate) struct Running {
    pub handle: EngineHandle,
    thread: Option<std::thread::JoinHandle<()>>,
    pub store: Option<StoreHandle>,
    _threads: Option<store::StoreThreads>,
}

pub(crate) fn settings(dir: &Path) -> store::Settings {
    store::Settings {
        dir: dir.to_owned(),
        disk_budget: 1 << 30,
        free_floor: 0,
        daily_writes: None,
        mappings: 64,
        minimum_tokens: 64,
        socket: dir.join("socket"),
    }
}

impl Setup {
    pub(crate) fn on_disk(dir: &Path) -> Self {
        Self { cache: Some(dir.to_owned()), ..Self::default() }
    }

    /// Serves a model file instead of the built-in model.
    pub(crate) fn model(self, path: &Path) -> Self {
        let source = Source { name: "file".into(), path: Some(path.to_owned()), ..self.source };
        Self { source, ..self }
    }

    pub(crate) fn start(self) -> Running {
        let opened = self.cache.as_deref().map(|dir| store::open(settings(dir)).unwrap());
        let (store, threads) = opened.unzip();
        let settings = engine::Settings {
            queue: self.queue,
            active_budget: self.active,
            cache_budget: Budget { heap: self.heap, mappings: 64 },
            stall: self.stall,
            silence: Duration::from_secs(60),
        };
        let pool = Arc::new(Pool::new(NonZeroUsize::new(self.threads).unwrap()));
        let machine = Machine { pool, device: self.device.open(self.device_memory).unwrap() };
        let (handle, thread) =
            engine::spawn(settings, self.source, machine, store.clone()).unwrap();
        let running = Running { handle, thread: Some(thread), store, _threads: threads };
        running.info();
        running
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.handle.drain(Instant::now());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
        if let Some(store) = &self.store {
            store.flush();
        }
    }
}

/// A finished request.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub tokens: Vec<Token>,
    pub reuse: Reuse,
    pub done: Done,
}

impl Reply {
    pub(crate) fn ids(&self) -> Vec<u32> {
        self.tokens.iter().map(|token| token.id).collect()
    }

    /// Every probability of every position, as bits.
    pub(crate) fn bits(&self) -> Vec<Vec<(u32, u32)>> {
        let bits = |token: &Token| token.top.iter().map(|(id, p)| (*id, p.to_bits())).collect();
        self.tokens.iter().map(bits).collect()
    }
}

/// A request being made.
#[derive(Clone)]
pub(crate) struct Ask {
    pub prompt: Vec<u32>,
    pub max_tokens: u32,
    pub policy: Policy,
    pub persist: Persist,
    pub codec: Codec,
    pub identity: &'static str,
    pub sub: &'static str,
    pub text: Option<&'static str>,
    pub caller: Caller,
    pub choices: u32,
    pub deadline: Option<Duration>,
    /// Name of an adapter; empty is none.
    pub adapter: &'static str,
}

impl Ask {
    pub(crate) fn new(prompt: &[u32]) -> Self {
        Self {
            prompt: prompt.to_vec(),
            max_tokens: 4,
            policy: Policy::Use,
            persist: Persist::Behind,
            codec: Codec::F16,
            identity: "me",
            sub: "",
            text: None,
            caller: Caller::default(),
            choices: 1,
            deadline: None,
            adapter: "",
        }
    }

    pub(crate) fn adapter(self, adapter: &'static str) -> Self {
        Self { adapter, ..self }
    }

    /// Asked by another process, with another urgency.
    pub(crate) fn by(self, pid: u32, priority: Priority) -> Self {
        Self { caller: Caller { client: ClientId { uid: 0, pid }, priority }, ..self }
    }

    pub(crate) fn choices(self, choices: u32) -> Self {
        Self { choices, ..self }
    }

    pub(crate) fn tokens(self, max_tokens: u32) -> Self {
        Self { max_tokens, ..self }
    }

    pub(crate) fn policy(self, policy: Policy) -> Self {
        Self { policy, ..self }
    }

    pub(crate) fn persist(self, persist: Persist) -> Self {
        Self { persist, ..self }
    }

    pub(crate) fn codec(self, codec: Codec) -> Self {
        Self { codec, ..self }
    }
}

/// Every probability with every token.
pub(crate) fn greedy(max_tokens: u32) -> Sampling {
    Sampling { logprobs: Some(256), ..Sampling::greedy(max_tokens) }
}

impl Running {
    pub(crate) fn info(&self) -> Arc<ModelInfo> {
        let deadline = Instant::now() + Duration::from_secs(60);
        while Instant::now() < deadline {
            match &*self.handle.state().borrow() {
                State::Ready(info) => return Arc::clone(info),
                State::Loading | State::Unloading | State::Unloaded => {}
                State::Failed(words) => panic!("the model does not load: {words}"),
                State::Poisoned => panic!("the engine is poisoned"),
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        panic!("the model is not ready after a minute");
    }

    /// Why the model could not be read; waits until that is so.
    pub(crate) fn failure(&self) -> String {
        let mut words = String::new();
        self.wait_for("a failure", |state| match state {
            State::Failed(why) => {
                words.clone_from(why);
                true
            }
            _ => false,
        });
        words
    }

    pub(crate) fn wait_until_ready(&self) {
        self.wait_for("the model", |state| matches!(state, State::Ready(_)));
    }

    pub(crate) fn wait_until_unloaded(&self) {
        self.wait_for("the end of the model", |state| matches!(state, State::Unloaded));
    }

    pub(crate) fn wait_until_poisoned(&self) {
        self.wait_for("the poison", |state| matches!(state, State::Poisoned));
    }

    fn wait_for(&self, what: &str, mut holds: impl FnMut(&State) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !holds(&self.handle.state().borrow()) {
            assert!(Instant::now() < deadline, "waited a minute for {what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// What tells chains of the adapter with this name from others.
    pub(crate) fn adapter(&self, name: &str) -> Digest {
        let info = self.info();
        let found = info.adapters.iter().find(|adapter| adapter.name == name);
        found.map_or(info.fields.adapter, |adapter| adapter.digest)
    }

    /// A job for the model as it is now.
    pub(crate) fn job(&self, ask: &Ask, events: mpsc::Sender<Event>) -> Job {
        Job {
            task: Task::Sample(Sampling { choices: ask.choices, ..greedy(ask.max_tokens) }),
            tokens: Arc::from(&ask.prompt[..]),
            text: ask.text.map(store::text_digest),
            caller: ask.caller,
            namespace: Namespace {
                identity: Digest::of("identity", ask.identity.as_bytes()),
                sub: Digest::of("namespace", ask.sub.as_bytes()),
            },
            codec: ask.codec,
            adapter: self.adapter(ask.adapter),
            policy: ask.policy,
            persist: ask.persist,
            pin: None,
            deadline: ask.deadline.map(|deadline| Instant::now() + deadline),
            received: Instant::now(),
            generation: self.info().generation,
            events,
        }
    }

    /// Submits without waiting.
    pub(crate) fn submit(&self, ask: &Ask) -> mpsc::Receiver<Event> {
        self.submit_to(ask, engine::job::EVENTS)
    }

    /// Submits without waiting; at most `room` events wait to be read.
    pub(crate) fn submit_to(&self, ask: &Ask, room: usize) -> mpsc::Receiver<Event> {
        let (events, receiver) = mpsc::channel(room);
        self.handle.submit(self.job(ask, events)).unwrap();
        receiver
    }

    pub(crate) fn ask(&self, ask: &Ask) -> Reply {
        collect(self.submit(ask)).unwrap()
    }

    /// Waits until the engine's thread has ended, and says whether it ended well.
    pub(crate) fn wait_for_end(&mut self) -> bool {
        self.thread.take().unwrap().join().is_ok()
    }

    /// Waits until the writer has nothing left to do.
    pub(crate) fn flush(&self) {
        if let Some(store) = &self.store {
            store.flush();
        }
    }
}

pub(crate) fn collect(events: Events) -> Result<Reply, Failure> {
    Ok(collect_choices(events, 1)?.remove(0))
}

/// The texts of a request that asked for several.
pub(crate) fn collect_choices(mut events: Events, choices: usize) -> Result<Vec<Reply>, Failure> {
    let (mut tokens, mut admitted) = (vec![Vec::new(); choices], None);
    let mut replies = vec![None; choices];
    while let Some(event) = events.blocking_recv() {
        match event {
            Event::Admitted(told) => admitted = Some(told.reuse),
            Event::Progress { .. } => {}
            Event::Token(token) | Event::Scored(token) => tokens[token.choice as usize].push(token),
            Event::Done(done) => {
                assert!(admitted.is_some(), "done without admission");
                let (at, reuse) = (done.choice as usize, done.reuse.clone());
                let tokens = std::mem::take(&mut tokens[at]);
                assert!(replies[at].replace(Reply { tokens, reuse, done }).is_none());
                if replies.iter().all(Option::is_some) {
                    return Ok(replies.into_iter().flatten().collect());
                }
            }
            Event::Failed(failure) => return Err(failure),
        }
    }
    panic!("the engine dropped the request")
}

/// Text-like bytes, different for each seed, the same on every run.
pub(crate) fn prompt(seed: u32, len: usize) -> Vec<u32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12_345);
    let mut byte = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        97 + (state >> 16) % 26
    };
    (0..len).map(|_| byte()).collect()
}

pub(crate) fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "waited a minute for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Submits a request that stops by itself, and waits until it is admitted.
pub(crate) fn submit_slow(engine: &Running, ask: &Ask) -> Events {
    let mut events = engine.submit_to(ask, LITTLE);
    assert!(matches!(events.blocking_recv(), Some(Event::Admitted(_))));
    events
}

/// Reads on to the end.
pub(crate) fn rest(mut events: Events) -> (Vec<u32>, Result<Done, Failure>) {
    let mut ids = Vec::new();
    loop {
        match events.blocking_recv().expect("an end") {
            Event::Token(token) => ids.push(token.id),
            Event::Done(done) => return (ids, Ok(done)),
            Event::Failed(failure) => return (ids, Err(failure)),
            Event::Admitted(_) | Event::Progress { .. } | Event::Scored(_) => {}
        }
    }
}

pub(crate) fn report(engine: &Running) -> Report {
    engine.handle.report().unwrap()
}

pub(crate) fn miss(engine: &Running, ask: &Ask) -> Reply {
    engine.ask(&ask.clone().policy(Policy::Bypass))
}

pub(crate) fn assert_same(ours: &Reply, theirs: &Reply) {
    assert_eq!(ours.ids(), theirs.ids());
    assert_eq!(ours.bits(), theirs.bits());
}
