//! Packed weights are kept between two starts: mapped when they are what they should be, packed
//! again otherwise, with the same bits either way.
//!
//! What a process maps is the kernel's word for what it uses.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use common::{Ask, Reply, Running, Setup, prompt, wait_for};
use tinygptd::engine::job::Policy;
use tinygptd::model::identity::Stamp;

const GPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/builtin.tinygpt");
const LLAMA: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/gguf/llama3rope-Q4_1.gguf");

/// A model file that has been left alone for long enough, and a cache directory.
struct Place {
    dir: tempfile::TempDir,
    model: PathBuf,
}

impl Place {
    fn new(original: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let model = dir.path().join("model");
        fs::copy(original, &model).unwrap();
        settle(&model);
        Self { dir, model }
    }

    /// The same with packed weights, written by a process that has ended.
    fn packed(original: &str) -> (Self, Reply) {
        let place = Self::new(original);
        let engine = place.start();
        assert!(!place.maps_pack());
        let reply = engine.ask(&ask());
        engine.await_pack();
        drop(engine);
        (place, reply)
    }

    fn start(&self) -> Running {
        Setup::on_disk(&self.cache()).model(&self.model).start()
    }

    fn cache(&self) -> PathBuf {
        self.dir.path().join("cache")
    }

    fn packs(&self) -> Vec<PathBuf> {
        let files = fs::read_dir(self.cache().join("v1")).unwrap();
        let files = files.map(|file| file.unwrap().path());
        files.filter(|path| path.extension().is_some_and(|end| end == "tgpk")).collect()
    }

    fn pack(&self) -> PathBuf {
        let [pack] = &self.packs()[..] else { panic!("{:?}", self.packs()) };
        pack.clone()
    }

    /// Whether this process has packed weights of this place mapped.
    fn maps_pack(&self) -> bool {
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let cache = self.cache().display().to_string();
        maps.lines().any(|line| line.contains(&cache) && line.contains(".tgpk"))
    }
}

trait Packs {
    fn await_pack(&self);
}

impl Packs for Running {
    /// Waits until the packed weights are written, which an idle engine has done after a second.
    fn await_pack(&self) {
        wait_for("the pack", || self.store.as_ref().unwrap().stats().side_files == 1);
    }
}

/// Waits until a change of the file would show in its stamp.
fn settle(path: &Path) {
    wait_for("a telling stamp", || Stamp::of(path).unwrap().is_telling());
}

/// Computes everything.
fn ask() -> Ask {
    Ask::new(&prompt(70, 100)).policy(Policy::Bypass)
}

fn assert_same(ours: &Reply, theirs: &Reply) {
    assert_eq!(ours.ids(), theirs.ids());
    assert_eq!(ours.bits(), theirs.bits());
}

#[test]
fn the_second_start_maps_what_the_first_packed_and_computes_the_same_bits() {
    for original in [GPT, LLAMA] {
        let (place, first) = Place::packed(original);
        let engine = place.start();
        assert!(place.maps_pack(), "{original}");
        assert_same(&engine.ask(&ask()), &first);
        assert_same(&Setup::default().model(&place.model).start().ask(&ask()), &first);
        // Removed while it is mapped, it stays what it was.
        engine.store.as_ref().unwrap().remove_all();
        assert!(place.packs().is_empty() && place.maps_pack());
        assert_same(&engine.ask(&ask()), &first);
        drop(engine);
        assert!(!place.maps_pack());
    }
}

#[test]
fn somebody_who_looks_all_the_time_does_not_keep_weights_from_being_written() {
    let place = Place::new(GPT);
    let engine = place.start();
    wait_for("the pack", || {
        common::report(&engine);
        engine.store.as_ref().unwrap().stats().side_files == 1
    });
}

#[test]
fn a_pack_that_is_not_what_it_should_be_is_not_used_and_is_written_again() {
    let (place, first) = Place::packed(LLAMA);
    let whole = fs::read(place.pack()).unwrap();
    let changed = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        bytes
    };
    let wrong = [
        ("cut", whole[..whole.len() / 2].to_vec()),
        ("empty", Vec::new()),
        ("of another format version", changed(8)),
        ("of another model", changed(32)),
        ("of another build", changed(64)),
        ("of other shapes", changed(96)),
        ("damaged", changed(whole.len() - 100)),
    ];
    for (what, bytes) in wrong {
        // A published file is never altered: another takes its name.
        fs::remove_file(place.pack()).unwrap_or(());
        let path = place.cache().join("v1").join(pack_name(&place));
        fs::write(&path, bytes).unwrap();
        let engine = place.start();
        assert!(!place.maps_pack(), "{what}");
        assert_same(&engine.ask(&ask()), &first);
        engine.await_pack();
        assert!(fs::read(place.pack()).unwrap() == whole, "{what}");
    }
}

/// The name that the pack of the place's model has.
fn pack_name(place: &Place) -> String {
    let contents = blake3::hash(&fs::read(&place.model).unwrap());
    format!("{}.tgpk", &contents.to_hex()[..16])
}

#[test]
fn a_file_that_was_retrained_does_not_get_the_old_packed_weights() {
    let (place, old) = Place::packed(GPT);
    let before = place.pack();
    let mut bytes = fs::read(&place.model).unwrap();
    let body = bytes.len() / 2;
    bytes[body..].iter_mut().step_by(2).for_each(|byte| *byte ^= 1);
    fs::write(&place.model, bytes).unwrap();
    settle(&place.model);
    let engine = place.start();
    assert!(!place.maps_pack());
    let new = engine.ask(&ask());
    assert_ne!(new.bits(), old.bits());
    assert_same(&new, &Setup::default().model(&place.model).start().ask(&ask()));
    wait_for("the new pack", || place.packs().len() == 2);
    assert!(place.packs().contains(&before));
}

#[test]
fn a_model_that_is_replaced_while_it_is_served_takes_its_packed_weights_along() {
    let (place, _) = Place::packed(GPT);
    let engine = place.start();
    let generation = engine.info().generation;
    let mut bytes = fs::read(&place.model).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    let other = place.dir.path().join("other");
    fs::write(&other, bytes).unwrap();
    fs::rename(&other, &place.model).unwrap();
    wait_for("the new model", || engine.info().generation > generation);
    assert!(place.packs().is_empty());
    let new = engine.ask(&ask());
    assert_same(&new, &Setup::default().model(&place.model).start().ask(&ask()));
}

#[test]
fn a_file_that_was_just_written_is_not_kept() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model");
    fs::copy(GPT, &model).unwrap();
    let place = Place { dir, model };
    let engine = place.start();
    // Longer than an engine is idle before it has its weights kept.
    std::thread::sleep(Duration::from_millis(2500));
    engine.flush();
    assert!(place.packs().is_empty());
}
