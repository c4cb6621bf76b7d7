use proptest::prelude::*;
use serde_json::{Value, json};
use tokenizers::models::bpe::BPE;
use tokenizers::{Model as _, Result, Token};

use super::super::model::Model;

fn read(model: &Value) -> serde_json::Result<Model> {
    serde_json::from_str(&model.to_string())
}

/// A model of these tokens, whose merges are all pairs of them that make a third.
fn model(tokens: &[&str], more: Value) -> Value {
    let is_token = |text: &str| tokens.contains(&text);
    let pairs = tokens.iter().flat_map(|left| tokens.iter().map(move |right| [*left, *right]));
    let merges: Vec<_> = pairs.filter(|pair| is_token(&pair.concat())).collect();
    let vocab: serde_json::Map<_, _> =
        (0..).zip(tokens).map(|(id, text)| ((*text).to_owned(), Value::from(id))).collect();
    let mut model = json!({"type": "BPE", "vocab": vocab, "merges": merges});
    model.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    model
}

fn ids(tokens: Result<Vec<Token>>) -> Option<Vec<(u32, (usize, usize))>> {
    Some(tokens.ok()?.into_iter().map(|token| (token.id, token.offsets)).collect())
}

const TOKENS: [&str; 12] =
    ["<unk>", "<0xC3>", "<0xA9>", "<0x63>", "a", "b", "ab", "aba", "ba", "é", "<unk>a", "aa"];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn words_have_the_librarys_ids(
        chosen in proptest::sample::subsequence(TOKENS.to_vec(), 1..TOKENS.len()).prop_shuffle(),
        unknown in proptest::option::of("<unk>|b"),
        [fuse, bytes, whole] in any::<[bool; 3]>(),
        word in "[abcéß]{1,12}",
    ) {
        let more = json!({"unk_token": unknown, "fuse_unk": fuse, "byte_fallback": bytes,
            "ignore_merges": whole});
        let model = model(&chosen, more);
        let library: BPE = serde_json::from_str(&model.to_string()).unwrap();
        let ours = read(&model).unwrap();
        prop_assert!(matches!(ours, Model::Pairs(_)));
        prop_assert_eq!(ids(ours.tokenize(&word)), ids(library.tokenize(&word)));
        for (id, token) in (0..).zip(&chosen) {
            prop_assert_eq!(ours.token_to_id(token), Some(id));
            prop_assert_eq!(ours.id_to_token(id), Some((*token).to_owned()));
        }
        prop_assert_eq!(ours.get_vocab(), library.get_vocab());
        prop_assert_eq!(ours.get_vocab_size(), chosen.len());
    }
}

#[test]
fn merges_may_be_written_in_either_way_and_the_last_of_equal_ones_counts() {
    let ids_with = |merges: Value| {
        let model = model(&["a", "b", "ab", "ba", "a b"], json!({"merges": merges}));
        let tokens = read(&model).unwrap().tokenize("aba").unwrap();
        tokens.into_iter().map(|token| token.id).collect::<Vec<_>>()
    };
    for [ab, ba] in [[json!("a b"), json!("b a")], [json!(["a", "b"]), json!(["b", "a"])]] {
        assert_eq!(ids_with(json!(["#version: 0.2", ab, ba])), [2, 0]);
        assert_eq!(ids_with(json!([ab, ba, ab])), [0, 3]);
    }
}

#[test]
fn what_cannot_be_is_told_with_its_place() {
    let said = |more: Value| read(&model(&["a", "b", "ab"], more)).err().unwrap().to_string();
    for (more, words) in [
        (json!({"vocab": {"a": 0, "b": 0}}), "token 0 is "),
        (json!({"vocab": {"a": u32::MAX}}), "there is a token 4294967295, but only 1 tokens"),
        (json!({"vocab": {"a": -1}}), "invalid value: integer `-1`"),
        (json!({"merges": [["a", "b"], ["a", "c"]]}), "merge 1 (\"a c\") wants a token \"ac\""),
        (json!({"merges": ["a b a"]}), "the merge \"a b a\" is not two tokens"),
        (json!({"merges": [["a", "b", "a"]]}), "a merge is not two tokens"),
        (json!({"merges": [["a"]]}), "a merge is not two tokens"),
        (json!({"merges": [1]}), "two tokens, in a list"),
    ] {
        let said = said(more);
        assert!(said.contains(words), "{said}");
    }
    for (model, words) in [
        (r#"{"type": "BPE", "vocab": {}}"#, "missing field `merges`"),
        (r#"{"type": "BPE", "merges": []}"#, "missing field `vocab`"),
        (r#"{"type": "BPE", "vocab": {}, "vocab": {}, "merges": []}"#, "duplicate field `vocab`"),
    ] {
        let said = serde_json::from_str::<Model>(model).err().unwrap().to_string();
        assert!(said.contains(words), "{said}");
    }
}

#[test]
fn merges_may_come_before_the_tokens() {
    let model = r#"{"type": "BPE", "merges": ["a b"], "vocab": {"ab": 2, "b": 1, "a": 0}}"#;
    let model: Model = serde_json::from_str(model).unwrap();
    assert_eq!(model.tokenize("ab").unwrap()[0].id, 2);
}

#[test]
fn an_unknown_token_that_is_none_is_an_error_where_it_is_needed() {
    let model = read(&model(&["a"], json!({"unk_token": "<unk>"}))).unwrap();
    assert_eq!(model.tokenize("aa").unwrap().len(), 2);
    assert_eq!(model.tokenize("ab").unwrap_err().to_string(), "unk_token \"<unk>\" is no token");
}

#[test]
fn a_model_of_another_kind_or_of_none_is_the_librarys() {
    let words = json!({"type": "WordLevel", "vocab": {"a": 0, "<unk>": 1}, "unk_token": "<unk>"});
    let mut untyped = model(&["a", "<unk>"], json!({"unk_token": "<unk>"}));
    untyped.as_object_mut().unwrap().remove("type");
    for model in [words, untyped] {
        let model = read(&model).unwrap();
        assert!(matches!(model, Model::Other(_)));
        assert_eq!(model.tokenize("b").unwrap()[0].id, 1);
    }
}
