//! A daemon warms what it was told to, and keeps it warm.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::process::Command;
use std::sync::Mutex;
use std::time::Instant;

use tempfile::NamedTempFile;
use tokio::time::{sleep, timeout};

use super::*;
use crate::engine::{Settings, Source};
use crate::model::load::BUILTIN;
use crate::service::models::Rules;
use crate::service::tally::Counter;
use crate::service::tests::{daemon_with, settings};

const PROMPT: &str = "what light through yonder window breaks";

fn warmth(model: &str, prompt: &NamedTempFile, pin: Option<Duration>) -> Warmth {
    Warmth {
        model: model.to_owned(),
        prompt_file: prompt.path().to_owned(),
        namespace: String::new(),
        kv_dtype: String::new(),
        adapter: String::new(),
        pin,
    }
}

fn prompt() -> NamedTempFile {
    let prompt = NamedTempFile::new().unwrap();
    fs::write(prompt.path(), PROMPT).unwrap();
    prompt
}

/// A daemon that is to warm a prompt on the last of its models.
fn prepared(
    settings: Settings,
    sources: Vec<Source>,
    rules: Rules,
) -> (NamedTempFile, Arc<Daemon>) {
    let prompt = prompt();
    let warm = vec![warmth(&sources.last().unwrap().name, &prompt, None)];
    let mut daemon = daemon_with(None, settings, sources, rules);
    daemon.facts.warm = warm;
    (prompt, Arc::new(daemon))
}

/// The built-in model twice, the second time from a file, and room for one of them.
fn crowd() -> (NamedTempFile, Vec<Source>, Rules) {
    let file = NamedTempFile::with_suffix(".tinygpt").unwrap();
    fs::write(file.path(), BUILTIN).unwrap();
    let second = Source::new("second", Some(file.path().to_owned()));
    let rules = Rules { unload_after: None, memory: Some(BUILTIN.len() as u64) };
    (file, vec![Source::new("first", None), second], rules)
}

/// Until when the only prompt is pinned, in milliseconds; waits for it to be.
async fn pinned(daemon: &Daemon) -> u64 {
    let pinned = async {
        loop {
            let entries = daemon.entries(Peer::own()).await.unwrap();
            if let Some(until) = entries.first().and_then(|entry| entry.pinned_ms()) {
                break until;
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(30), pinned).await.unwrap()
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
    let (_file, sources, rules) = crowd();
    let (_prompt, daemon) = prepared(settings(), sources, rules);
    let lease = daemon.models.all()[0].served(None).await.unwrap();
    warm(&daemon);
    assert!(ended(&daemon, 0, 1, 45).await, "it waits as long as anybody would");
    drop(lease);
    assert!(ended(&daemon, 1, 1, 45).await);
}

#[tokio::test]
async fn a_prompt_that_is_a_pipe_is_an_error_and_holds_nobody_up() {
    let (folder, good) = (tempfile::tempdir().unwrap(), prompt());
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut daemon = daemon_with(None, settings(), crowd().1, Rules::default());
    let piped = Warmth { prompt_file: pipe, ..warmth("first", &good, None) };
    daemon.facts.warm = vec![piped, warmth("first", &good, None)];
    let (daemon, logged) = (Arc::new(daemon), Logged::default());
    let _guard = logged.start();
    warm(&daemon);
    assert!(ended(&daemon, 1, 0, 30).await);
    let words = logged.words();
    assert!(words.contains("not a regular file"), "{words}");
}

#[tokio::test]
async fn a_prompt_that_is_being_computed_does_not_hold_up_a_drain() {
    let long = NamedTempFile::new().unwrap();
    fs::write(long.path(), "what light? ".repeat(70)).unwrap();
    let mut daemon = daemon_with(None, settings(), crowd().1, Rules::default());
    daemon.facts.warm = vec![warmth("first", &long, None)];
    let daemon = Arc::new(daemon);
    warm(&daemon);
    let running = async {
        while daemon.tally.count(Counter::Requests) == 0 {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(Duration::from_secs(30), running).await.unwrap();
    daemon.drain.cancel();
    let gone = async {
        while daemon.tally.count(Counter::Cancelled) == 0 {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(10), gone).await.unwrap();
    assert_eq!(daemon.tally.count(Counter::Finished), 0);
}

#[tokio::test]
async fn a_lease_is_renewed_while_another_prompt_waits_for_room() {
    let (_file, sources, rules) = crowd();
    let prompt = prompt();
    let mut daemon = daemon_with(None, settings(), sources, rules);
    let pin = Some(Duration::from_secs(2));
    daemon.facts.warm = vec![warmth("first", &prompt, pin), warmth("second", &prompt, None)];
    let daemon = Arc::new(daemon);
    let _lease = daemon.models.all()[0].served(None).await.unwrap();
    warm(&daemon);
    let first = pinned(&daemon).await;
    sleep(Duration::from_secs(4)).await;
    assert!(pinned(&daemon).await >= first + 3_000);
    assert!(ended(&daemon, 1, 0, 1).await, "the second still waits");
}

#[tokio::test]
async fn a_model_that_is_loaded_anew_computes_a_pinned_prompt_again_at_once() {
    let (_file, sources, _) = crowd();
    let prompt = prompt();
    let mut daemon = daemon_with(None, settings(), sources, Rules::default());
    daemon.facts.warm = vec![warmth("second", &prompt, Some(Duration::from_secs(3600)))];
    let daemon = Arc::new(daemon);
    warm(&daemon);
    let first = pinned(&daemon).await;
    let second = &daemon.models.all()[1];
    second.unload(None).await.unwrap();
    assert!(daemon.entries(Peer::own()).await.unwrap().is_empty());
    drop(second.served(None).await.unwrap());
    assert!(pinned(&daemon).await > first);
    assert!(ended(&daemon, 2, 0, 1).await);
}

#[tokio::test]
async fn a_prompt_that_its_model_refused_is_tried_again_on_another_model_of_the_name() {
    let file = NamedTempFile::with_suffix(".tinygpt").unwrap();
    let sources = vec![Source::new("m", None), Source::new("x", Some(file.path().to_owned()))];
    let (_prompt, daemon) = prepared(settings(), sources, Rules::default());
    warm(&daemon);
    assert!(ended(&daemon, 0, 1, 30).await);
    fs::write(file.path(), BUILTIN).unwrap();
    let slot = &daemon.models.all()[1];
    let mended = async {
        while slot.served(None).await.is_err() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(30), mended).await.unwrap();
    assert!(ended(&daemon, 1, 1, 30).await);
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
async fn a_refusal_that_stays_is_an_error_and_not_tried_again_on_the_same_load() {
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
