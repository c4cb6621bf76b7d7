//! How requests live and end: late, slow to read, too many, too large, drained; what
//! each policy leaves behind; and what the engine holds meanwhile.
//!
//! A channel with little room stops a request at a known point for as long as a test likes.
#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{
    Ask, Events, LITTLE, Running, Setup, assert_same, collect, greedy, miss, prompt, report, rest,
    submit_slow, wait_for,
};
use tinygptd::engine::Event;
use tinygptd::engine::constraint::{Constraint, Mask, Verdict as Step};
use tinygptd::engine::event::{Failure, Finish, Reason, Verdict};
use tinygptd::engine::handle::{Refused, Removal};
use tinygptd::engine::job::{Persist, Policy, Priority, Sampling, Task};
use tinygptd::kv::codec::Codec;
use tinygptd::store::{ChainEnd, Durability, Family, Restore, Save};
use tokio::sync::mpsc;

/// Bytes of a block of the built-in model in f16: 32 rows of K and V, 6 layers, 192 wide.
const BLOCK_BYTES: usize = 32 * 2 * 6 * 192 * 2;
/// Room for the admission and a token or two.
const LEAST: usize = 4;

fn held(engine: &Running) -> (u64, u64) {
    let report = report(engine);
    (report.blocks, report.records)
}

/// How many segments and records lie under `dir`.
fn files(dir: &Path) -> usize {
    let count = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.unwrap().path();
        let kept = path.extension().is_some_and(|kind| kind == "tgkv" || kind == "tgrec");
        if path.is_dir() { files(&path) } else { usize::from(kept) }
    };
    std::fs::read_dir(dir).unwrap().map(count).sum()
}

#[test]
fn a_deadline_tells_what_was_generated_and_what_is_kept() {
    let engine = Setup::default().start();
    let prompt = prompt(82, 100);
    let ask = Ask::new(&prompt).tokens(500);
    let late = Ask { deadline: Some(Duration::from_secs(3)), ..ask };
    let events = engine.submit_to(&late, LITTLE);
    wait_for("the start", || report(&engine).running == 1);
    wait_for("the deadline", || report(&engine).running == 0);
    let (ids, end) = rest(events);
    let Err(Failure::Deadline { tokens, kept }) = end else { panic!("ended with {end:?}") };
    assert_eq!(tokens as usize, ids.len());
    assert_eq!(kept as usize, prompt.len() + ids.len() - 1);
    let retry = engine.ask(&Ask::new(&[prompt, ids].concat()));
    assert_eq!(retry.reuse.memory, kept);
}

#[test]
fn a_deadline_that_has_passed_computes_nothing() {
    let engine = Setup::default().start();
    let late = Ask { deadline: Some(Duration::ZERO), ..Ask::new(&prompt(83, 100)) };
    let failure = collect(engine.submit(&late)).unwrap_err();
    assert_eq!(failure, Failure::Deadline { tokens: 0, kept: 0 });
    assert_eq!(held(&engine), (0, 0));
}

#[test]
fn a_reader_that_does_not_read_pauses_only_itself() {
    let engine = Setup::default().start();
    let slow = Ask::new(&prompt(84, 70)).tokens(200);
    let events = submit_slow(&engine, &slow);
    for seed in 85..88 {
        let ask = Ask::new(&prompt(seed, 300)).tokens(50);
        assert_same(&engine.ask(&ask), &miss(&engine, &ask));
    }
    assert_eq!(report(&engine).running, 1);
    let (ids, end) = rest(events);
    assert_eq!(end.unwrap().finish, Finish::Length);
    assert_eq!(ids, miss(&engine, &slow).ids());
}

#[test]
fn a_reader_that_never_reads_is_given_up() {
    let stall = Duration::from_millis(200);
    let engine = Setup { stall, ..Setup::default() }.start();
    let events = submit_slow(&engine, &Ask::new(&prompt(88, 70)).tokens(200));
    wait_for("the stall", || report(&engine).running == 0);
    let (ids, end) = rest(events);
    assert!(!ids.is_empty() && ids.len() < LITTLE);
    assert_eq!(end.unwrap_err(), Failure::Stalled(stall));
}

/// Three blocks: 40 tokens, 20 more, and one block that is being filled.
fn small(seed: u32) -> Ask {
    Ask::new(&prompt(seed, 40)).tokens(20)
}

/// An engine that runs one small request at a time.
fn narrow(queue: usize) -> Running {
    let engine = Setup { active: 3 * BLOCK_BYTES, queue, ..Setup::default() }.start();
    assert_eq!(engine.info().layout(Codec::F16).block_bytes(), BLOCK_BYTES);
    engine
}

#[test]
fn a_full_queue_refuses_with_its_numbers() {
    let engine = narrow(2);
    let running = submit_slow(&engine, &small(90));
    let waiting = [engine.submit(&small(91)), engine.submit(&small(92))];
    let (events, _unread) = mpsc::channel(LITTLE);
    let refused = engine.handle.submit(engine.job(&small(93), events)).unwrap_err();
    assert_eq!(refused, Refused::QueueFull { waiting: 2, limit: 2 });
    assert!(rest(running).1.is_ok());
    for events in waiting {
        assert!(collect(events).is_ok());
    }
    assert_eq!(engine.ask(&small(93)).done.completion, 20);
}

#[test]
fn a_request_that_can_never_fit_is_refused_with_both_numbers() {
    let engine = narrow(2);
    let failure = collect(engine.submit(&small(94).tokens(25))).unwrap_err();
    let [needed, budget] = [4 * BLOCK_BYTES as u64, 3 * BLOCK_BYTES as u64];
    assert_eq!(failure, Failure::TooLarge { needed, budget });
    assert_eq!(engine.ask(&small(94).tokens(24)).done.completion, 24);
}

#[test]
fn requests_beyond_the_active_budget_wait_and_then_run() {
    let engine = narrow(8);
    let expected = miss(&engine, &small(96));
    let running = submit_slow(&engine, &small(95));
    let mut waiting = engine.submit(&small(96));
    let since = Instant::now();
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(report(&engine).waiting, 1);
    assert!(waiting.try_recv().is_err());
    let least = since.elapsed();
    assert!(rest(running).1.is_ok());
    let reply = collect(waiting).unwrap();
    assert!(reply.done.times.queue >= least);
    assert_same(&reply, &expected);
}

/// Thirteen blocks: ten of a prompt, two of a text, and one that is being filled.
fn large(seed: u32) -> Ask {
    Ask::new(&prompt(seed, 320)).tokens(40)
}

/// An engine with room for two large requests: one that has computed its prompt, and another that
/// goes on from there. They stand still for as long as nobody reads their events.
fn shared(follower: impl FnOnce(Ask) -> Ask) -> (Running, Events, Events) {
    let (active, heap) = (27 * BLOCK_BYTES, 4 * BLOCK_BYTES);
    let engine = Setup { active, heap, ..Setup::default() }.start();
    let leader = submit_slow(&engine, &large(120).by(1, Priority::Low));
    wait_for("the prompt", || engine.handle.meter().generated_tokens.count() > 0);
    let mut longer = large(120);
    longer.prompt.extend(prompt(121, 5));
    let follower = submit_slow(&engine, &follower(longer));
    assert_eq!(report(&engine).active_bytes as usize, (13 + 3) * BLOCK_BYTES);
    (engine, leader, follower)
}

#[test]
fn what_a_request_reads_is_charged_to_it_when_whoever_computed_it_has_ended() {
    let (engine, leader, follower) = shared(|ask| ask);
    drop(leader);
    wait_for("the end of the first", || report(&engine).running == 1);
    let told = report(&engine);
    assert_eq!(told.active_bytes as usize, 13 * BLOCK_BYTES);
    assert!(told.heap_bytes as usize <= (4 + 13) * BLOCK_BYTES, "{told:?}");
    drop(follower);
    wait_for("the end of the second", || report(&engine).running == 0);
    let told = report(&engine);
    assert!(told.active_bytes == 0 && told.heap_bytes as usize <= 4 * BLOCK_BYTES, "{told:?}");
}

#[test]
fn nobody_is_preempted_for_memory_that_another_request_would_go_on_reading() {
    let (engine, leader, follower) = shared(|ask| ask.by(2, Priority::High));
    // Eleven blocks are free, and the first one's three of its own would be.
    let urgent = Ask::new(&prompt(122, 384)).tokens(40).by(3, Priority::High);
    let waiting = engine.submit(&urgent);
    wait_for("the third", || report(&engine).waiting == 1);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!((report(&engine).running, report(&engine).waiting), (2, 1));
    drop(follower);
    assert!(collect(waiting).is_ok(), "in the place of the first");
    assert!(rest(leader).1.is_ok(), "which went on later");
}

#[test]
fn a_deadline_is_seen_anywhere_in_the_queue() {
    let engine = narrow(8);
    let running = submit_slow(&engine, &small(97));
    let first = engine.submit(&small(98));
    let late = Ask { deadline: Some(Duration::from_millis(50)), ..small(99) };
    let failure = collect(engine.submit(&late)).unwrap_err();
    assert_eq!(failure, Failure::Deadline { tokens: 0, kept: 0 });
    assert_eq!(engine.handle.waiting(), 1);
    assert!(rest(running).1.is_ok());
    assert!(collect(first).is_ok());
}

#[test]
fn draining_refuses_new_requests_and_lets_running_ones_end() {
    let mut engine = Setup::default().start();
    let running = submit_slow(&engine, &Ask::new(&prompt(100, 50)).tokens(60));
    let (events, _unread) = mpsc::channel(LITTLE);
    let later = engine.job(&small(101), events);
    engine.handle.drain(Instant::now() + Duration::from_secs(60));
    assert_eq!(collect(engine.submit(&small(102))).unwrap_err(), Failure::Draining);
    let (ids, end) = rest(running);
    assert_eq!((ids.len(), end.unwrap().finish), (60, Finish::Length));
    assert!(engine.wait_for_end());
    assert_eq!(engine.handle.submit(later).unwrap_err(), Refused::Stopped);
}

#[test]
fn draining_ends_what_runs_too_long_and_keeps_it() {
    let dir = tempfile::tempdir().unwrap();
    let ask = Ask::new(&prompt(103, 100)).tokens(500);
    let ids = {
        let mut engine = Setup::on_disk(dir.path()).start();
        let running = submit_slow(&engine, &ask);
        wait_for("the prompt", || report(&engine).records > 0);
        engine.handle.drain(Instant::now() + Duration::from_millis(50));
        assert!(engine.wait_for_end());
        let (ids, end) = rest(running);
        assert_eq!(end.unwrap().finish, Finish::Cancelled);
        ids
    };
    let engine = Setup::on_disk(dir.path()).start();
    let next = Ask::new(&[ask.prompt, ids].concat());
    let warm = engine.ask(&next);
    assert_eq!(warm.reuse.disk as usize, next.prompt.len() - 1, "{:?}", warm.reuse);
    assert_same(&warm, &miss(&engine, &next));
}

/// Keeps the writer busy for as long as the other end of `release` lives.
fn hold_writer(engine: &Running, release: std::sync::mpsc::Receiver<()>) {
    let (info, job) = (engine.info(), engine.job(&Ask::new(&[1]), mpsc::channel(1).0));
    let fields = info.fields(Codec::F16, job.adapter, &job.namespace);
    let (fingerprint, layout) = (fields.fingerprint(), Arc::clone(info.layout(Codec::F16)));
    let wait = move |_| _ = release.recv();
    engine.store.as_ref().unwrap().save(Save {
        family: Arc::new(Family { fingerprint, fields, layout, width: 192 }),
        blocks: Vec::new(),
        record: None,
        replace: false,
        durability: Durability::Durable(Box::new(wait)),
        published: Box::new(|_| {}),
    });
}

#[test]
fn a_complete_reply_that_waits_for_its_sync_is_not_cancelled_by_a_drain() {
    let dir = tempfile::tempdir().unwrap();
    let mut engine = Setup::on_disk(dir.path()).start();
    let (_held, release) = std::sync::mpsc::channel();
    hold_writer(&engine, release);
    let running = submit_slow(&engine, &Ask::new(&prompt(110, 100)).persist(Persist::Durable));
    wait_for("the sync", || report(&engine).running == 0);
    engine.handle.drain(Instant::now());
    assert!(engine.wait_for_end());
    let (ids, end) = rest(running);
    let done = end.unwrap();
    assert_eq!((ids.len(), done.finish, done.durable), (4, Finish::Length, Some(false)));
}

#[test]
fn refreshing_recomputes_and_replaces() {
    let dir = tempfile::tempdir().unwrap();
    let ask = Ask::new(&prompt(104, 300)).persist(Persist::Durable);
    let cold = {
        let engine = Setup::on_disk(dir.path()).start();
        let cold = engine.ask(&ask);
        engine.flush();
        let before = (held(&engine), files(dir.path()));
        let refreshed = engine.ask(&ask.clone().policy(Policy::Refresh));
        engine.flush();
        assert_eq!(refreshed.reuse.verdict, Verdict::Cold);
        assert_eq!(refreshed.reuse.reason, Some(Reason::PolicyRefresh));
        assert_eq!(refreshed.reuse.cached(), 0);
        assert!(!refreshed.done.times.prefill.is_zero());
        assert_same(&refreshed, &cold);
        assert_eq!((held(&engine), files(dir.path())), before);
        assert_eq!(engine.ask(&ask).reuse.verdict, Verdict::FullMemory);
        cold
    };
    let engine = Setup::on_disk(dir.path()).start();
    let restored = engine.ask(&ask);
    assert_eq!(restored.reuse.verdict, Verdict::FullDisk, "{:?}", restored.reuse);
    assert_same(&restored, &cold);
}

#[test]
fn read_only_and_bypass_leave_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Setup::on_disk(dir.path()).start();
    let ask = Ask::new(&prompt(105, 300)).persist(Persist::Durable);
    for policy in [Policy::ReadOnly, Policy::Bypass] {
        let reply = engine.ask(&ask.clone().policy(policy));
        engine.flush();
        assert_eq!((held(&engine), files(dir.path())), ((0, 0), 0), "{policy:?}");
        assert_eq!((reply.done.key, reply.done.kept), (None, 0));
    }
    let cold = engine.ask(&ask);
    assert_eq!(cold.reuse.verdict, Verdict::Cold);
    assert_eq!(cold.reuse.reason, Some(Reason::NoEntry));
    let bypassed = miss(&engine, &ask);
    assert_eq!(bypassed.reuse.verdict, Verdict::Bypassed);
    assert_eq!(bypassed.reuse.reason, Some(Reason::PolicyBypass));
    assert_eq!(bypassed.reuse.cached(), 0);
    let read = engine.ask(&ask.clone().policy(Policy::ReadOnly));
    assert_eq!(read.reuse.verdict, Verdict::FullMemory);
}

#[test]
fn a_prompt_that_must_not_persist_is_gone_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let ask = Ask::new(&prompt(106, 300)).persist(Persist::No);
    {
        let engine = Setup::on_disk(dir.path()).start();
        engine.ask(&ask);
        assert_eq!(engine.ask(&ask).reuse.verdict, Verdict::FullMemory);
    }
    assert_eq!(files(dir.path()), 0);
    let engine = Setup::on_disk(dir.path()).start();
    let again = engine.ask(&ask);
    assert_eq!(again.reuse.verdict, Verdict::Cold);
    assert_eq!(again.reuse.reason, Some(Reason::NoEntry));
}

/// Breaks an invariant on the engine's own thread.
#[derive(Debug)]
struct Broken;

impl Constraint for Broken {
    fn mask(&self, _: &mut Mask) {}

    fn afresh(&self) -> Box<dyn Constraint> {
        Box::new(Self)
    }

    fn accept(&mut self, _: u32) -> Step {
        panic!("a broken constraint")
    }
}

#[test]
fn a_panic_poisons_the_engine_and_nothing_else() {
    let mut engine = Setup::default().start();
    let (events, mut unanswered) = mpsc::channel(LITTLE);
    let mut job = engine.job(&small(107), events.clone());
    let sampling = Sampling { constraint: Some(Box::new(Broken)), ..greedy(4) };
    job.task = Task::Sample(sampling);
    let later = engine.job(&small(107), events);
    engine.handle.submit(job).unwrap();
    engine.wait_until_poisoned();
    assert!(!engine.wait_for_end());
    assert_eq!(engine.handle.submit(later).unwrap_err(), Refused::Stopped);
    while let Some(event) = unanswered.blocking_recv() {
        let harmless = matches!(event, Event::Admitted(_) | Event::Progress { .. });
        assert!(harmless, "{event:?}");
    }
}

#[test]
fn a_short_chain_in_memory_hides_no_longer_one_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let long = Ask::new(&prompt(111, 300)).persist(Persist::Durable);
    let cold = Setup::on_disk(dir.path()).start().ask(&long);
    let engine = Setup::on_disk(dir.path()).start();
    let short = engine.ask(&Ask::new(&long.prompt[..100]));
    assert_eq!(short.reuse.cached(), 99, "{:?}", short.reuse);
    let reply = engine.ask(&long);
    assert_eq!((reply.reuse.cached(), reply.reuse.verdict), (300, Verdict::FullDisk));
    assert!(reply.reuse.memory >= 96, "{:?}", reply.reuse);
    assert_same(&reply, &cold);
}

#[test]
fn nobody_waits_for_a_score_that_is_not_read() {
    let engine = Setup::default().start();
    let ask = Ask::new(&prompt(110, 600));
    let (events, unread) = mpsc::channel(80);
    let mut job = engine.job(&ask, events);
    job.task = Task::Score { top: 1 };
    engine.handle.submit(job).unwrap();
    wait_for("the score to begin", || unread.len() > 20);
    assert_same(&engine.ask(&ask), &miss(&engine, &ask));
    drop(unread);
}

#[test]
fn without_any_budget_for_the_cache_everything_is_still_served() {
    let dir = tempfile::tempdir().unwrap();
    let ask = Ask::new(&prompt(108, 300));
    for setup in [Setup::default(), Setup::on_disk(dir.path())] {
        let engine = Setup { heap: 0, ..setup }.start();
        let never = miss(&engine, &ask);
        for _ in 0..3 {
            assert_same(&engine.ask(&ask), &never);
            engine.flush();
            // The writer's answer and the report come through one mailbox, in this order.
            wait_for("the heap", || report(&engine).heap_bytes == 0);
        }
    }
}

#[test]
fn a_restored_prompt_is_read_where_it_is_mapped() {
    let dir = tempfile::tempdir().unwrap();
    let ask = Ask::new(&prompt(109, 1000));
    Setup::on_disk(dir.path()).start().ask(&ask.clone().persist(Persist::Durable));
    let engine = Setup::on_disk(dir.path()).start();
    let mut events = engine.submit_to(&ask, LEAST);
    let Some(Event::Admitted(admitted)) = events.blocking_recv() else { panic!("not admitted") };
    assert_eq!(admitted.reuse.verdict, Verdict::FullDisk);
    let running = report(&engine);
    let mapped = engine.store.as_ref().unwrap().stats().mapped_bytes as usize;
    assert!((31 * BLOCK_BYTES..33 * BLOCK_BYTES).contains(&mapped), "{mapped} bytes");
    assert!((running.heap_bytes as usize) < BLOCK_BYTES, "{running:?}");
    // Its own are the block with the prompt's last 8 tokens and the one that may follow.
    assert_eq!(running.active_bytes as usize, 2 * BLOCK_BYTES);
    assert!(rest(events).1.is_ok());
    let after = report(&engine);
    assert!((after.heap_bytes as usize) < BLOCK_BYTES, "{after:?}");
}

/// Has the loader that serves next stand still until the sender is dropped.
fn hold_loader(engine: &Running, entry: &ChainEnd) -> std::sync::mpsc::Sender<()> {
    let store = engine.store.as_ref().unwrap();
    let fields = store.fields(&entry.fingerprint).unwrap();
    let layout = Arc::clone(engine.info().layout(Codec::F16));
    let family = Arc::new(Family { fingerprint: entry.fingerprint, fields, layout, width: 1 });
    let (go, wait) = std::sync::mpsc::channel();
    let (stand, stands) = std::sync::mpsc::channel();
    let reply = move |_| {
        stand.send(()).unwrap();
        // It ends when nobody can send any more.
        let _ = wait.recv();
    };
    let nothing = Restore { family, tokens: Arc::from([7]), keys: Arc::from([]), from: 0 };
    store.restore(nothing, Box::new(reply));
    stands.recv().unwrap();
    go
}

#[test]
fn what_was_removed_while_a_loader_looked_for_it_is_not_taken_in() {
    let dir = tempfile::tempdir().unwrap();
    let ask = Ask::new(&prompt(110, 300));
    Setup::on_disk(dir.path()).start().ask(&ask.clone().persist(Persist::Durable));
    for everything in [false, true] {
        let engine = Setup::on_disk(dir.path()).start();
        let entries = engine.store.as_ref().unwrap().list();
        let entry = entries.into_iter().find(|entry| entry.tokens == 300).unwrap();
        let loader = hold_loader(&engine, &entry);
        let events = engine.submit(&ask);
        wait_for("the request to ask a loader", || report(&engine).running == 1);
        let what = if everything { Removal::All } else { Removal::Prompt(entry.end) };
        engine.handle.remove(what).unwrap();
        // The files are still there, as they are for a loader that is a little faster.
        drop(loader);
        assert_eq!(collect(events).unwrap().reuse.verdict, Verdict::Cold);
    }
}
