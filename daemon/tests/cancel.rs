//! Requests whose reader goes away: at every step of a prefill and of a reply, what was computed
//! stays, under the name of exactly its tokens, and going on from there gives the bits of a miss.
#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::sync::{Arc, Mutex};

use common::{
    Ask, Events, Reply, Running, Setup, assert_same, greedy, miss, prompt, report, submit_slow,
};
use tinygptd::engine::Event;
use tinygptd::engine::constraint::{Constraint, Mask, Verdict as Step};
use tinygptd::engine::event::Verdict;
use tinygptd::engine::job::{EVENTS, Policy, Sampling, Task};
use tokio::sync::mpsc;

/// Drops `reader` on the engine's own thread, as it samples the token that uses up `left`.
#[derive(Debug, Default)]
struct Leaving {
    left: usize,
    seen: Vec<u32>,
    reader: Option<Events>,
}

/// A sequence's share in it.
#[derive(Debug, Clone, Default)]
struct Leaver(Arc<Mutex<Leaving>>);

impl Leaver {
    fn leave_after(&self, tokens: usize, reader: Events) {
        *self.0.lock().unwrap() = Leaving { left: tokens, seen: Vec::new(), reader: Some(reader) };
    }

    fn has_left(&self) -> bool {
        self.0.lock().unwrap().reader.is_none()
    }

    fn seen(&self) -> Vec<u32> {
        self.0.lock().unwrap().seen.clone()
    }
}

impl Constraint for Leaver {
    fn mask(&self, _: &mut Mask) {}

    fn afresh(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }

    fn accept(&mut self, token: u32) -> Step {
        let mut leaving = self.0.lock().unwrap();
        if leaving.reader.is_some() {
            leaving.seen.push(token);
            leaving.left -= 1;
        }
        if leaving.left == 0 {
            leaving.reader = None;
        }
        Step::Continue
    }
}

/// Submits a request on whose tokens `leaver` counts.
fn submit_counted(engine: &Running, ask: &Ask, leaver: &Leaver, events: mpsc::Sender<Event>) {
    let mut job = engine.job(ask, events);
    let constraint = Some(Box::new(leaver.clone()) as Box<dyn Constraint>);
    job.task = Task::Sample(Sampling { constraint, ..greedy(ask.max_tokens) });
    engine.handle.submit(job).unwrap();
}

#[test]
fn a_reply_that_is_cancelled_at_any_token_leaves_exactly_the_rows_it_computed() {
    let engine = Setup::default().start();
    for tokens in 1..=70 {
        let ask = Ask::new(&prompt(300 + tokens, 20 + tokens as usize)).tokens(100);
        let leaver = Leaver::default();
        let (events, reader) = mpsc::channel(EVENTS);
        leaver.leave_after(tokens as usize, reader);
        submit_counted(&engine, &ask, &leaver, events);
        common::wait_for("the cancel", || leaver.has_left());
        let next = Ask::new(&[ask.prompt, leaver.seen()].concat()).policy(Policy::ReadOnly);
        let retry = engine.ask(&next);
        // The last token was sampled and never computed.
        assert_eq!(retry.reuse.memory as usize, next.prompt.len() - 1, "after {tokens} tokens");
        assert_same(&retry, &miss(&engine, &next));
    }
}

/// Cancels a prompt of 1,000 tokens, of which `known` are cached, after so many `steps` beside
/// somebody who generates. What is left of it, as a retry finds it.
fn cancel_after(setup: Setup, steps: usize, known: usize) -> (Running, Ask, Reply) {
    let engine = setup.start();
    let ask = Ask::new(&prompt(79, 1000));
    if known > 0 {
        engine.ask(&Ask::new(&ask.prompt[..known]).tokens(0));
    }
    let beside = Ask::new(&prompt(80, 20)).tokens(900).policy(Policy::Bypass);
    let leaver = Leaver::default();
    let (told, mut tokens) = mpsc::channel(EVENTS);
    submit_counted(&engine, &beside, &leaver, told);
    while !matches!(tokens.blocking_recv(), Some(Event::Token(_))) {}
    let (events, reader) = mpsc::channel(EVENTS);
    let job = engine.job(&ask, events);
    engine.handle.submit(job).unwrap();
    leaver.leave_after(steps, reader);
    while !leaver.has_left() {
        tokens.blocking_recv();
    }
    drop(tokens);
    let retry = engine.ask(&ask.clone().policy(Policy::ReadOnly));
    (engine, ask, retry)
}

#[test]
fn a_prefill_that_is_cancelled_after_any_step_leaves_exactly_the_rows_it_computed() {
    let mut lengths = std::collections::BTreeSet::new();
    for (known, steps) in [0, 13, 45, 64].iter().flat_map(|known| (1..=3).map(|n| (*known, n))) {
        let (engine, ask, retry) = cancel_after(Setup::default(), steps, known);
        let kept = retry.reuse.memory as usize;
        let chains = engine.handle.list().unwrap().into_iter().map(|held| held.tokens);
        let longest = chains.filter(|tokens| ask.prompt.starts_with(tokens)).map(|t| t.len()).max();
        assert_eq!(longest.unwrap_or(0), kept, "cancelled after {steps} steps, {known} were known");
        assert_same(&retry, &miss(&engine, &ask));
        lengths.insert(kept);
    }
    assert!(lengths.len() >= 4, "cancelled at {lengths:?} only");
}

#[test]
fn what_a_cancelled_prefill_leaves_is_on_the_disk_too() {
    let dir = tempfile::tempdir().unwrap();
    let (engine, ask, retry) = cancel_after(Setup::on_disk(dir.path()), 2, 0);
    let kept = retry.reuse.memory;
    assert!(kept > 0 && retry.reuse.verdict == Verdict::PartialMemory, "{:?}", retry.reuse);
    drop(engine);
    let engine = Setup::on_disk(dir.path()).start();
    let retry = engine.ask(&ask);
    assert_eq!(retry.reuse.disk, kept, "{:?}", retry.reuse);
    assert_same(&retry, &miss(&engine, &ask));
}

#[test]
fn a_cancelled_generation_leaves_what_it_generated() {
    let dir = tempfile::tempdir().unwrap();
    let ask = Ask::new(&prompt(81, 90)).tokens(500);
    let next = {
        let engine = Setup::on_disk(dir.path()).start();
        let mut events = submit_slow(&engine, &ask);
        let mut next = ask.prompt.clone();
        while next.len() < 90 + 40 {
            if let Some(Event::Token(token)) = events.blocking_recv() {
                next.push(token.id);
            }
        }
        drop(events);
        let next = Ask::new(&next).policy(Policy::ReadOnly);
        let retry = engine.ask(&next);
        assert_eq!(retry.reuse.memory as usize, next.prompt.len() - 1, "{:?}", retry.reuse);
        assert_same(&retry, &miss(&engine, &next));
        assert_eq!(report(&engine).active_bytes, 0);
        next
    };
    let engine = Setup::on_disk(dir.path()).start();
    let retry = engine.ask(&next);
    assert_eq!(retry.reuse.disk as usize, next.prompt.len() - 1, "{:?}", retry.reuse);
    assert_same(&retry, &miss(&engine, &next));
}
