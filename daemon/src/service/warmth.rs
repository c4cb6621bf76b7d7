//! What the daemon asks of itself: the prompts that `[[warm]]` tables of its configuration name.
//!
//! At start they are computed one after another, with low priority, in the user's own namespace and
//! by the way of every request, which loads their models. One that is refused for a reason that
//! passes, because other models take the room say, lets the others go first and is tried again until
//! it is warm. Those that are to be pinned are, and their leases are renewed for as long as the
//! daemon lives. A prompt file is read once in the life of a model: what is edited counts from the
//! next start on.

use std::convert::Infallible;
use std::fs::File;
use std::future::pending;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tinygpt_proto::MAX_MESSAGE_BYTES;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until};

use super::Daemon;
use super::clock::Clock;
use super::models::Readiness;
use super::order::{Order, Wish};
use super::peer::Peer;
use super::prompt::Prompt;
use super::refusal::Refusal;
use crate::engine::Event;
use crate::engine::event::{Done, Finish};
use crate::engine::job::{Persist, Policy, Priority};

/// How long to wait before a prompt is tried again that was refused; twice as long each time.
const FIRST: Duration = Duration::from_secs(1);
/// No longer than this.
const LONGEST: Duration = Duration::from_secs(300);

/// A lease is renewed when this part of it is over.
const RENEWAL: u32 = 2;

/// A prompt to compute at start.
#[derive(Debug, Clone)]
pub struct Warmth {
    /// Name of the model.
    pub model: String,
    /// Where the prompt is, as text that is taken byte for byte.
    pub prompt_file: PathBuf,
    /// Sub-namespace within the user's own.
    pub namespace: String,
    /// Name of the codec; empty for the model's default.
    pub kv_dtype: String,
    /// Name of the adapter; empty for none.
    pub adapter: String,
    /// For how long to pin it; `None` for not at all.
    pub pin: Option<Duration>,
}

/// Why a prompt was not computed.
#[derive(Debug, thiserror::Error)]
enum Cold {
    #[error("cannot read it: {0}")]
    Unreadable(#[from] io::Error),
    #[error("{0}")]
    Refused(#[from] Refusal),
    #[error("the daemon ends")]
    Ending,
}

/// What is to be done about a prompt next.
#[derive(Debug)]
struct Task<'a> {
    warmth: &'a Warmth,
    due: Instant,
    step: Step,
}

/// What that is.
#[derive(Debug)]
enum Step {
    /// Compute it, which was refused so often.
    Compute { refused: u32 },
    /// Renew its lease.
    Renew(Pinned),
}

/// A pinned prompt.
#[derive(Debug)]
struct Pinned {
    lasts: Duration,
    key: String,
    /// The model that computed it, by its loads.
    generation: u64,
}

impl<'a> Task<'a> {
    fn compute(warmth: &'a Warmth, refused: u32, pause: Duration) -> Self {
        Self { warmth, due: Instant::now() + pause, step: Step::Compute { refused } }
    }

    fn renew(warmth: &'a Warmth, pinned: Pinned) -> Self {
        Self { warmth, due: Instant::now() + pinned.lasts / RENEWAL, step: Step::Renew(pinned) }
    }
}

impl Daemon {
    /// Computes what the configuration names, and keeps it, until the daemon drains.
    pub(super) async fn keep_warm(&self) -> Infallible {
        let warmths = self.facts.warm.iter();
        let mut tasks: Vec<_> =
            warmths.map(|warmth| Task::compute(warmth, 0, Duration::ZERO)).collect();
        while let Some(next) = earliest(&tasks) {
            tokio::select! {
                biased;
                () = self.drain.cancelled() => break,
                () = sleep_until(tasks[next].due) => {}
            }
            let Task { warmth, step, .. } = tasks.remove(next);
            tasks.extend(match step {
                Step::Compute { refused } => self.warm_up(warmth, refused).await,
                Step::Renew(pinned) => self.renew(warmth, pinned).await,
            });
        }
        pending().await
    }

    /// Computes a prompt, and pins it if that is wanted. Whatever goes wrong is said in the log,
    /// and what passes is said once.
    async fn warm_up<'a>(&self, warmth: &'a Warmth, refused: u32) -> Option<Task<'a>> {
        let (prompt, model) = (warmth.prompt_file.display(), &warmth.model);
        match self.compute(warmth).await {
            Ok((key, generation)) => {
                tracing::info!(%prompt, %model, %key, "warm");
                let lasts = warmth.pin?;
                Some(Task::renew(warmth, Pinned { lasts, key, generation }))
            }
            Err(Cold::Ending) => None,
            Err(Cold::Refused(_)) if self.drain.is_cancelled() => None,
            // A large model takes longer than a client would wait.
            Err(Cold::Refused(Refusal::Loading { .. })) => {
                Some(Task::compute(warmth, refused, FIRST))
            }
            Err(Cold::Refused(refusal)) if refusal.passes() => {
                if refused == 0 {
                    tracing::warn!(%prompt, %model, %refusal, "not warm yet: trying until it is");
                }
                Some(Task::compute(warmth, refused + 1, pause(refused)))
            }
            Err(error) => {
                tracing::error!(%prompt, %model, %error, "a prompt was not warmed");
                None
            }
        }
    }

    /// The key of the prompt, and the generation of the model that computed it.
    async fn compute(&self, warmth: &Warmth) -> Result<(String, u64), Cold> {
        let path = warmth.prompt_file.clone();
        let read = spawn_blocking(move || text(&path)).await;
        let text: Arc<str> = read.map_err(io::Error::other)??.into();
        // Nobody calls an idle daemon that is busy with this.
        let _visit = self.presence.enter();
        self.run_warmth(warmth, text).await
    }

    async fn run_warmth(&self, warmth: &Warmth, text: Arc<str>) -> Result<(String, u64), Cold> {
        let peer = Peer::own();
        let order = Order {
            prompt: Prompt::Text(text),
            wish: Wish::prefill(),
            caller: peer.caller(Priority::Low),
            namespace: peer.namespace(&warmth.namespace),
            kv_dtype: warmth.kv_dtype.clone(),
            adapter: warmth.adapter.clone(),
            policy: Policy::Use,
            persist: Persist::Behind,
            pin: warmth.pin,
            clock: Clock::endless(),
        };
        let (mut running, mut flight) = self.place(order, &warmth.model).await?;
        let done = loop {
            let event = running.next().await.inspect_err(|_| flight.failed())?;
            if let Event::Done(done) = event {
                break done;
            }
        };
        let placed = running.placed();
        flight.finished(placed.tokens.ids.len(), &done);
        let Done { finish: Finish::Stop | Finish::Length, key: Some(key), .. } = done else {
            return Err(Cold::Ending);
        };
        let key = key.to_string();
        if let Some(lasts) = warmth.pin {
            self.pin(peer, &key, lasts).await?;
        }
        Ok((key, placed.served.info.generation))
    }

    /// Extends a lease; a model that was loaded anew computes the prompt again.
    async fn renew<'a>(&self, warmth: &'a Warmth, pinned: Pinned) -> Option<Task<'a>> {
        let prompt = warmth.prompt_file.display();
        let slot = self.models.find(&warmth.model).ok()?;
        let loaded = match slot.readiness() {
            Readiness::Ready(served) => Some(served.info.generation),
            _ => None,
        };
        if loaded.is_some_and(|generation| generation != pinned.generation) {
            return self.warm_up(warmth, 0).await;
        }
        match self.pin(Peer::own(), &pinned.key, pinned.lasts).await {
            Ok(_) => {}
            // What was in memory only went with the model, and is computed again with the next.
            Err(Refusal::UnknownKey { .. }) if loaded.is_none() => {}
            Err(Refusal::UnknownKey { .. }) => {
                tracing::info!(%prompt, "gone, and not kept");
                return None;
            }
            Err(refusal) => tracing::warn!(%prompt, %refusal, "its pin was not renewed"),
        }
        Some(Task::renew(warmth, pinned))
    }
}

/// Of those that are due at the same time, the first.
fn earliest(tasks: &[Task<'_>]) -> Option<usize> {
    (0..tasks.len()).min_by_key(|at| tasks[*at].due)
}

/// How long to wait after a refusal with so many before it.
fn pause(refused: u32) -> Duration {
    LONGEST.min(FIRST * 2_u32.saturating_pow(refused))
}

/// The text of a file that could be sent as a prompt: some files never end.
fn text(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_MESSAGE_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > MAX_MESSAGE_BYTES {
        let words = format!("it has more than {MAX_MESSAGE_BYTES} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, words));
    }
    String::from_utf8(bytes).map_err(|error| {
        let words = format!("it is not UTF-8 at byte {}", error.utf8_error().valid_up_to());
        io::Error::new(io::ErrorKind::InvalidData, words)
    })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::fs;
    use std::sync::Mutex;

    use tempfile::NamedTempFile;
    use tokio::time::{sleep, timeout};

    use super::super::models::Rules;
    use super::super::tally::Counter;
    use super::super::tests::{daemon_with, settings};
    use super::*;
    use crate::engine::{Settings, Source};
    use crate::model::load::BUILTIN;

    /// A daemon that is to warm a prompt on the last of its models.
    fn prepared(
        settings: Settings,
        sources: Vec<Source>,
        rules: Rules,
    ) -> (NamedTempFile, Arc<Daemon>) {
        let prompt = NamedTempFile::new().unwrap();
        fs::write(prompt.path(), "what light through yonder window breaks").unwrap();
        let warmth = Warmth {
            model: sources.last().unwrap().name.clone(),
            prompt_file: prompt.path().to_owned(),
            namespace: String::new(),
            kv_dtype: String::new(),
            adapter: String::new(),
            pin: None,
        };
        let mut daemon = daemon_with(None, settings, sources, rules);
        daemon.facts.warm = vec![warmth];
        (prompt, Arc::new(daemon))
    }

    fn warm(daemon: &Arc<Daemon>) {
        let daemon = Arc::clone(daemon);
        tokio::spawn(async move { daemon.keep_warm().await });
    }

    /// Whether so many requests have ended well and not, before so many seconds are over.
    async fn ended(daemon: &Daemon, finished: u64, failed: u64, seconds: u64) -> bool {
        let counts = || [Counter::Finished, Counter::Failed].map(|count| daemon.tally.count(count));
        let holds = async {
            while counts() != [finished, failed] {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(Duration::from_secs(seconds), holds).await.is_ok()
    }

    /// What is logged on this thread.
    #[derive(Clone, Default)]
    struct Logged(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Logged {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Logged {
        fn start(&self) -> tracing::subscriber::DefaultGuard {
            let writer = self.clone();
            let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone());
            tracing::subscriber::set_default(subscriber.finish())
        }

        fn words(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    #[test]
    fn pauses_grow_and_have_an_end() {
        let pauses = [0, 1, 2, 8, 9, 10, u32::MAX].map(|refused| pause(refused).as_secs());
        assert_eq!(pauses, [1, 2, 4, 256, 300, 300, 300]);
    }

    #[tokio::test]
    async fn a_prompt_whose_model_finds_no_room_is_warmed_when_there_is_some() {
        let file = NamedTempFile::with_suffix(".tinygpt").unwrap();
        fs::write(file.path(), BUILTIN).unwrap();
        let sources =
            vec![Source::new("first", None), Source::new("second", Some(file.path().to_owned()))];
        let rules = Rules { unload_after: None, memory: Some(BUILTIN.len() as u64) };
        let (_prompt, daemon) = prepared(settings(), sources, rules);
        let lease = daemon.models.all()[0].served(None).await.unwrap();
        warm(&daemon);
        assert!(ended(&daemon, 0, 1, 45).await, "it waits as long as anybody would");
        drop(lease);
        assert!(ended(&daemon, 1, 1, 45).await);
    }

    #[tokio::test]
    async fn a_refusal_that_passes_is_told_once_and_tried_again_until_the_drain() {
        let crowded = Settings { queue: 0, ..settings() };
        let logged = Logged::default();
        let _guard = logged.start();
        let started = Instant::now();
        let (_prompt, daemon) = prepared(crowded, vec![Source::new("m", None)], Rules::default());
        warm(&daemon);
        assert!(ended(&daemon, 0, 3, 30).await);
        assert!(started.elapsed() >= 3 * FIRST, "{:?}", started.elapsed());
        let words = logged.words();
        assert_eq!(words.matches("not warm yet").count(), 1, "{words}");
        daemon.drain.cancel();
        assert!(!ended(&daemon, 0, 4, 5).await, "tried after the drain");
    }

    #[tokio::test]
    async fn a_refusal_that_stays_is_an_error_and_the_end() {
        let bad = NamedTempFile::with_suffix(".tinygpt").unwrap();
        let sources = vec![Source::new("m", None), Source::new("bad", Some(bad.path().to_owned()))];
        let logged = Logged::default();
        let _guard = logged.start();
        let (_prompt, daemon) = prepared(settings(), sources, Rules::default());
        warm(&daemon);
        assert!(ended(&daemon, 0, 1, 30).await);
        assert!(!ended(&daemon, 0, 2, 3).await, "tried again");
        let words = logged.words();
        assert!(words.contains("a prompt was not warmed"), "{words}");
    }
}
