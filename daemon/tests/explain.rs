//! What is told beforehand about a prompt is what its request is told then: for everything that
//! memory and disk can hold of it, and for every reason.
#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{Ask, Running, Setup, prompt};
use tinygptd::engine::event::{Divergence, Reason, Reuse, Verdict};
use tinygptd::engine::handle::{Question, Removal};
use tinygptd::engine::job::{Job, Persist, Policy};
use tinygptd::kv::codec::Codec;
use tokio::sync::mpsc;

/// The prompt that is cached.
fn cached() -> Ask {
    Ask::new(&prompt(150, 200)).persist(Persist::Durable)
}

fn with(change: impl FnOnce(&mut Vec<u32>)) -> Ask {
    let mut ask = cached();
    change(&mut ask.prompt);
    ask
}

fn edited(at: usize) -> Ask {
    with(|prompt| prompt[at] = 65)
}

/// Asks what would be reused, checks that it is, and returns it. Leaves nothing behind but what
/// was loaded.
fn agree(engine: &Running, ask: &Ask) -> Reuse {
    let ask = ask.clone().policy(Policy::ReadOnly);
    let job = engine.job(&ask, mpsc::channel(1).0);
    let Job { tokens, text, namespace, codec, adapter, .. } = job;
    let question = Question { tokens, text, namespace, codec, adapter };
    let told = engine.handle.explain(question).unwrap().reuse;
    assert_eq!(told, engine.ask(&ask).reuse, "{} tokens", ask.prompt.len());
    told
}

fn agree_on(engine: &Running, ask: &Ask, verdict: Verdict, reason: Option<Reason>, cached: u32) {
    let told = agree(engine, ask);
    assert_eq!((told.verdict, &told.reason, told.cached()), (verdict, &reason, cached));
}

fn parts(engine: &Running, ask: &Ask, verdict: Verdict, at: usize) {
    let told = agree(engine, ask);
    let Some(Reason::Diverged(Divergence { at: parts, .. })) = &told.reason else {
        panic!("edited at {at}: {told:?}");
    };
    let numbers = (told.verdict, *parts as usize, told.cached() as usize);
    assert_eq!(numbers, (verdict, at, at));
}

/// What is asked of a cache that holds the prompt, in memory or on disk.
fn ask_everything(engine: impl Fn() -> Running, full: Verdict, partial: Verdict) {
    agree_on(&engine(), &cached(), full, None, 200);
    agree_on(&engine(), &with(|p| p.truncate(150)), partial, Some(Reason::NoRecord), 149);
    agree_on(&engine(), &with(|p| p.truncate(160)), partial, Some(Reason::NoRecord), 159);
    agree_on(&engine(), &with(|p| p.truncate(129)), partial, Some(Reason::NoRecord), 128);
    agree_on(&engine(), &with(|p| p.extend([65; 50])), partial, Some(Reason::Extended), 200);
    for at in [1, 31, 32, 33, 96, 191, 192, 195, 199] {
        parts(&engine(), &edited(at), partial, at);
    }
    let none = Verdict::Cold;
    let other = Ask { prompt: prompt(151, 200), ..cached() };
    agree_on(&engine(), &other, none, Some(Reason::NoEntry), 0);
    let short = Ask { prompt: prompt(151, 63), ..cached() };
    agree_on(&engine(), &short, none, Some(Reason::BelowMinimum), 0);
    agree_on(&engine(), &cached().codec(Codec::F32), none, Some(Reason::KvDtype), 0);
    let sub = Ask { sub: "other", ..cached() };
    agree_on(&engine(), &sub, none, Some(Reason::Namespace), 0);
    let stranger = Ask { identity: "you", ..cached() };
    agree_on(&engine(), &stranger, none, Some(Reason::NoEntry), 0);
}

#[test]
fn of_a_prompt_in_memory_the_explanation_is_what_happens() {
    let engine = || {
        let dir = tempfile::tempdir().unwrap();
        let engine = Setup::on_disk(dir.path()).start();
        engine.ask(&cached());
        engine
    };
    ask_everything(engine, Verdict::FullMemory, Verdict::PartialMemory);
}

/// A cache directory that an earlier process left, and an engine on it.
fn restarted(dir: &Path) -> Running {
    let engine = Setup::on_disk(dir).start();
    // Reads the header of every file: what the survey in the background does in its own time.
    engine.store.as_ref().unwrap().list();
    engine
}

#[test]
fn of_a_prompt_on_disk_the_explanation_is_what_happens() {
    let dir = tempfile::tempdir().unwrap();
    Setup::on_disk(dir.path()).start().ask(&cached());
    ask_everything(|| restarted(dir.path()), Verdict::FullDisk, Verdict::PartialDisk);
}

#[test]
fn of_a_prompt_in_both_the_explanation_is_what_happens() {
    let dir = tempfile::tempdir().unwrap();
    Setup::on_disk(dir.path()).start().ask(&cached());
    let engine = restarted(dir.path());
    // Memory has three blocks and what was lent; the disk has the rest.
    parts(&engine, &edited(100), Verdict::PartialDisk, 100);
    parts(&engine, &edited(90), Verdict::PartialMemory, 90);
    parts(&engine, &edited(96), Verdict::PartialMemory, 96);
    agree_on(
        &engine,
        &with(|p| p.truncate(64)),
        Verdict::PartialMemory,
        Some(Reason::NoRecord),
        63,
    );
    let told = agree(&engine, &cached());
    assert_eq!((told.verdict, told.cached()), (Verdict::FullDisk, 200));
    assert!(told.memory >= 96 && told.disk > 0, "{told:?}");
    agree_on(&engine, &cached(), Verdict::FullMemory, None, 200);
}

#[test]
fn explaining_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    Setup::on_disk(dir.path()).start().ask(&cached());
    let engine = restarted(dir.path());
    let job = engine.job(&cached(), mpsc::channel(1).0);
    let explain = || {
        let (tokens, namespace) = (job.tokens.clone(), job.namespace);
        let (codec, adapter) = (job.codec, job.adapter);
        let question = Question { tokens, text: None, namespace, codec, adapter };
        engine.handle.explain(question).unwrap().reuse
    };
    let told = explain();
    assert_eq!((told.verdict, told.disk), (Verdict::FullDisk, 200));
    assert_eq!(explain(), told);
    assert_eq!(
        (engine.handle.report().unwrap().blocks, engine.store.as_ref().unwrap().stats().hits),
        (0, 0)
    );
}

#[test]
fn a_short_prompt_is_kept_in_memory_only() {
    let dir = tempfile::tempdir().unwrap();
    let short = Ask { prompt: prompt(152, 40), max_tokens: 1, ..cached() };
    let engine = Setup::on_disk(dir.path()).start();
    agree_on(&engine, &short, Verdict::Cold, Some(Reason::BelowMinimum), 0);
    engine.ask(&short);
    agree_on(&engine, &short, Verdict::FullMemory, None, 40);
    drop(engine);
    agree_on(&restarted(dir.path()), &short, Verdict::Cold, Some(Reason::BelowMinimum), 0);
    // Where nothing is ever written, nothing is too short for it.
    agree_on(&Setup::default().start(), &short, Verdict::Cold, Some(Reason::NoEntry), 0);
}

#[test]
fn what_was_evicted_is_told() {
    let engine = Setup { heap: 0, ..Setup::default() }.start();
    engine.ask(&cached());
    agree_on(&engine, &cached(), Verdict::Cold, Some(Reason::Evicted), 0);
}

#[test]
fn what_was_removed_is_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Setup::on_disk(dir.path()).start();
    engine.ask(&cached());
    engine.store.as_ref().unwrap().remove_all();
    engine.handle.remove(Removal::All).unwrap();
    agree_on(&engine, &cached(), Verdict::Cold, Some(Reason::NoEntry), 0);
}

/// The files with this ending under `dir`.
fn files(dir: &Path, kind: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path, kind)),
            false if path.extension().is_some_and(|ending| ending == kind) => found.push(path),
            false => {}
        }
    }
    found
}

#[test]
fn what_is_gone_without_a_trace_is_not_guessed() {
    let dir = tempfile::tempdir().unwrap();
    Setup::on_disk(dir.path()).start().ask(&cached());
    files(dir.path(), "tgrec").iter().for_each(|path| fs::remove_file(path).unwrap());
    let engine = restarted(dir.path());
    agree_on(&engine, &cached(), Verdict::PartialDisk, Some(Reason::Unknown), 192);
}

#[test]
fn a_damaged_header_is_told_and_set_aside() {
    let dir = tempfile::tempdir().unwrap();
    Setup::on_disk(dir.path()).start().ask(&cached());
    for path in files(dir.path(), "tgkv") {
        let mut bytes = fs::read(&path).unwrap();
        bytes[100] ^= 1;
        fs::write(&path, bytes).unwrap();
    }
    let engine = Setup::on_disk(dir.path()).start();
    agree_on(&engine, &cached(), Verdict::Cold, Some(Reason::CorruptQuarantined), 0);
}

#[test]
fn a_model_with_other_weights_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let (cache, model) = (dir.path().join("cache"), dir.path().join("model"));
    let builtin = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/builtin.tinygpt");
    let mut bytes = fs::read(builtin).unwrap();
    fs::write(&model, &bytes).unwrap();
    Setup::on_disk(&cache).model(&model).start().ask(&cached());
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&model, &bytes).unwrap();
    let engine = Setup::on_disk(&cache).model(&model).start();
    engine.store.as_ref().unwrap().list();
    agree_on(&engine, &cached(), Verdict::Cold, Some(Reason::FingerprintWeights), 0);
}
