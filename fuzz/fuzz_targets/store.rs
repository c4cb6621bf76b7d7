//! Heads of segments and records, and digest files: the first byte chooses.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tinygptd::store::fuzz;

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    match kind % 3 {
        0 => fuzz::segment(bytes),
        1 => fuzz::record(bytes),
        _ => fuzz::digests(bytes),
    }
});
