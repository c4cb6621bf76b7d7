//! Adapters: a `.lora` file, or the length of a configuration, that configuration, and tensors.
#![no_main]

use std::num::NonZeroUsize;

use libfuzzer_sys::fuzz_target;
use tinygpt_kernels::Pool;
use tinygptd::model::AdapterId;
use tinygptd::model::load::{self, Adapter};

fn read(bytes: &[u8]) -> Option<Adapter> {
    if bytes.starts_with(b"TGLA") {
        return Adapter::from_lora(bytes).ok();
    }
    let (length, rest) = bytes.split_first_chunk()?;
    let (config, weights) = rest.split_at_checked(u16::from_le_bytes(*length).into())?;
    Adapter::from_peft(config, weights).ok()
}

fuzz_target!(|bytes: &[u8]| {
    let Some(adapter) = read(bytes) else { return };
    adapter.digest();
    let pool = Pool::new(NonZeroUsize::MIN);
    let mut model = load::load(load::BUILTIN, &pool).expect("the built-in model");
    // Whether it fits is not the question.
    let _ = model.weights.adapt(AdapterId(0), &adapter);
});
