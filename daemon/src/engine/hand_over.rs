//! How messages come to an engine: jobs through a gate that lets only so many wait, all else freely.
//!
//! A job counts as waiting from when it is submitted to when the engine has it in hand. When the
//! engine's end goes, so does every job on its way, and whoever waits for an answer is told by that.
//!
//! The file depends on nothing but `sync`, so that `daemon/tests/hand_over.rs` can run it under every order in
//! which threads may meet.

use std::fmt;

use super::sync::{Arc, AtomicBool, AtomicUsize, Ordering, mpsc, yield_now};

/// The two ends of a way on which `limit` jobs may wait.
pub(super) fn hand_over<M>(limit: usize) -> (Outside<M>, Inside<M>) {
    let (sender, receiver) = mpsc::channel();
    let (waiting, sending) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let gate = Arc::new(Gate { waiting, limit, sending, closed: AtomicBool::new(false) });
    (Outside { sender, gate: Arc::clone(&gate) }, Inside { receiver, gate })
}

/// The end of those who ask.
pub(super) struct Outside<M> {
    sender: mpsc::Sender<M>,
    gate: Arc<Gate>,
}

/// The engine's end.
pub(super) struct Inside<M> {
    pub(super) receiver: mpsc::Receiver<M>,
    gate: Arc<Gate>,
}

/// Why a message did not come in.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Closed {
    /// So many jobs wait, which is the limit.
    Full(usize),
    /// Nobody is inside any more.
    Gone,
}

#[derive(Debug)]
struct Gate {
    waiting: AtomicUsize,
    limit: usize,
    /// Those who have seen it open and have not sent yet.
    sending: AtomicUsize,
    closed: AtomicBool,
}

impl<M> fmt::Debug for Outside<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Outside").field(&self.gate).finish()
    }
}

impl<M> Clone for Outside<M> {
    fn clone(&self) -> Self {
        Self { sender: self.sender.clone(), gate: Arc::clone(&self.gate) }
    }
}

impl<M> Outside<M> {
    /// Sends a job, if one more may wait.
    pub(super) fn submit(&self, job: M) -> Result<(), Closed> {
        let (waiting, limit) = (&self.gate.waiting, self.gate.limit);
        let entered = waiting.fetch_update(Ordering::AcqRel, Ordering::Acquire, |waiting| {
            (waiting < limit).then_some(waiting + 1)
        });
        entered.map_err(Closed::Full)?;
        self.gate.sending.fetch_add(1, Ordering::SeqCst);
        let sent = match self.gate.closed.load(Ordering::SeqCst) {
            true => Err(Closed::Gone),
            false => self.send(job),
        };
        self.gate.sending.fetch_sub(1, Ordering::SeqCst);
        sent.inspect_err(|_| self.gate.leave())
    }

    /// Sends what does not wait for its turn.
    pub(super) fn send(&self, message: M) -> Result<(), Closed> {
        self.sender.send(message).map_err(|_| Closed::Gone)
    }

    /// Jobs that wait.
    pub(super) fn waiting(&self) -> usize {
        self.gate.waiting.load(Ordering::Acquire)
    }

    /// Most jobs that may wait.
    pub(super) fn limit(&self) -> usize {
        self.gate.limit
    }
}

impl<M> Inside<M> {
    /// A job waits no more: it is admitted, or refused.
    pub(super) fn in_hand(&self) {
        self.gate.leave();
    }
}

/// Drops every job on its way: whoever saw the gate open sends before this ends, and nobody sends
/// after it.
impl<M> Drop for Inside<M> {
    fn drop(&mut self) {
        self.gate.closed.store(true, Ordering::SeqCst);
        while self.gate.sending.load(Ordering::SeqCst) > 0 {
            yield_now();
        }
        while self.receiver.try_recv().is_ok() {}
    }
}

impl Gate {
    fn leave(&self) {
        self.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}
