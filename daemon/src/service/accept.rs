//! Connections, one after the other, also when the system refuses one.
//!
//! A process that has as many open files as it may is refused the next connection, which stays
//! where it is: asking again at once would be refused at once, for ever, in silence. So a refusal
//! is logged, once a minute at most, and asked about again a moment later.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};
use tokio_stream::Stream;

/// How long nothing is accepted after a refusal.
const PAUSE: Duration = Duration::from_millis(100);

/// How often refusals are logged.
const SILENCE: Duration = Duration::from_secs(60);

/// A stream of connections without the errors of accepting them.
#[derive(Debug)]
pub(super) struct Accepting<S> {
    incoming: S,
    pause: Pin<Box<Sleep>>,
    /// When a refusal was logged last.
    told: Option<Instant>,
}

impl<S> Accepting<S> {
    pub(super) fn new(incoming: S) -> Self {
        Self { incoming, pause: Box::pin(sleep(Duration::ZERO)), told: None }
    }

    fn refused(&mut self, error: &io::Error) {
        self.pause.as_mut().reset(Instant::now() + PAUSE);
        if self.told.is_none_or(|told| told.elapsed() >= SILENCE) {
            self.told = Some(Instant::now());
            tracing::error!(%error, "cannot accept connections; they wait until it is possible");
        }
    }
}

impl<C, S: Stream<Item = io::Result<C>> + Unpin> Stream for Accepting<S> {
    /// Never an error.
    type Item = io::Result<C>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            ready!(self.pause.as_mut().poll(cx));
            match ready!(Pin::new(&mut self.incoming).poll_next(cx)) {
                Some(Err(error)) => self.refused(&error),
                accepted => return Poll::Ready(accepted),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio_stream::{StreamExt, iter};

    use super::*;

    #[tokio::test]
    async fn after_a_refusal_nothing_is_accepted_for_a_moment_and_then_it_goes_on() {
        let refused = || Err(io::Error::other("too many open files"));
        let mut accepting = Accepting::new(iter([Ok(1), refused(), refused(), Ok(2)]));
        let start = Instant::now();
        assert_eq!(accepting.next().await.and_then(Result::ok), Some(1));
        assert_eq!(accepting.next().await.and_then(Result::ok), Some(2));
        assert!(start.elapsed() >= 2 * PAUSE, "{:?}", start.elapsed());
        assert!(accepting.next().await.is_none());
    }
}
