//! Exact ids, for every string of the golden files.

use std::num::NonZeroUsize;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde_json::Value;
use tinygpt_kernels::Pool;
use tinygptd::model::load::{GgufVocabulary, Vocabulary, load};
use tinygptd::text::{Detokenizer, Tokenizer};

use crate::files::{ids, json, read, smollm2};

fn vocabulary(model: &[u8]) -> Vocabulary {
    load(model, &Pool::new(NonZeroUsize::MIN)).unwrap().vocabulary
}

fn tokenizer(model: &[u8]) -> Tokenizer {
    Tokenizer::new(&vocabulary(model)).unwrap()
}

/// A tokenizer to which the names of all tokens are ordinary text.
fn nameless(model: &[u8], pre: Option<&str>) -> Tokenizer {
    let Vocabulary::Gguf(file) = vocabulary(model) else { panic!("a GGUF file") };
    let pre = pre.map(str::to_owned).or(file.pre);
    let vocabulary = GgufVocabulary { pre, token_types: Vec::new(), ..file };
    Tokenizer::new(&Vocabulary::Gguf(vocabulary)).unwrap()
}

fn strings(golden: &Value) -> impl Iterator<Item = (&Value, &str)> {
    golden["encode"].as_array().unwrap().iter().map(|case| (case, case["text"].as_str().unwrap()))
}

/// A GGUF vocabulary against the ids of the tokenizer.json that it was made from.
fn check_hugging_face(model: &str, golden: &str) {
    let tokenizer = tokenizer(&read(model));
    for (case, text) in strings(&json(golden)) {
        let expected = ids(&case["ids"]);
        assert_eq!(tokenizer.encode(text).unwrap(), expected, "{text:?}");
        assert_eq!(tokenizer.decode(&expected), case["decoded"].as_str().unwrap());
        let with_special = ids(&case["ids_with_special"]);
        assert_eq!(tokenizer.encode_prompt(text).unwrap(), with_special);
    }
    for chat in json(golden)["chat"].as_array().unwrap() {
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
    let (nameless, tokenizer) = (nameless(&model, None), tokenizer(&model));
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
    assert_eq!((tokenizer.bos(), tokenizer.ends()), (Some(1), &[2][..]));
}

#[test]
fn every_way_of_cutting_words_has_llama_cpps_ids() {
    let Some(model) = smollm2() else { return };
    let golden = json("tokenizer/pre.json");
    let strings: Vec<&str> =
        golden["strings"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
    for (pre, expected) in golden["ids"].as_object().unwrap() {
        let tokenizer = nameless(&model, Some(pre));
        for (text, expected) in strings.iter().zip(expected.as_array().unwrap()) {
            let found = tokenizer.encode(text).unwrap();
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
