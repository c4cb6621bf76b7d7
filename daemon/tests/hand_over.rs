//! The way between those who ask and an engine, under thousands of orders in which threads may
//! meet: a job is answered, refused or told that the engine has gone, never lost, and no more wait
//! than may.

#[path = "../src/engine/hand_over.rs"]
mod hand_over;

mod sync {
    pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    pub(crate) use shuttle::sync::{Arc, mpsc};
    pub(crate) use shuttle::thread::yield_now;
}

use hand_over::{Closed, Inside, Outside, hand_over};
use shuttle::sync::mpsc;
use shuttle::thread;

const LIMIT: usize = 2;
const ASKERS: usize = 4;
const SCHEDULES: usize = 5_000;

enum Message {
    Job(mpsc::Sender<()>),
    Drain,
}

/// What became of a job.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    Answered,
    Full,
    Gone,
}

fn ask(outside: &Outside<Message>) -> Fate {
    let (reply, answer) = mpsc::channel();
    let fate = match outside.submit(Message::Job(reply)) {
        Ok(()) => answer.recv().map_or(Fate::Gone, |()| Fate::Answered),
        Err(Closed::Full(waiting)) => {
            assert_eq!(waiting, outside.limit(), "only a full queue refuses");
            Fate::Full
        }
        Err(Closed::Gone) => Fate::Gone,
    };
    assert!(outside.waiting() <= LIMIT);
    fate
}

/// An engine as far as its mailbox goes: it waits for a message, takes in what else has come, has
/// jobs in hand one after the other, and ends when it was told to and holds no more.
fn engine(inside: &Inside<Message>) {
    let (mut queue, mut draining) = (Vec::new(), false);
    loop {
        if queue.is_empty() && draining {
            return;
        }
        let mut next = if queue.is_empty() { inside.receiver.recv().ok() } else { None };
        if next.is_none() && queue.is_empty() {
            return;
        }
        while let Some(message) = next.take().or_else(|| inside.receiver.try_recv().ok()) {
            match message {
                Message::Job(reply) => queue.push(reply),
                Message::Drain => draining = true,
            }
        }
        for reply in queue.drain(..) {
            inside.in_hand();
            let _ = reply.send(());
        }
    }
}

fn meet(drains: bool) {
    let (outside, inside) = hand_over::<Message>(LIMIT);
    let engine = thread::spawn(move || engine(&inside));
    let askers: Vec<_> = (0..ASKERS)
        .map(|_| {
            let outside = outside.clone();
            thread::spawn(move || ask(&outside))
        })
        .collect();
    if drains {
        // An engine that is gone has drained.
        let _ = outside.send(Message::Drain);
    }
    let fates: Vec<_> =
        askers.into_iter().map(|asker| asker.join().unwrap_or(Fate::Gone)).collect();
    if !drains {
        assert!(!fates.contains(&Fate::Gone), "{fates:?}");
        assert_eq!(outside.waiting(), 0, "{fates:?}");
    }
    assert!(drains || fates.iter().filter(|fate| **fate == Fate::Answered).count() >= LIMIT);
    drop(outside);
    assert!(engine.join().is_ok());
}

#[test]
fn no_job_is_lost_and_no_more_wait_than_may() {
    shuttle::check_random(|| meet(false), SCHEDULES);
    shuttle::check_pct(|| meet(false), SCHEDULES, 3);
}

#[test]
fn an_engine_that_drains_leaves_nobody_waiting_for_an_answer() {
    shuttle::check_random(|| meet(true), SCHEDULES);
    shuttle::check_pct(|| meet(true), SCHEDULES, 3);
}
