//! Heads of segments and records, digest files and pins: the first byte chooses.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tinygptd::store::fuzz;

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    match kind % 4 {
        0 => fuzz::segment(bytes),
        1 => fuzz::record(bytes),
        2 => fuzz::digests(bytes),
        _ => fuzz::pins(bytes),
    }
});
