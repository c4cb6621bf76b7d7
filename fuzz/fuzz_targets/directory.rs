//! Directories as Hugging Face's libraries save them: what they say of the model, of its tokenizer
//! and of both, and a file of weights.
#![no_main]

use std::fs;
use std::iter::repeat;
use std::path::PathBuf;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tinygpt_fuzz::{POOL, SEPARATOR, check_model};
use tinygptd::model::load::{Files, Packing};

const FILES: [&str; 4] =
    ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"];

static DIRECTORY: LazyLock<PathBuf> = LazyLock::new(|| {
    let path = std::env::temp_dir().join(format!("tinygpt-fuzz-{}", std::process::id()));
    fs::create_dir_all(&path).expect("a directory for temporary files");
    path
});

fuzz_target!(|bytes: &[u8]| {
    let parts = bytes.splitn(FILES.len(), |byte| *byte == SEPARATOR);
    for (name, part) in FILES.iter().zip(parts.chain(repeat(&[][..]))) {
        fs::write(DIRECTORY.join(name), part).expect("room for a small file");
    }
    let Ok(files) = Files::open(&DIRECTORY) else { return };
    if let Ok(checkpoint) = files.load(&Packing::new(&POOL)) {
        check_model(&checkpoint);
    }
});
