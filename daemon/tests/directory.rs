//! Directories as Hugging Face's libraries save them, under an engine: what is cached of them
//! belongs to the contents of their files, and any change of one that counts is noticed.
#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{Ask, Reply, Running, Setup, assert_same, collect, prompt, wait_for};
use serde_json::{Value, json};
use tinygpt_tests::directory::{self, INDEX, SHARDS, config, tokenizer};
use tinygptd::engine::event::{Failure, Reason, Verdict};
use tinygptd::engine::job::{EVENTS, Persist, Policy};
use tinygptd::model::identity::{Identities, Stamp};
use tinygptd::model::load::Vocabulary;
use tokio::sync::mpsc;

/// A model in two files, and a cache directory.
struct Place {
    dir: tempfile::TempDir,
    model: PathBuf,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let model = dir.path().join("model");
        directory::write(&model).unwrap();
        Self { dir, model }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.model.join(name)
    }

    fn write(&self, name: &str, value: &Value) {
        fs::write(self.path(name), value.to_string()).unwrap();
    }

    fn edit(&self, name: &str, change: impl Fn(&mut Vec<u8>)) {
        let mut bytes = fs::read(self.path(name)).unwrap();
        change(&mut bytes);
        fs::write(self.path(name), bytes).unwrap();
    }

    fn start(&self) -> Running {
        let engine = Setup::on_disk(&self.dir.path().join("cache")).model(&self.model).start();
        engine.store.as_ref().unwrap().list();
        engine
    }

    fn settle(&self) {
        let telling = |name: &&str| Stamp::of(&self.path(name)).unwrap().is_telling();
        wait_for("telling stamps", || SHARDS.iter().all(telling));
    }
}

/// Other weights: flips a low bit of a few, whichever byte of a number it is in.
fn retrain(bytes: &mut [u8]) {
    let half = bytes.len() / 2;
    bytes[half..].iter_mut().step_by(8).for_each(|byte| *byte ^= 0x01);
}

fn ask() -> Ask {
    Ask::new(&prompt(70, 200)).persist(Persist::Durable)
}

fn fresh(path: &Path) -> Reply {
    Setup::default().model(path).start().ask(&ask().policy(Policy::Bypass))
}

/// Changes a file under a running engine, which refuses a job that was made for the old one.
fn change(engine: &Running, change: impl FnOnce()) {
    let (events, answer) = mpsc::channel(EVENTS);
    let job = engine.job(&ask(), events);
    change();
    engine.handle.submit(job).unwrap();
    assert_eq!(collect(answer).unwrap_err(), Failure::Reloaded);
    engine.wait_until_ready();
}

#[test]
fn a_directory_is_cold_warm_in_memory_and_warm_after_a_restart_with_the_same_bits() {
    let place = Place::new();
    let engine = place.start();
    let info = engine.info();
    assert_eq!((info.format, &*info.architecture, &*info.quantisation), {
        ("safetensors", "llama", "BF16")
    });
    let cold = engine.ask(&ask());
    assert_eq!(cold.reuse.verdict, Verdict::Cold);
    let warm = engine.ask(&ask());
    assert_eq!(warm.reuse.verdict, Verdict::FullMemory);
    assert_same(&warm, &cold);
    drop(engine);
    let restarted = place.start().ask(&ask());
    assert_eq!(restarted.reuse.verdict, Verdict::FullDisk, "{:?}", restarted.reuse);
    assert_same(&restarted, &cold);
    assert_same(&fresh(&place.model), &cold);
}

#[test]
fn one_retrained_file_of_several_misses_with_the_weights() {
    for shard in SHARDS {
        let place = Place::new();
        let old = place.start().ask(&ask());
        place.edit(shard, |bytes| retrain(bytes));
        let engine = place.start();
        let new = engine.ask(&ask());
        assert_eq!(new.reuse.reason, Some(Reason::FingerprintWeights), "{:?}", new.reuse);
        assert_ne!(new.bits(), old.bits());
        assert_same(&new, &fresh(&place.model));
    }
}

#[test]
fn a_change_of_any_file_that_counts_is_noticed_while_it_is_served() {
    let place = Place::new();
    let engine = place.start();
    let cold = engine.ask(&ask());
    change(&engine, || place.edit(SHARDS[1], |bytes| retrain(bytes)));
    let retrained = engine.ask(&ask());
    assert_eq!(retrained.reuse.reason, Some(Reason::FingerprintWeights));
    assert_same(&retrained, &fresh(&place.model));
    assert_ne!(retrained.bits(), cold.bits());
    // One that was not there before.
    let settings = json!({"eos_token_id": [254, 255]});
    change(&engine, || place.write("generation_config.json", &settings));
    let (of, vocabulary) = engine.handle.vocabulary().unwrap();
    assert_eq!(of, engine.info().generation);
    let Vocabulary::HuggingFace(vocabulary) = vocabulary else { panic!() };
    assert_eq!(vocabulary.eos_ids, [254, 255]);
    assert_eq!(engine.ask(&ask()).reuse.verdict, Verdict::FullDisk, "the same weights and text");
    let weights = engine.info().fields.weights;
    let mut config = config();
    config["rope_theta"] = 5000.0.into();
    change(&engine, || place.write("config.json", &config));
    let turned = engine.ask(&ask());
    assert_eq!(turned.reuse.verdict, Verdict::Cold, "{:?}", turned.reuse);
    assert_eq!(engine.info().fields.weights, weights);
    assert_same(&turned, &fresh(&place.model));
    let mut tokenizer = tokenizer();
    tokenizer["normalizer"] = json!({"type": "NFC"});
    change(&engine, || place.write("tokenizer.json", &tokenizer));
    let reason = engine.ask(&ask()).reuse.reason;
    assert_eq!(reason, Some(Reason::FingerprintTokenizer));
}

#[test]
fn files_that_do_not_count_change_nothing() {
    let place = Place::new();
    let engine = place.start();
    let cold = engine.ask(&ask());
    fs::write(place.path("README.md"), "words").unwrap();
    fs::write(place.path("training_args.bin"), "words").unwrap();
    let warm = engine.ask(&ask());
    assert_eq!(warm.reuse.verdict, Verdict::FullMemory);
    assert_same(&warm, &cold);
}

#[test]
fn a_directory_that_is_broken_while_it_is_served_is_served_again_once_it_is_right() {
    let place = Place::new();
    let engine = place.start();
    let whole = fs::read(place.path(SHARDS[0])).unwrap();
    let (events, answer) = mpsc::channel(EVENTS);
    let job = engine.job(&ask(), events);
    place.edit(SHARDS[0], |bytes| bytes.truncate(100));
    engine.handle.submit(job).unwrap();
    assert_eq!(collect(answer).unwrap_err(), Failure::Reloaded);
    let failure = engine.failure();
    assert!(failure.contains(&format!("{}: the file ends inside", SHARDS[0])), "{failure}");
    fs::write(place.path(SHARDS[0]), whole).unwrap();
    engine.wait_until_unloaded();
    engine.handle.load();
    engine.wait_until_ready();
    assert_same(&engine.ask(&ask()), &fresh(&place.model));
}

#[test]
fn a_directory_that_is_gone_is_served_on() {
    let place = Place::new();
    let engine = place.start();
    let cold = engine.ask(&ask());
    fs::remove_dir_all(&place.model).unwrap();
    let warm = engine.ask(&ask());
    assert_eq!(warm.reuse.verdict, Verdict::FullMemory);
    assert_same(&warm, &cold);
}

#[test]
fn a_moved_or_copied_directory_still_hits_whatever_its_files_are_called() {
    let place = Place::new();
    let cold = place.start().ask(&ask());
    fs::remove_file(place.path(INDEX)).unwrap();
    for (shard, name) in SHARDS.iter().zip(["a.safetensors", "b.safetensors"]) {
        fs::rename(place.path(shard), place.path(name)).unwrap();
    }
    let moved = place.dir.path().join("moved");
    fs::rename(&place.model, &moved).unwrap();
    let warm = Setup::on_disk(&place.dir.path().join("cache")).model(&moved).start().ask(&ask());
    assert_eq!(warm.reuse.verdict, Verdict::FullDisk, "{:?}", warm.reuse);
    assert_same(&warm, &cold);
}

#[test]
fn each_file_is_remembered_by_itself_and_packed_weights_are_kept() {
    let place = Place::new();
    place.settle();
    let engine = place.start();
    let first = engine.ask(&ask().policy(Policy::Bypass));
    wait_for("the pack", || engine.store.as_ref().unwrap().stats().side_files == 1);
    let weights = engine.info().fields.weights;
    drop(engine);
    let identities = Identities::in_dir(&place.dir.path().join("cache/v1"));
    let known = |name: &&str| identities.recall(&Stamp::of(&place.path(name)).unwrap()).is_some();
    assert!(SHARDS.iter().all(known));
    let engine = place.start();
    assert_eq!(engine.info().fields.weights, weights);
    assert_same(&engine.ask(&ask().policy(Policy::Bypass)), &first);
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let cache = place.dir.path().join("cache").display().to_string();
    assert!(
        !cfg!(target_os = "linux")
            || maps.lines().any(|line| { line.contains(&cache) && line.contains(".tgpk") })
    );
}
