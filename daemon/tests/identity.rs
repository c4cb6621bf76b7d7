//! What a cached prompt belongs to: the file's contents, the tokenizer in it, the codec, and whose
//! it is. Whatever changes one of them misses and is told which; a file's name changes nothing.
#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use common::{Ask, Reply, Running, Setup, collect, prompt, submit_slow};
use tinygptd::engine::Event;
use tinygptd::engine::event::{Divergence, Failure, Reason, Verdict};
use tinygptd::engine::job::{EVENTS, Persist, Policy};
use tinygptd::kv::codec::Codec;
use tinygptd::kv::key::Digest;
use tinygptd::model::identity::{Identities, Stamp};
use tokio::sync::mpsc;

const BUILTIN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/builtin.tinygpt");
const LLAMA: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/gguf/llama3rope-Q4_1.gguf");

/// A model file and a cache directory.
struct Place {
    dir: tempfile::TempDir,
    model: PathBuf,
}

impl Place {
    fn new(original: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let model = dir.path().join("model");
        fs::copy(original, &model).unwrap();
        Self { dir, model }
    }

    /// An engine on the file with what memory and disk kept.
    fn start(&self) -> Running {
        let engine = Setup::on_disk(&self.dir.path().join("cache")).model(&self.model).start();
        // Reads the header of every file: what the survey in the background does in its own time.
        engine.store.as_ref().unwrap().list();
        engine
    }

    /// What is remembered of model files beside the caches.
    fn identities(&self) -> Identities {
        Identities::in_dir(&self.dir.path().join("cache/v1"))
    }

    /// Waits until a change of the file would show in its stamp, and gives the stamp.
    fn telling_stamp(&self) -> Stamp {
        loop {
            let stamp = Stamp::of(&self.model).unwrap();
            if stamp.is_telling() {
                return stamp;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Changes the model file in place.
    fn edit(&self, change: impl Fn(&mut [u8])) {
        edit(&self.model, change);
    }
}

fn edit(path: &Path, change: impl Fn(&mut [u8])) {
    let mut bytes = fs::read(path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
}

/// Other weights: flips a bit of the mantissa in half of the numbers of a `.tinygpt` file.
fn retrain(bytes: &mut [u8]) {
    let body = bytes.len() / 2;
    bytes[body..].iter_mut().step_by(2).for_each(|byte| *byte ^= 1);
}

/// Another tokenizer: changes the letters of the last ordinary token of a GGUF vocabulary.
fn swap_token(bytes: &mut [u8]) {
    let old = b"\x02\0\0\0\0\0\0\0em";
    let at = bytes.windows(old.len()).rposition(|window| window == old).unwrap();
    bytes[at + 8..][..2].copy_from_slice(b"~~");
}

fn ask() -> Ask {
    Ask::new(&prompt(70, 200)).persist(Persist::Durable)
}

/// What an engine that never cached anything says about the same file.
fn fresh(path: &Path, ask: &Ask) -> Reply {
    Setup::default().model(path).start().ask(&ask.clone().policy(Policy::Bypass))
}

fn assert_miss(reply: &Reply, reason: &Reason) {
    assert_eq!(reply.reuse.verdict, Verdict::Cold, "{:?}", reply.reuse);
    assert_eq!(reply.reuse.reason.as_ref(), Some(reason));
    assert_eq!(reply.reuse.cached(), 0);
}

fn assert_same(ours: &Reply, theirs: &Reply) {
    assert_eq!(ours.ids(), theirs.ids());
    assert_eq!(ours.bits(), theirs.bits());
}

/// Changes the file of a running engine, which refuses a job that was made for the old one.
fn change(engine: &Running, change: impl FnOnce()) {
    let (events, answer) = mpsc::channel(EVENTS);
    let job = engine.job(&ask(), events);
    change();
    engine.handle.submit(job).unwrap();
    assert_eq!(collect(answer).unwrap_err(), Failure::Reloaded);
}

/// Asks for what the file holds now.
fn ask_changed(engine: &Running) -> Reply {
    engine.wait_until_ready();
    engine.ask(&ask())
}

#[test]
fn a_file_retrained_between_two_starts_misses_with_its_weights() {
    let place = Place::new(BUILTIN);
    let old = place.start().ask(&ask());
    place.edit(retrain);
    let engine = place.start();
    let new = engine.ask(&ask());
    assert_miss(&new, &Reason::FingerprintWeights);
    assert_ne!(new.bits(), old.bits());
    assert_same(&new, &fresh(&place.model, &ask()));
    assert_eq!(engine.ask(&ask()).reuse.verdict, Verdict::FullMemory);
}

#[test]
fn a_file_retrained_while_it_is_served_is_noticed() {
    let place = Place::new(BUILTIN);
    let engine = place.start();
    let old = engine.ask(&ask());
    let before = engine.info();
    change(&engine, || place.edit(retrain));
    let new = ask_changed(&engine);
    assert_miss(&new, &Reason::FingerprintWeights);
    assert_ne!(new.bits(), old.bits());
    assert_same(&new, &fresh(&place.model, &ask()));
    assert_ne!(engine.info().fields.weights, before.fields.weights);
    assert!(engine.info().generation > before.generation);
    assert_eq!(engine.ask(&ask()).reuse.verdict, Verdict::FullMemory);
}

#[test]
fn a_file_that_is_overwritten_and_then_deleted_is_served_from_memory() {
    let place = Place::new(BUILTIN);
    let engine = place.start();
    let old = engine.ask(&ask());
    // As long as its reader takes nothing, nothing is read from the file.
    let running = submit_slow(&engine, &ask().tokens(500));
    change(&engine, || fs::write(&place.model, "no model").unwrap());
    fs::remove_file(&place.model).unwrap();
    drop(running);
    engine.wait_until_ready();
    let again = engine.ask(&ask());
    assert_eq!(again.reuse.verdict, Verdict::FullMemory);
    assert_same(&again, &old);
}

#[test]
fn a_generation_that_runs_while_its_file_is_retrained_ends_on_the_old_weights() {
    let place = Place::new(BUILTIN);
    let engine = place.start();
    let long = ask().tokens(500);
    let expected = fresh(&place.model, &long);
    let mut running = engine.submit_to(&long, 16);
    assert!(running.blocking_recv().is_some());
    let replaced = place.dir.path().join("new");
    fs::copy(&place.model, &replaced).unwrap();
    edit(&replaced, retrain);
    // The reader takes nothing more for now: the generation is under way, and stays so.
    change(&engine, || fs::rename(&replaced, &place.model).unwrap());
    let mut ids = Vec::new();
    while let Some(event) = running.blocking_recv() {
        if let Event::Token(token) = event {
            ids.push(token.id);
        }
    }
    assert_eq!(ids, expected.ids());
    let new = ask_changed(&engine);
    assert_eq!(new.reuse.cached(), 0, "{:?}", new.reuse);
    assert_same(&new, &fresh(&place.model, &ask()));
}

#[test]
fn a_file_that_is_written_slowly_is_served_once_it_is_whole() {
    let place = Place::new(BUILTIN);
    let engine = place.start();
    engine.ask(&ask());
    let mut bytes = fs::read(&place.model).unwrap();
    retrain(&mut bytes);
    change(&engine, || drop(fs::File::create(&place.model).unwrap()));
    let mut file = fs::File::options().append(true).open(&place.model).unwrap();
    for piece in bytes.chunks(bytes.len().div_ceil(8)) {
        std::thread::sleep(Duration::from_millis(60));
        file.write_all(piece).unwrap();
    }
    drop(file);
    let new = ask_changed(&engine);
    assert_miss(&new, &Reason::FingerprintWeights);
    assert_same(&new, &fresh(&place.model, &ask()));
}

#[test]
fn a_file_that_is_broken_while_it_is_served_takes_no_memory_until_it_is_right() {
    let place = Place::new(BUILTIN);
    let engine = place.start();
    engine.ask(&ask());
    let whole = fs::read(&place.model).unwrap();
    change(&engine, || fs::write(&place.model, b"not a model").unwrap());
    assert!(engine.failure().contains("not a model file"), "{}", engine.failure());
    assert_eq!(engine.handle.meter().heap_bytes.count(), 0);
    fs::write(&place.model, &whole).unwrap();
    engine.wait_until_unloaded();
    engine.handle.load();
    assert_same(&ask_changed(&engine), &fresh(&place.model, &ask()));
}

#[test]
fn a_touched_file_is_read_again_and_still_hits() {
    let place = Place::new(BUILTIN);
    let engine = place.start();
    let cold = engine.ask(&ask());
    change(&engine, || place.edit(|_| {}));
    let warm = ask_changed(&engine);
    assert_eq!(warm.reuse.verdict, Verdict::FullDisk, "{:?}", warm.reuse);
    assert_same(&warm, &cold);
}

#[test]
fn a_renamed_and_a_copied_file_still_hit() {
    let place = Place::new(BUILTIN);
    let cold = place.start().ask(&ask());
    let renamed = place.dir.path().join("renamed");
    fs::rename(&place.model, &renamed).unwrap();
    let copied = place.dir.path().join("copied");
    fs::copy(&renamed, &copied).unwrap();
    for model in [renamed, copied] {
        let engine = Setup::on_disk(&place.dir.path().join("cache")).model(&model).start();
        let warm = engine.ask(&ask());
        assert_eq!(warm.reuse.verdict, Verdict::FullDisk, "{:?}", warm.reuse);
        assert_same(&warm, &cold);
    }
}

/// The identity with which an engine serves its file.
fn weights(engine: &Running) -> Digest {
    engine.info().fields.weights
}

#[test]
fn what_a_file_hashed_to_is_remembered_between_starts() {
    let place = Place::new(BUILTIN);
    let stamp = place.telling_stamp();
    let hashed = weights(&place.start());
    assert_eq!(place.identities().recall(&stamp), Some(hashed));
    // A start that takes the memory's word for it has not hashed the file.
    let word = Digest::of("test", b"");
    place.identities().remember(stamp, word).unwrap();
    assert_eq!(weights(&place.start()), word);
    fs::write(place.dir.path().join("cache/v1/models.tgid"), b"not a memory").unwrap();
    assert_eq!(weights(&place.start()), hashed);
    assert_eq!(place.identities().recall(&stamp), Some(hashed));
}

#[test]
fn a_remembered_file_that_was_retrained_misses_even_with_its_old_size_and_time() {
    let place = Place::new(BUILTIN);
    let old = place.telling_stamp();
    place.start().ask(&ask());
    assert!(place.identities().recall(&old).is_some());
    let modified = fs::metadata(&place.model).unwrap().modified().unwrap();
    place.edit(retrain);
    fs::File::options().append(true).open(&place.model).unwrap().set_modified(modified).unwrap();
    let engine = place.start();
    let new = engine.ask(&ask());
    assert_miss(&new, &Reason::FingerprintWeights);
    assert_same(&new, &fresh(&place.model, &ask()));
    drop(engine);
    place.telling_stamp();
    let later = place.start().ask(&ask());
    assert_eq!(later.reuse.verdict, Verdict::FullDisk, "{:?}", later.reuse);
    assert_same(&later, &new);
}

#[test]
fn a_remembered_file_that_was_replaced_is_hashed() {
    let place = Place::new(BUILTIN);
    let old = place.telling_stamp();
    let before = weights(&place.start());
    let other = place.dir.path().join("other");
    fs::copy(BUILTIN, &other).unwrap();
    edit(&other, retrain);
    fs::rename(&other, &place.model).unwrap();
    assert_ne!(weights(&place.start()), before);
    assert_eq!(place.identities().recall(&old), Some(before));
}

#[test]
fn without_a_cache_directory_nothing_is_remembered() {
    let place = Place::new(BUILTIN);
    place.telling_stamp();
    Setup::default().model(&place.model).start();
    let names = fs::read_dir(place.dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names.collect::<Vec<_>>(), ["model"]);
}

#[test]
fn a_model_whose_file_is_gone_is_served_on() {
    let place = Place::new(BUILTIN);
    let engine = place.start();
    let cold = engine.ask(&ask());
    fs::remove_file(&place.model).unwrap();
    let warm = engine.ask(&ask());
    assert_eq!(warm.reuse.verdict, Verdict::FullMemory);
    assert_same(&warm, &cold);
}

#[test]
fn a_swapped_token_misses_with_the_tokenizer() {
    let place = Place::new(LLAMA);
    let text = Ask { text: Some("the text"), ..ask() };
    place.start().ask(&text);
    place.edit(swap_token);
    // The same ids, and the same text that has become other ids.
    let others = Ask { prompt: prompt(71, 150), ..text.clone() };
    for again in [&text, &others] {
        let engine = place.start();
        let reply = engine.ask(&again.clone().policy(Policy::ReadOnly));
        assert_miss(&reply, &Reason::FingerprintTokenizer);
    }
}

#[test]
fn a_token_swapped_while_the_file_is_served_misses_with_the_tokenizer() {
    let place = Place::new(LLAMA);
    let engine = place.start();
    engine.ask(&ask());
    let before = engine.info();
    change(&engine, || place.edit(swap_token));
    let reply = ask_changed(&engine);
    assert_miss(&reply, &Reason::FingerprintTokenizer);
    assert_ne!(engine.info().fields.tokenizer, before.fields.tokenizer);
}

#[test]
fn a_vocabulary_is_handed_over_once_for_each_load() {
    let place = Place::new(LLAMA);
    let engine = place.start();
    let generation = engine.info().generation;
    let (of, old) = engine.handle.vocabulary().unwrap();
    assert_eq!(of, generation);
    assert!(engine.handle.vocabulary().is_none());
    change(&engine, || place.edit(swap_token));
    engine.wait_until_ready();
    let (of, new) = engine.handle.vocabulary().unwrap();
    assert_eq!(of, engine.info().generation);
    assert_ne!(new, old);
    assert!(engine.handle.vocabulary().is_none());
}

/// Asks for `other` beside what `ask` left in memory, and after a restart.
fn ask_both_ways(other: &Ask) -> [Reply; 2] {
    let dir = tempfile::tempdir().unwrap();
    let other = other.clone().policy(Policy::ReadOnly);
    let engine = Setup::on_disk(dir.path()).start();
    engine.ask(&ask());
    let beside = engine.ask(&other);
    let never = engine.ask(&other.clone().policy(Policy::Bypass));
    drop(engine);
    let engine = Setup::on_disk(dir.path()).start();
    engine.store.as_ref().unwrap().list();
    let after = engine.ask(&other);
    assert_same(&beside, &never);
    assert_same(&after, &never);
    [beside, after]
}

#[test]
fn an_edited_token_parts_at_its_index() {
    for at in [1, 31, 32, 33, 96, 100, 191, 192, 195] {
        let mut edited = ask();
        edited.prompt[at] = 65;
        let ours = edited.prompt[at..].iter().take(8).copied().collect::<Vec<_>>();
        for reply in ask_both_ways(&edited) {
            let Some(Reason::Diverged(Divergence { at: told, ours: snippet, theirs })) =
                reply.reuse.reason.clone()
            else {
                panic!("edited at {at}: {:?}", reply.reuse);
            };
            assert_eq!(told as usize, at);
            assert!(ours.starts_with(&snippet) && !snippet.is_empty(), "{snippet:?}");
            assert_eq!(theirs[0], ask().prompt[at]);
            assert_eq!(reply.reuse.cached() as usize, at);
        }
    }
}

#[test]
fn another_codec_misses_with_the_codec() {
    for reply in ask_both_ways(&ask().codec(Codec::F32)) {
        assert_miss(&reply, &Reason::KvDtype);
    }
}

#[test]
fn another_sub_namespace_misses_with_the_namespace() {
    for reply in ask_both_ways(&Ask { sub: "other", ..ask() }) {
        assert_miss(&reply, &Reason::Namespace);
    }
}

#[test]
fn another_identity_learns_nothing() {
    for text in [None, Some("the text")] {
        for reply in ask_both_ways(&Ask { identity: "you", text, ..ask() }) {
            assert_miss(&reply, &Reason::NoEntry);
        }
    }
}

#[test]
fn an_unrelated_prompt_has_no_entry() {
    for reply in ask_both_ways(&Ask { prompt: prompt(72, 200), ..ask() }) {
        assert_miss(&reply, &Reason::NoEntry);
    }
}
