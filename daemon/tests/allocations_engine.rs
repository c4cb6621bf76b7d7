//! A decode step of the whole engine takes no memory from the system: planning, the pass, sampling
//! and telling. But for what a step leaves behind: a block every 32 tokens, and the next piece of a
//! reader's queue of events as often.
#![expect(clippy::unwrap_used, reason = "tests")]

mod common;
mod counting;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Ask, Setup, collect, prompt};
use counting::allocations;
use tinygptd::engine::constraint::{Constraint, Mask, Verdict};
use tinygptd::engine::job::{EVENTS, Policy, Sampling, Task};
use tokio::sync::mpsc;

/// Notes the count at each of its sequence's tokens, on the engine's own thread.
#[derive(Debug, Clone)]
struct Counter(Arc<Mutex<Vec<usize>>>);

impl Constraint for Counter {
    fn mask(&self, _: &mut Mask) {}

    fn afresh(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }

    fn accept(&mut self, _: u32) -> Verdict {
        self.0.lock().unwrap().push(allocations());
        Verdict::Continue
    }
}

/// What each of several sequences asks for that decode together.
type Wish = fn() -> Sampling;

/// Allocations between each two tokens of the first of so many.
fn between_tokens(wish: Wish, company: usize) -> Vec<usize> {
    let engine = Setup::default().start();
    let counter = Counter(Arc::new(Mutex::new(Vec::with_capacity(200))));
    let ask = Ask::new(&prompt(1, 33)).tokens(120).policy(Policy::Bypass);
    let readers: Vec<_> = (0..company)
        .map(|nth| {
            let (events, reader) = mpsc::channel(EVENTS);
            let mut job = engine.job(&ask, events);
            let watch = counter.clone();
            let constraint = (nth == 0).then(|| Box::new(watch) as Box<dyn Constraint>);
            job.task = Task::Sample(Sampling { constraint, ..wish() });
            engine.handle.submit(job).unwrap();
            reader
        })
        .collect();
    // Who reads takes memory, so nobody does until the count is over.
    while counter.0.lock().unwrap().len() < 120 {
        std::thread::sleep(Duration::from_millis(2));
    }
    for reader in readers {
        collect(reader).unwrap();
    }
    let counts = counter.0.lock().unwrap();
    counts.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

/// One test alone: the count is the process's.
#[test]
fn a_decode_step_takes_no_memory_but_for_what_it_leaves_behind() {
    let greedy: Wish = || Sampling::greedy(120);
    let hot: Wish = || Sampling { temperature: 0.9, ..Sampling::greedy(120) };
    let choosy: Wish = || Sampling {
        temperature: 0.9,
        top_p: 0.9,
        repetition_penalty: 1.1,
        frequency_penalty: 0.1,
        ..Sampling::greedy(120)
    };
    for (wish, company) in [(greedy, 1), (hot, 1), (hot, 5), (choosy, 1)] {
        let counts = between_tokens(wish, company);
        let settled = &counts[20..];
        let free = settled.iter().filter(|count| **count == 0).count();
        // A block and a piece of a queue each, every 32 tokens.
        let most = settled.len() * 2 * company / 32 + 2;
        assert!(settled.len() - free <= most, "{:?}, {company} together: {settled:?}", wish());
    }
}
