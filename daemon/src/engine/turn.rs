//! Whose turn it is to load a model.
//!
//! All models are packed by the same threads, so they are read one after another, the default one
//! first: whoever waits for it does not wait for the others.

use std::convert::Infallible;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Turns in the order in which they are handed out.
#[derive(Debug, Default)]
pub struct Turns {
    last: Option<Receiver<Infallible>>,
}

/// A turn, which is over when it is dropped; the default one is nobody's next.
#[derive(Debug, Default)]
pub struct Turn {
    before: Option<Receiver<Infallible>>,
    _over: Option<Sender<Infallible>>,
}

impl Turns {
    /// The turn after all that were handed out before.
    pub fn hand_out(&mut self) -> Turn {
        let (over, next) = channel();
        Turn { before: self.last.replace(next), _over: Some(over) }
    }
}

impl Turn {
    /// Returns when the turn before is over.
    pub(super) fn wait(&self) {
        if let Some(before) = &self.before {
            // Nothing is ever sent: what ends the wait is the end of the sender.
            let Err(_) = before.recv();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread::{sleep, spawn};
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_turn_begins_when_the_one_before_is_over_whoever_comes_first() {
        let mut turns = Turns::default();
        let [first, second] = [turns.hand_out(), turns.hand_out()];
        let (order, seen) = channel();
        let told = order.clone();
        let waiting = spawn(move || {
            second.wait();
            told.send("second")
        });
        sleep(Duration::from_millis(20));
        first.wait();
        order.send("first").expect("it is heard");
        drop((first, order));
        waiting.join().expect("nobody panics").expect("it is heard");
        assert_eq!(seen.iter().collect::<Vec<_>>(), ["first", "second"]);
    }
}
