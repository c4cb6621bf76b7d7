use super::*;

/// Ids: ▁ 0, a 1, b 2, ▁a 3, <0x0A> 4, <s> 5, and the model knows one more.
fn json(post_processor: &str, decoder: &str) -> String {
    format!(
        r#"{{"version": "1.0", "added_tokens": [{{"id": 5, "content": "<s>", "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false, "special": true}}],
            "truncation": {{"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}},
            "padding": null,
            "normalizer": {{"type": "Sequence", "normalizers": [{{"type": "Prepend", "prepend": "▁"}},
            {{"type": "Replace", "pattern": {{"String": " "}}, "content": "▁"}}]}},
            "pre_tokenizer": null, "post_processor": {post_processor}, "decoder": {decoder},
            "model": {{"type": "BPE", "dropout": null, "unk_token": null,
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
            "byte_fallback": true, "vocab": {{"▁": 0, "a": 1, "b": 2, "▁a": 3, "<0x0A>": 4, "<s>": 5}},
            "merges": [["▁", "a"]]}}}}"#
    )
}

const TEMPLATE: &str = r#"{"type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [5], "tokens": ["<s>"]}}}"#;

const DECODER: &str = r#"{"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
        {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}"#;

fn vocabulary(json: String) -> HfVocabulary {
    HfVocabulary { json: json.into_bytes().into(), vocab: 7, ..HfVocabulary::default() }
}

fn pipeline(
    json: String,
    change: impl FnOnce(&mut HfVocabulary),
) -> Result<Pipeline, TokenizerError> {
    let mut vocabulary = vocabulary(json);
    change(&mut vocabulary);
    Pipeline::new(&vocabulary)
}

fn encode(pipeline: &Pipeline, text: &str) -> Vec<u32> {
    pipeline.encode(text, &|| true).unwrap()
}

#[test]
fn a_text_has_all_its_ids_and_a_token_its_bytes_wherever_it_stands() {
    let pipeline = pipeline(json("null", DECODER), |_| {}).unwrap();
    assert_eq!(encode(&pipeline, "a b\na<s>"), [3, 0, 2, 4, 1, 5]);
    let bytes = |id| pipeline.tokens.pieces.bytes(id);
    assert_eq!([bytes(3), bytes(2), bytes(4), bytes(5)], [b" a" as &[u8], b"b", b"\n", b"<s>"]);
    assert!(bytes(6).is_empty() && bytes(7).is_empty() && pipeline.tokens.pieces.len() == 7);
}

#[test]
fn what_is_put_in_front_is_the_beginning_token_unless_a_key_says_otherwise() {
    let read = |post: &str, change: fn(&mut HfVocabulary)| {
        let pipeline = pipeline(json(post, DECODER), change).unwrap();
        assert_eq!(encode(&pipeline, "b"), [0, 2], "it is never put there by encoding");
        (pipeline.tokens.bos, pipeline.tokens.adds_bos)
    };
    assert_eq!(read("null", |_| {}), (None, false));
    assert_eq!(read(TEMPLATE, |_| {}), (Some(5), true));
    assert_eq!(read("null", |vocabulary| vocabulary.bos = Some("<s>".into())), (Some(5), false));
    assert_eq!(read("null", |vocabulary| vocabulary.bos_id = Some(1)), (Some(1), false));
    assert_eq!(read(TEMPLATE, |vocabulary| vocabulary.adds_bos = Some(false)), (Some(5), false));
}

#[test]
fn the_end_token_by_name_joins_those_by_id() {
    let ends = |ids: &[u32]| {
        let set = |vocabulary: &mut HfVocabulary| {
            (vocabulary.eos, vocabulary.eos_ids) = (Some("<s>".into()), ids.into());
        };
        pipeline(json("null", DECODER), set).unwrap().tokens.ends
    };
    assert_eq!((ends(&[]), ends(&[2, 5]), ends(&[2])), (vec![5], vec![2, 5], vec![2, 5]));
}

#[test]
fn what_is_not_implemented_is_refused_by_name() {
    let after = TEMPLATE
        .replace(r#""single": ["#, r#""single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, "#);
    let affix = |key: &str| {
        let null = format!(r#""{key}": null"#);
        json("null", DECODER).replace(&null, &format!(r#""{key}": "</w>""#))
    };
    let (prefix, suffix) = (affix("continuing_subword_prefix"), affix("end_of_word_suffix"));
    let dropout = json("null", DECODER).replace(r#""dropout": null"#, r#""dropout": 0.1"#);
    for (json, name) in [
        (json(&after, DECODER), "post_processor"),
        (json("null", r#"{"type": "WordPiece", "prefix": "", "cleanup": true}"#), "decoder"),
        (json("null", "null"), "decoder"),
        (
            json("null", r#"{"type": "Replace", "pattern": {"String": "a"}, "content": "bb"}"#),
            "decoder",
        ),
        (dropout, "model.dropout"),
        (prefix, "model.continuing_subword_prefix"),
        (suffix, "model.end_of_word_suffix"),
    ] {
        let error = pipeline(json, |_| {}).unwrap_err();
        assert!(
            error.to_string().starts_with(&format!("tokenizer.json: {name} is not")),
            "{error}"
        );
    }
    for broken in ["", "{}", "[1"] {
        let error = pipeline(broken.into(), |_| {}).unwrap_err();
        assert!(matches!(error, TokenizerError::Build { .. }), "{error}");
    }
}

#[test]
fn tokens_that_two_files_name_differently_are_refused() {
    let add = |id, text: &str| {
        let token = vec![(id, text.to_owned())];
        pipeline(json("null", DECODER), |vocabulary| vocabulary.added = token)
    };
    assert!(add(5, "<s>").is_ok());
    for (id, text) in [(4, "<s>"), (6, "<pad>"), (5, "</s>")] {
        let error = add(id, text).unwrap_err().to_string();
        assert!(error.contains(&format!("{id}")) && error.contains(text), "{error}");
    }
}

#[test]
fn an_id_that_the_model_does_not_know_and_an_endless_space_are_errors() {
    let pipeline = pipeline(json("null", DECODER), |vocabulary| vocabulary.vocab = 5).unwrap();
    let error = pipeline.encode("a<s>", &|| true).unwrap_err();
    assert!(matches!(error, TokenizerError::Outside { id: 5, vocab: 5 }), "{error}");
    let space = " ".repeat(LONGEST_SPACE + 1);
    assert!(matches!(pipeline.encode(&space, &|| true), Err(TokenizerError::Encode { .. })));
    assert!(matches!(pipeline.encode("a", &|| false), Err(TokenizerError::Unwanted)));
}
