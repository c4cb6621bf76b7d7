//! Model files of every kind, and the tokenizers in them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tinygpt_fuzz::{POOL, check_model};
use tinygptd::model::load::load;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(checkpoint) = load(bytes, &POOL) {
        check_model(&checkpoint);
    }
});
