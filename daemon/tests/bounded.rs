//! What is allocated for a model file is bounded by the file, whatever it says of itself.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tinygpt_kernels::Pool;
use tinygptd::model::load::{GgufVocabulary, Vocabulary, load};
use tinygptd::text::Tokenizer;

/// The system's, with the most that was held at once.
struct Measuring;

static HELD: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

#[expect(unsafe_code, reason = "an allocator is")]
// SAFETY: everything is the system's.
unsafe impl GlobalAlloc for Measuring {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        MOST.fetch_max(held, Ordering::Relaxed);
        // SAFETY: the caller's promise is handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise is handed on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Measuring = Measuring;

/// Bytes for each byte of the file: a token of a few letters becomes strings and map entries.
const FACTOR: usize = 40;

/// Bytes for a file of none: tables whose size is fixed or capped.
const FIXED: usize = 4 << 20;

/// The most that `act` held on top of what was held before.
fn most(act: impl FnOnce()) -> usize {
    let before = HELD.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);
    act();
    MOST.load(Ordering::Relaxed) - before
}

/// Where the tensors' data begins, more or less: nothing before it says more than a byte.
const HEAD: usize = 24 << 10;

#[test]
fn a_gguf_file_with_changed_metadata_takes_memory_by_its_size() {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden");
    let pool = Pool::new(NonZeroUsize::MIN);
    let config = Config { cases: 60, ..Config::default() };
    for file in ["gguf_tiny/llama/Q4_0.gguf", "gguf/llama3rope-Q4_1.gguf"] {
        let whole = std::fs::read(format!("{golden}/{file}")).unwrap();
        let changes = proptest::collection::vec((0..HEAD, any::<u8>()), 0..4);
        let check = |changes: Vec<(usize, u8)>| {
            let mut bytes = whole.clone();
            changes.into_iter().for_each(|(at, byte)| bytes[at] = byte);
            let most = most(|| {
                if let Ok(checkpoint) = load(&bytes, &pool) {
                    let _ = Tokenizer::new(&checkpoint.vocabulary);
                }
            });
            let limit = FACTOR * bytes.len() + FIXED;
            prop_assert!(most <= limit, "{most} bytes for a file of {}", bytes.len());
            Ok(())
        };
        TestRunner::new(config.clone()).run(&changes, check).unwrap();
    }
}

/// The type of tokens that are found by their names.
const CONTROL: i32 = 3;

#[test]
fn tokens_with_long_names_take_memory_by_their_length() {
    let letter = |at: usize| char::from(b'a' + (at * at / 7 % 26) as u8);
    let name = |id: usize| (0..4000).map(|at| letter(at + 31 * id)).collect::<String>();
    let tokens: Vec<String> = (0..64).map(name).collect();
    let bytes: usize = tokens.iter().map(String::len).sum();
    let vocabulary = Vocabulary::Gguf(GgufVocabulary {
        model: "gpt2".into(),
        pre: Some("gpt-2".into()),
        token_types: vec![CONTROL; tokens.len()],
        tokens,
        ..GgufVocabulary::default()
    });
    let most = most(|| drop(Tokenizer::new(&vocabulary).unwrap()));
    assert!(most <= 100 * bytes + FIXED, "{most} bytes for {bytes}");
}
