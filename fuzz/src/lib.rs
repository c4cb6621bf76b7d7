//! What fuzzers of several formats have in common.

use std::num::NonZeroUsize;
use std::sync::{Arc, LazyLock};

use tinygpt_kernels::Pool;
use tinygptd::model::load::Checkpoint;
use tinygptd::text::{Detokenizer, Tokenizer};

pub static POOL: LazyLock<Pool> = LazyLock::new(|| Pool::new(NonZeroUsize::MIN));

/// What stands between the parts of an input that has several.
pub const SEPARATOR: u8 = 0x1e;

const TEXT: &str = "It isn't 42 °C,\r\n\tit's  naïve <|im_end|> \u{1f600}\u{0}";

/// What holds of every model that loads.
pub fn check_model(checkpoint: &Checkpoint) {
    checkpoint.weights.dimensions();
    if let Ok(tokenizer) = Tokenizer::new(&checkpoint.vocabulary) {
        check_text(tokenizer, TEXT);
    }
}

/// What holds of every tokenizer and every text.
pub fn check_text(tokenizer: Tokenizer, text: &str) {
    let Ok(ids) = tokenizer.encode(text) else { return };
    let vocab = tokenizer.vocab();
    assert!(ids.iter().all(|id| (*id as usize) < vocab), "an id outside the vocabulary");
    let whole = tokenizer.decode(&ids);
    let mut stream = Detokenizer::new(Arc::new(tokenizer));
    let mut pieces: String = ids.iter().filter_map(|&id| stream.push(id)).collect();
    pieces += &stream.finish();
    assert_eq!(pieces, whole, "pieces that are not the whole");
}
