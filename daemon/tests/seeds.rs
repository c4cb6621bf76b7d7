//! What the fuzzers begin with is whole: whoever begins with what is refused at once gets nowhere.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;

use tinygpt_kernels::Pool;
use tinygptd::model::load::{Checkpoint, Files, Packing, load};
use tinygptd::text::Tokenizer;

/// What stands between the parts of a seed that has several.
const SEPARATOR: u8 = 0x1e;

fn seeds(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds").join(target);
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.map(|path| (path.display().to_string(), fs::read(&path).unwrap())).collect()
}

fn check(name: &str, checkpoint: &Checkpoint) {
    let tokenizer = Tokenizer::new(&checkpoint.vocabulary);
    let tokenizer = tokenizer.unwrap_or_else(|error| panic!("{name}: {error}"));
    assert!(tokenizer.encode("a").is_ok_and(|ids| !ids.is_empty()), "{name}");
}

#[test]
fn model_files_load() {
    let pool = Pool::new(NonZeroUsize::MIN);
    for (name, bytes) in seeds("model") {
        let checkpoint = load(&bytes, &pool);
        check(&name, &checkpoint.unwrap_or_else(|error| panic!("{name}: {error}")));
    }
}

#[test]
fn directories_load() {
    const FILES: [&str; 4] =
        ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"];
    let pool = Pool::new(NonZeroUsize::MIN);
    for (name, bytes) in seeds("directory") {
        let directory = tempfile::tempdir().unwrap();
        let parts = bytes.splitn(FILES.len(), |byte| *byte == SEPARATOR);
        for (file, part) in FILES.iter().zip(parts) {
            fs::write(directory.path().join(file), part).unwrap();
        }
        let checkpoint = Files::open(directory.path()).unwrap().load(&Packing::new(&pool));
        check(&name, &checkpoint.unwrap_or_else(|error| panic!("{name}: {error}")));
    }
}
