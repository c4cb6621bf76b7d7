//! Exact ids, for every string of the golden files.

use std::num::NonZeroUsize;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde_json::Value;
use tinygpt_kernels::Pool;
use tinygptd::model::load::{GgufVocabulary, Vocabulary, load};
use tinygptd::text::{Detokenizer, Tokenizer};

use crate::files::{gemma3, ids, json, read, smollm2};

fn vocabulary(model: &[u8]) -> GgufVocabulary {
    match load(model, &Pool::new(NonZeroUsize::MIN)).unwrap().vocabulary {
        Vocabulary::Gguf(vocabulary) => vocabulary,
        other => panic!("{other:?} is not of a GGUF file"),
    }
}

/// The tokenizer of a vocabulary after a change.
fn tokenizer(file: &GgufVocabulary, change: impl FnOnce(&mut GgufVocabulary)) -> Tokenizer {
    let mut file = file.clone();
    change(&mut file);
    Tokenizer::new(&Vocabulary::Gguf(file)).unwrap()
}

/// The tokenizer of a GGUF file.
pub(crate) fn of_gguf(model: &[u8]) -> Tokenizer {
    tokenizer(&vocabulary(model), unchanged)
}

fn unchanged(_: &mut GgufVocabulary) {}

/// Makes the names of control tokens ordinary text; those that makers added keep their names.
fn nameless(file: &mut GgufVocabulary) {
    file.token_types.iter_mut().filter(|kind| **kind == 3).for_each(|kind| *kind = 1);
}

fn strings(golden: &Value) -> impl Iterator<Item = (&Value, &str)> {
    golden["encode"].as_array().unwrap().iter().map(|case| (case, case["text"].as_str().unwrap()))
}

/// A GGUF vocabulary against the ids of the tokenizer.json that it was made from.
fn check_hugging_face(model: &str, golden: &str) {
    check_strings(&of_gguf(&read(model)), &json(golden));
}

/// Every string and every chat of a golden file.
pub(crate) fn check_strings(tokenizer: &Tokenizer, golden: &Value) {
    for (case, text) in strings(golden) {
        let expected = ids(&case["ids"]);
        assert_eq!(tokenizer.encode(text).unwrap(), expected, "{text:?}");
        assert_eq!(tokenizer.decode(&expected), case["decoded"].as_str().unwrap());
        let with_special = ids(&case["ids_with_special"]);
        assert_eq!(tokenizer.encode_prompt(text).unwrap(), with_special);
    }
    for chat in golden["chat"].as_array().unwrap() {
        let Some(text) = chat["expected"].as_str() else { continue };
        assert_eq!(tokenizer.encode(text).unwrap(), ids(&chat["ids"]), "{text:?}");
    }
}

#[test]
fn a_gpt2_vocabulary_has_the_ids_of_its_tokenizer_json() {
    check_hugging_face("gguf_tiny/llama/Q4_0.gguf", "tokenizer/llama.json");
}

#[test]
fn a_llama3_vocabulary_has_the_ids_of_its_tokenizer_json() {
    check_hugging_face("gguf_tiny/llama3rope/F16.gguf", "tokenizer/llama3rope.json");
}

#[test]
fn smollm2_has_llama_cpps_ids() {
    let Some(model) = smollm2() else { return };
    let file = vocabulary(&model);
    let (nameless, tokenizer) = (tokenizer(&file, nameless), tokenizer(&file, unchanged));
    let golden = json("tokenizer/smollm2-135m-instruct-q4_1.json");
    for (case, text) in strings(&golden) {
        assert_eq!(nameless.encode(text).unwrap(), ids(&case["ids_plain"]), "{text:?}");
        let expected = ids(&case["ids_parse_special"]);
        assert_eq!(tokenizer.encode(text).unwrap(), expected, "{text:?}");
        let prompt = tokenizer.encode_prompt(text).unwrap();
        assert_eq!(prompt, ids(&case["ids_add_special"]), "{text:?}");
        assert_eq!(tokenizer.decode(&expected), text);
    }
    for chat in golden["chat"].as_array().unwrap() {
        let Some(text) = chat["expected"].as_str() else { continue };
        assert_eq!(tokenizer.encode(text).unwrap(), ids(&chat["ids"]), "{text:?}");
    }
    assert_eq!((tokenizer.bos(), tokenizer.ends()), (Some(1), &[2, 0][..]));
}

#[test]
fn gemma3_has_llama_cpps_ids() {
    let Some(model) = gemma3() else { return };
    let golden = json("tokenizer/gemma3-270m-q4_k_m.json");
    let file = vocabulary(&model);
    let (nameless, tokenizer) = (tokenizer(&file, nameless), tokenizer(&file, unchanged));
    for (case, text) in strings(&golden) {
        assert_eq!(nameless.encode(text).unwrap(), ids(&case["ids_plain"]), "{text:?}");
        let expected = ids(&case["ids_parse_special"]);
        assert_eq!(tokenizer.encode(text).unwrap(), expected, "{text:?}");
        let prompt = tokenizer.encode_prompt(text).unwrap();
        assert_eq!(prompt, ids(&case["ids_add_special"]), "{text:?}");
        assert_eq!(tokenizer.decode(&expected), text);
    }
    assert_eq!((tokenizer.bos(), tokenizer.ends()), (Some(2), &[1, 106][..]));
    check_pieces(tokenizer);
}

#[test]
fn a_space_before_every_text_gives_llama_cpps_ids() {
    let Some(model) = gemma3() else { return };
    let tokenizer = tokenizer(&vocabulary(&model), |file| file.add_space_prefix = Some(true));
    let golden = json("tokenizer/prefix.json");
    let texts = golden["strings"].as_array().unwrap();
    for (text, expected) in texts.iter().zip(golden["ids"].as_array().unwrap()) {
        let text = text.as_str().unwrap();
        assert_eq!(tokenizer.encode(text).unwrap(), ids(expected), "{text:?}");
    }
}

#[test]
fn every_way_of_cutting_words_has_llama_cpps_ids() {
    let Some(model) = smollm2() else { return };
    let golden = json("tokenizer/pre.json");
    let strings: Vec<&str> =
        golden["strings"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
    let mut file = vocabulary(&model);
    nameless(&mut file);
    for (pre, expected) in golden["ids"].as_object().unwrap() {
        let tokenizer = tokenizer(&file, |file| file.pre = Some(pre.clone()));
        for (text, expected) in strings.iter().zip(expected.as_array().unwrap()) {
            let found = tokenizer.encode(text).unwrap();
            assert_eq!(found, ids(expected), "{pre}: {text:?}");
        }
    }
}

#[test]
fn pieces_of_any_ids_of_a_real_vocabulary_are_the_decoded_whole() {
    check_pieces(of_gguf(&read("gguf_tiny/llama3rope/F16.gguf")));
}

/// Whatever the ids, the pieces of their text are its whole.
pub(crate) fn check_pieces(tokenizer: Tokenizer) {
    let tokenizer = Arc::new(tokenizer);
    let any_ids = proptest::collection::vec(0..tokenizer.vocab() as u32 + 2, 0..40);
    let check = |ids: Vec<u32>| {
        let mut stream = Detokenizer::new(tokenizer.clone());
        let mut text: String = ids.iter().filter_map(|&id| stream.push(id)).collect();
        text += &stream.finish();
        prop_assert_eq!(text, tokenizer.decode(&ids));
        Ok(())
    };
    TestRunner::default().run(&any_ids, check).unwrap();
}
