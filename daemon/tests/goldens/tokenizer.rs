//! Exact ids, for every string of the golden files.

use std::num::NonZeroUsize;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde_json::Value;
use tinygpt_kernels::Pool;
use tinygptd::model::load::{Vocabulary, load};
use tinygptd::text::{Detokenizer, Special, Tokenizer};

use crate::files::{ids, json, read, smollm2};

fn vocabulary(model: &[u8]) -> Vocabulary {
    load(model, &Pool::new(NonZeroUsize::MIN)).unwrap().vocabulary
}

fn tokenizer(model: &[u8]) -> Tokenizer {
    Tokenizer::new(&vocabulary(model)).unwrap()
}

fn strings(golden: &Value) -> impl Iterator<Item = (&Value, &str)> {
    golden["encode"].as_array().unwrap().iter().map(|case| (case, case["text"].as_str().unwrap()))
}

/// A GGUF vocabulary against the ids of the tokenizer.json that it was made from.
fn check_hugging_face(model: &str, golden: &str) {
    let tokenizer = tokenizer(&read(model));
    for (case, text) in strings(&json(golden)) {
        let expected = ids(&case["ids"]);
        assert_eq!(tokenizer.encode(text, Special::Parse).unwrap(), expected, "{text:?}");
        assert_eq!(tokenizer.decode(&expected), case["decoded"].as_str().unwrap());
        let with_special = ids(&case["ids_with_special"]);
        assert_eq!(tokenizer.encode_prompt(text, Special::Parse).unwrap(), with_special);
    }
    for chat in json(golden)["chat"].as_array().unwrap() {
        let Some(text) = chat["expected"].as_str() else { continue };
        assert_eq!(tokenizer.encode(text, Special::Parse).unwrap(), ids(&chat["ids"]), "{text:?}");
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
    let tokenizer = tokenizer(&model);
    let golden = json("tokenizer/smollm2-135m-instruct-q4_1.json");
    for (case, text) in strings(&golden) {
        let encode = |special| tokenizer.encode(text, special).unwrap();
        assert_eq!(encode(Special::Plain), ids(&case["ids_plain"]), "{text:?}");
        assert_eq!(encode(Special::Parse), ids(&case["ids_parse_special"]), "{text:?}");
        let prompt = tokenizer.encode_prompt(text, Special::Parse).unwrap();
        assert_eq!(prompt, ids(&case["ids_add_special"]), "{text:?}");
        assert_eq!(tokenizer.decode(&encode(Special::Plain)), text);
    }
    for chat in golden["chat"].as_array().unwrap() {
        let Some(text) = chat["expected"].as_str() else { continue };
        assert_eq!(tokenizer.encode(text, Special::Parse).unwrap(), ids(&chat["ids"]), "{text:?}");
    }
    assert_eq!((tokenizer.bos(), tokenizer.ends()), (Some(1), &[2][..]));
}

#[test]
fn every_way_of_cutting_words_has_llama_cpps_ids() {
    let Some(model) = smollm2() else { return };
    let Vocabulary::Gguf(vocabulary) = vocabulary(&model) else { panic!("a GGUF file") };
    let golden = json("tokenizer/pre.json");
    let strings: Vec<&str> =
        golden["strings"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
    for (pre, expected) in golden["ids"].as_object().unwrap() {
        let vocabulary =
            tinygptd::model::load::GgufVocabulary { pre: Some(pre.clone()), ..vocabulary.clone() };
        let tokenizer = Tokenizer::new(&Vocabulary::Gguf(vocabulary)).unwrap();
        for (text, expected) in strings.iter().zip(expected.as_array().unwrap()) {
            let found = tokenizer.encode(text, Special::Plain).unwrap();
            assert_eq!(found, ids(expected), "{pre}: {text:?}");
        }
    }
}

#[test]
fn pieces_of_any_ids_of_a_real_vocabulary_are_the_decoded_whole() {
    let tokenizer = Arc::new(tokenizer(&read("gguf_tiny/llama3rope/F16.gguf")));
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
