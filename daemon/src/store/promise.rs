//! An answer that always comes: whoever waits for a thread hears of its end, too.

use std::fmt;

/// Calls back once: with the value it is kept with, or with the default when it is dropped.
pub(super) struct Promise<T: Default>(Option<Box<dyn FnOnce(T) + Send>>);

impl<T: Default> Promise<T> {
    pub(super) fn new(callback: Box<dyn FnOnce(T) + Send>) -> Self {
        Self(Some(callback))
    }

    pub(super) fn keep(mut self, value: T) {
        if let Some(callback) = self.0.take() {
            callback(value);
        }
    }
}

impl<T: Default> Drop for Promise<T> {
    fn drop(&mut self) {
        if let Some(callback) = self.0.take() {
            callback(T::default());
        }
    }
}

impl<T: Default> fmt::Debug for Promise<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Promise")
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn promise() -> (Promise<u32>, mpsc::Receiver<u32>) {
        let (reply, answer) = mpsc::channel();
        (Promise::new(Box::new(move |value| reply.send(value).unwrap())), answer)
    }

    #[test]
    fn a_kept_promise_answers_once() {
        let (promise, answer) = promise();
        promise.keep(7);
        assert_eq!(answer.iter().collect::<Vec<_>>(), [7]);
    }

    #[test]
    fn a_promise_of_a_thread_that_panics_is_answered() {
        let (promise, answer) = promise();
        let died = std::thread::spawn(move || {
            let _held = promise;
            panic!("on purpose");
        });
        assert!(died.join().is_err());
        assert_eq!(answer.iter().collect::<Vec<_>>(), [0]);
    }
}
