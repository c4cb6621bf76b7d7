use std::cmp::Reverse;

use proptest::prelude::*;

use super::super::literals::{CONTROL, USER_DEFINED};
use super::*;
use crate::model::load::Vocabulary;
use crate::text::Tokenizer;

const NORMAL: i32 = 1;

/// Tokens with their types and scores, after `<unk>` 0, `<s>` 1 and `</s>` 2.
fn vocabulary(tokens: &[(&str, i32, f32)]) -> GgufVocabulary {
    let specials = [("<unk>", 2, 0.0), ("<s>", CONTROL, 0.0), ("</s>", CONTROL, 0.0)];
    let tokens = specials.iter().chain(tokens);
    GgufVocabulary {
        model: "llama".into(),
        tokens: tokens.clone().map(|(text, ..)| (*text).into()).collect(),
        token_types: tokens.clone().map(|(_, kind, _)| *kind).collect(),
        scores: tokens.map(|(.., score)| *score).collect(),
        bos: Some(1),
        add_space_prefix: Some(false),
        ..GgufVocabulary::default()
    }
}

fn tokenizer(vocabulary: GgufVocabulary) -> Tokenizer {
    Tokenizer::new(&Vocabulary::Gguf(vocabulary)).unwrap()
}

/// Ids: ▁ 3, a 4, b 5, ab 6, ▁a 7, ba 8.
fn letters() -> GgufVocabulary {
    vocabulary(&[
        ("▁", NORMAL, -9.0),
        ("a", NORMAL, -9.0),
        ("b", NORMAL, -9.0),
        ("ab", NORMAL, -1.0),
        ("▁a", NORMAL, -2.0),
        ("ba", NORMAL, -1.0),
    ])
}

#[test]
fn the_best_score_is_joined_first_and_of_equals_the_leftmost() {
    let tokenizer = tokenizer(letters());
    assert_eq!(tokenizer.encode(" ab").unwrap(), [3, 6]);
    assert_eq!(tokenizer.encode("aba").unwrap(), [6, 4]);
    assert_eq!(tokenizer.encode("bab").unwrap(), [8, 5]);
    assert_eq!(tokenizer.encode(" a▁a").unwrap(), [7, 7]);
    assert_eq!(tokenizer.decode(&[7, 5, 3]), " ab ");
}

#[test]
fn a_space_is_put_in_front_of_every_ordinary_text_unless_the_file_says_no() {
    let with = |add| {
        tokenizer(GgufVocabulary { add_space_prefix: add, ..letters() }).encode("a<s>a").unwrap()
    };
    assert_eq!(with(None), [7, 1, 7]);
    assert_eq!(with(Some(true)), [7, 1, 7]);
    assert_eq!(with(Some(false)), [4, 1, 4]);
    let prefixed = tokenizer(GgufVocabulary { add_space_prefix: None, ..letters() });
    assert_eq!(prefixed.encode("").unwrap(), [0; 0]);
}

#[test]
fn a_character_without_a_token_is_spelled_in_bytes() {
    let mut tokens = vec![("a", NORMAL, 0.0)];
    let names: Vec<String> = (0..=255).map(|byte| format!("<0x{byte:02X}>")).collect();
    tokens.extend(names.iter().map(|name| (&**name, BYTE, 0.0)));
    let tokenizer = tokenizer(vocabulary(&tokens));
    let ids = tokenizer.encode("aé\n<0x41>").unwrap();
    let byte = |byte: u8| 4 + u32::from(byte);
    let mut expected = vec![3, byte(0xc3), byte(0xa9), byte(b'\n')];
    expected.extend(b"<0x41>".map(byte));
    assert_eq!(ids, expected);
    assert_eq!(tokenizer.decode(&ids), "aé\n<0x41>");
    assert_eq!(tokenizer.token_bytes(byte(0xff)), [0xff]);
}

#[test]
fn what_cannot_be_spelled_is_the_unknown_token_or_an_error_with_its_place() {
    let prefixed = GgufVocabulary { add_space_prefix: None, ..letters() };
    for vocabulary in [letters(), prefixed] {
        let error = tokenizer(vocabulary.clone()).encode("<s>aéa▁é!").unwrap_err();
        let expected = |at, byte| format!("{:?}", TokenizerError::NoToken { byte, at });
        assert_eq!(format!("{error:?}"), expected(4, 0xc3));
        let error = tokenizer(vocabulary.clone()).encode("a▁!").unwrap_err();
        assert_eq!(format!("{error:?}"), expected(4, b'!'));
        let known =
            GgufVocabulary { unknown: Some(0), add_space_prefix: Some(false), ..vocabulary };
        assert_eq!(tokenizer(known).encode("aé!a").unwrap(), [4, 0, 0, 4]);
    }
    let bare = GgufVocabulary { add_space_prefix: None, ..vocabulary(&[("a", NORMAL, 0.0)]) };
    assert!(matches!(tokenizer(bare).encode("a"), Err(TokenizerError::NoToken { at: 0, .. })));
}

#[test]
fn added_tokens_are_found_by_their_names_and_keep_their_spaces() {
    let mut tokenizer_of = letters();
    for (name, kind) in [("  ", USER_DEFINED), ("<end>", CONTROL)] {
        tokenizer_of.tokens.push(name.into());
        tokenizer_of.token_types.push(kind);
        tokenizer_of.scores.push(-1000.0);
    }
    let swallowing = GgufVocabulary { swallow: vec![10], ..tokenizer_of.clone() };
    let tokenizer_of = tokenizer(tokenizer_of);
    assert_eq!(tokenizer_of.encode("a   a<end> a").unwrap(), [4, 9, 7, 10, 7]);
    assert_eq!(tokenizer_of.decode(&[4, 9, 10]), "a  <end>");
    assert_eq!(tokenizer(swallowing).encode("a<end> \na").unwrap(), [4, 10, 4]);
}

#[test]
fn prompts_begin_with_the_beginning_token_unless_the_file_says_no() {
    assert_eq!(tokenizer(letters()).encode_prompt("a").unwrap(), [1, 4]);
    let without = GgufVocabulary { add_bos: Some(false), ..letters() };
    assert_eq!(tokenizer(without).encode_prompt("a").unwrap(), [4]);
}

#[test]
fn a_vocabulary_without_its_scores_is_refused() {
    let lacking = GgufVocabulary { scores: vec![0.0; 2], ..letters() };
    let error = Tokenizer::new(&Vocabulary::Gguf(lacking)).unwrap_err().to_string();
    assert_eq!(error, "tokenizer.ggml.scores has 2 scores for 9 tokens");
}

#[test]
fn a_text_that_nobody_wants_any_more_is_left_on_the_way() {
    let tokenizer = tokenizer(letters());
    let asked = std::cell::Cell::new(0);
    let wanted = || asked.replace(asked.get() + 1) < 2;
    let refused = tokenizer.encode_while(&"ab ".repeat(100_000), &wanted).unwrap_err();
    assert!(matches!(refused, TokenizerError::Unwanted) && asked.get() == 3, "{refused}");
}

#[test]
fn a_long_text_without_a_space_is_merged_like_a_short_one() {
    let tokens: Vec<String> = (0..5).map(|power| "a".repeat(1 << power)).collect();
    let tokens: Vec<_> =
        tokens.iter().zip(0u8..).map(|(text, at)| (&**text, NORMAL, -f32::from(at))).collect();
    let ids = tokenizer(vocabulary(&tokens)).encode(&"a".repeat(1 << 18)).unwrap();
    assert_eq!(ids, vec![7; 1 << 14]);
}

/// The definition: the best-scored neighbours anywhere, leftmost first, until none are a token.
fn plainly(vocabulary: &GgufVocabulary, text: &str) -> Vec<u32> {
    let find = |text: &str| vocabulary.tokens.iter().position(|token| token == text);
    let mut parts: Vec<String> = text.chars().map(String::from).collect();
    let best = |parts: &[String]| {
        let pairs = parts.windows(2).enumerate();
        let scored = pairs.filter_map(|(at, pair)| {
            let id = find(&pair.concat())?;
            Some((vocabulary.scores[id], Reverse(at)))
        });
        scored.max_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1))).map(|(_, Reverse(at))| at)
    };
    while let Some(at) = best(&parts) {
        let right = parts.remove(at + 1);
        parts[at] += &right;
    }
    parts.iter().map(|part| find(part).map_or(0, |id| id as u32)).collect()
}

proptest! {
    #[test]
    fn texts_have_the_ids_that_joining_plainly_gives(
        tokens in proptest::collection::vec(("[abc]{1,5}", -4i8..1), 1..30),
        text in "[abc]{0,60}|a{1,100}|(ab){1,60}",
    ) {
        let mut seen = std::collections::HashSet::new();
        let tokens: Vec<_> = tokens.iter().filter(|(token, _)| seen.insert(token.clone())).collect();
        let tokens: Vec<_> =
            tokens.iter().map(|(token, score)| (&**token, NORMAL, f32::from(*score))).collect();
        let vocabulary = GgufVocabulary { unknown: Some(0), ..vocabulary(&tokens) };
        let expected = plainly(&vocabulary, &text);
        prop_assert_eq!(tokenizer(vocabulary).encode(&text).unwrap(), expected);
    }
}

proptest! {
    #[test]
    fn any_vocabulary_is_refused_or_spells_any_text_and_never_panics(
        tokens in proptest::collection::vec(
            ("[ab▁ ]{0,3}|<0x[0-9a-fA-Fg]{1,3}>|<s>|é", -1i32..8, any::<f32>()),
            0..20,
        ),
        (unknown, prefix) in (proptest::option::of(0u32..3), proptest::option::of(any::<bool>())),
        text in "([ab▁ é\\n]|<s>|<0x4){0,30}",
    ) {
        let tokens: Vec<_> =
            tokens.iter().map(|(text, kind, score)| (&**text, *kind, *score)).collect();
        let vocabulary =
            GgufVocabulary { unknown, add_space_prefix: prefix, ..vocabulary(&tokens) };
        let tokenizer = tokenizer(vocabulary);
        if let Ok(ids) = tokenizer.encode_prompt(&text) {
            prop_assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab()));
            tokenizer.decode(&ids);
        }
    }
}
