//! Headers of files of tensors.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tinygptd::model::load::fuzz;

fuzz_target!(|bytes: &[u8]| fuzz::safetensors(bytes));
