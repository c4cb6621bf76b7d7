//! Whether anybody is there: what a daemon that ends when idle goes by.
//!
//! A [`Visit`] lasts from the arrival of a call until its answer is sent or given up, so that a
//! long answer is no idleness. Every call of our own protocol is a visit, whatever it asks. Calls
//! of the standard services are none: whoever watches the health of a daemon, or reads how it is
//! to be spoken to, wants nothing from it yet.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http_body_util::BodyExt;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tower::Service;

/// What the paths of the standard services begin with: health and reflection.
const STANDARD: &str = "/grpc.";

/// Who is there, and when somebody last was.
#[derive(Debug, Clone)]
pub struct Presence(Arc<Log>);

#[derive(Debug)]
struct Log {
    epoch: Instant,
    /// Milliseconds between `epoch` and the last sign of anybody.
    last: AtomicU64,
    /// Visits that go on.
    open: AtomicU64,
}

/// A call that is being answered.
#[derive(Debug)]
pub struct Visit(Presence);

impl Default for Presence {
    fn default() -> Self {
        Self(Arc::new(Log {
            epoch: Instant::now(),
            last: AtomicU64::new(0),
            open: AtomicU64::new(0),
        }))
    }
}

impl Presence {
    /// A visit that goes on for as long as what is returned lives.
    pub fn enter(&self) -> Visit {
        self.0.open.fetch_add(1, Ordering::AcqRel);
        Visit(self.clone())
    }

    /// Idleness begins now at the earliest.
    pub fn touch(&self) {
        let now = self.0.epoch.elapsed().as_millis();
        self.0.last.store(u64::try_from(now).unwrap_or(u64::MAX), Ordering::Release);
    }

    /// Whether somebody is there.
    pub fn is_attended(&self) -> bool {
        self.0.open.load(Ordering::Acquire) > 0
    }

    /// For how long nobody has been there; zero during a visit.
    pub fn idle(&self) -> Duration {
        if self.is_attended() {
            return Duration::ZERO;
        }
        let last = Duration::from_millis(self.0.last.load(Ordering::Acquire));
        self.0.epoch.elapsed().saturating_sub(last)
    }

    /// `inner`, with a visit for each call that goes through it.
    pub fn attend<S>(&self, inner: S) -> Attended<S> {
        Attended { inner, presence: self.clone() }
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.0.touch();
        self.0.0.open.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A service whose calls are visits.
#[derive(Debug, Clone)]
pub struct Attended<S> {
    inner: S,
    presence: Presence,
}

impl<S, B> Service<Request<B>> for Attended<S>
where
    S: Service<Request<B>, Response = Response<Body>>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let counts = !request.uri().path().starts_with(STANDARD);
        let visit = counts.then(|| self.presence.enter());
        let answer = self.inner.call(request);
        Box::pin(async move { Ok(answer.await?.map(|body| hold(body, visit))) })
    }
}

/// The body of an answer, with the visit that lasts as long.
fn hold(body: Body, visit: Option<Visit>) -> Body {
    let Some(visit) = visit else { return body };
    Body::new(body.map_frame(move |frame| {
        let _ = &visit;
        frame
    }))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::convert::Infallible;

    use tower::{ServiceExt, service_fn};

    use super::*;

    #[test]
    fn a_visit_is_no_idleness_and_its_end_begins_it_anew() {
        let presence = Presence::default();
        std::thread::sleep(Duration::from_millis(50));
        assert!(presence.idle() >= Duration::from_millis(50));
        let visit = presence.enter();
        assert_eq!(presence.idle(), Duration::ZERO);
        drop(visit);
        assert!(presence.idle() < Duration::from_millis(50));
    }

    /// How long `presence` has been idle while a call's answer is there and not yet read.
    async fn idle_during(path: &str, presence: &Presence) -> Duration {
        let answer = |_: Request<()>| async {
            Ok::<_, Infallible>(Response::new(Body::new("words".to_owned())))
        };
        std::thread::sleep(Duration::from_millis(5));
        let request = Request::builder().uri(path).body(()).unwrap();
        let _answer = presence.attend(service_fn(answer)).oneshot(request).await.unwrap();
        presence.idle()
    }

    #[tokio::test]
    async fn a_call_is_a_visit_until_its_answer_is_gone() {
        let presence = Presence::default();
        let idle = idle_during("/tinygpt.v1.InferenceService/Tokenize", &presence).await;
        assert_eq!(idle, Duration::ZERO);
        std::thread::sleep(Duration::from_millis(5));
        assert!(presence.idle() >= Duration::from_millis(4), "the answer was dropped");
    }

    #[tokio::test]
    async fn asking_for_health_is_no_visit() {
        let presence = Presence::default();
        let idle = idle_during("/grpc.health.v1.Health/Check", &presence).await;
        assert!(idle >= Duration::from_millis(5));
    }
}
