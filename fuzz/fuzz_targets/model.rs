//! Model files of every kind, and the tokenizers in them.
#![no_main]

use std::num::NonZeroUsize;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tinygpt_kernels::Pool;
use tinygptd::model::load;
use tinygptd::text::Tokenizer;

static POOL: LazyLock<Pool> = LazyLock::new(|| Pool::new(NonZeroUsize::MIN));

const TEXT: &str = "It isn't 42 °C,\r\n\tit's  naïve <|im_end|> \u{1f600}\u{0}";

fuzz_target!(|bytes: &[u8]| {
    let Ok(checkpoint) = load::load(bytes, &POOL) else { return };
    checkpoint.weights.dimensions();
    let Ok(tokenizer) = Tokenizer::new(&checkpoint.vocabulary) else { return };
    let Ok(ids) = tokenizer.encode(TEXT) else { return };
    let vocab = tokenizer.vocab();
    assert!(ids.iter().all(|id| (*id as usize) < vocab), "an id outside the vocabulary");
    tokenizer.decode(&ids);
});
