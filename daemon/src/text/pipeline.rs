//! The tokenizer that a `tokenizer.json` describes, run by the library that defines the format.
//!
//! Ids are the library's, whatever the file puts together: normalisers, ways of cutting, models,
//! names of tokens. Two things are done here. What the library would put around a text is found
//! out once and left to the one owner of the beginning token. And the bytes of each token are
//! taken from the decoder's rules, so that any sequence of ids has a text, piece by piece: a token
//! that begins a word keeps its space wherever it stands, since what is generated continues
//! something.

use std::fmt;

use serde::Deserialize;
use serde_json::Value;
use tokenizers::Tokenizer;

use super::alphabet::{characters, spell};
use super::error::TokenizerError;
use super::pieces::Pieces;
use super::tokens::Tokens;
use crate::model::load::HfVocabulary;

/// Longest run of white space that is encoded. The library's way of looking ahead in one gives up
/// after a million steps, and says nothing.
const LONGEST_SPACE: usize = 100_000;

/// A tokenizer by the library.
pub struct Pipeline {
    tokenizer: Tokenizer,
    pub(super) tokens: Tokens,
}

impl fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipeline").field("tokens", &self.tokens).finish_non_exhaustive()
    }
}

impl Pipeline {
    pub(super) fn new(vocabulary: &HfVocabulary) -> Result<Self, TokenizerError> {
        let (tokenizer, decoder) = read(&vocabulary.json)?;
        check_added(&tokenizer, vocabulary)?;
        let front = front(&tokenizer)?;
        let id = |text: &Option<String>| tokenizer.token_to_id(text.as_deref()?);
        let bos = front.or_else(|| id(&vocabulary.bos)).or(vocabulary.bos_id);
        let mut ends = vocabulary.eos_ids.clone();
        ends.extend(id(&vocabulary.eos).filter(|end| !ends.contains(end)));
        Ok(Self {
            tokens: Tokens {
                pieces: pieces(&tokenizer, &decoder, vocabulary.vocab)?,
                bos,
                adds_bos: vocabulary.adds_bos.unwrap_or(front.is_some()),
                ends,
            },
            tokenizer,
        })
    }

    /// Asks before the text whether anybody wants its ids.
    pub(super) fn encode(
        &self,
        text: &str,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Vec<u32>, TokenizerError> {
        let failed = |reason| TokenizerError::Encode { bytes: text.len(), reason };
        if !wanted() {
            return Err(TokenizerError::Unwanted);
        }
        if has_long_space(text) {
            return Err(failed(format!("more than {LONGEST_SPACE} characters of white space")));
        }
        let encoding = self.tokenizer.encode_fast(text, false);
        let encoding = encoding.map_err(|error| failed(error.to_string()))?;
        let vocab = self.tokens.pieces.len();
        match encoding.get_ids().iter().find(|&&id| id as usize >= vocab) {
            None => Ok(encoding.get_ids().to_vec()),
            Some(&id) => Err(TokenizerError::Outside { id, vocab }),
        }
    }
}

/// What is read here of a `tokenizer.json`, beside what the library reads.
#[derive(Deserialize)]
struct Description {
    model: DescribedModel,
    #[serde(default)]
    decoder: Value,
}

#[derive(Deserialize)]
struct DescribedModel {
    dropout: Option<f64>,
}

/// The tokenizer, without what makes ids depend on anything but a text, and its decoder.
fn read(json: &[u8]) -> Result<(Tokenizer, Value), TokenizerError> {
    let build =
        |reason: String| TokenizerError::Build { reason: format!("tokenizer.json: {reason}") };
    let described: Description =
        serde_json::from_slice(json).map_err(|error| build(error.to_string()))?;
    if let Some(dropout) = described.model.dropout {
        return Err(unsupported("model.dropout", dropout.to_string()));
    }
    let mut tokenizer = Tokenizer::from_bytes(json).map_err(|error| build(error.to_string()))?;
    tokenizer.with_truncation(None).map_err(|error| build(error.to_string()))?.with_padding(None);
    Ok((tokenizer, described.decoder))
}

/// Tokens that another file of the directory names must be the ones that this one has.
fn check_added(tokenizer: &Tokenizer, vocabulary: &HfVocabulary) -> Result<(), TokenizerError> {
    let known = |(id, text): &&(u32, String)| tokenizer.token_to_id(text) == Some(*id);
    match vocabulary.added.iter().find(|token| !known(token)) {
        None => Ok(()),
        Some((id, text)) => Err(TokenizerError::Added {
            id: *id,
            text: text.clone(),
            found: tokenizer.id_to_token(*id),
        }),
    }
}

/// The token that the library puts in front of a text.
fn front(tokenizer: &Tokenizer) -> Result<Option<u32>, TokenizerError> {
    let encode = |special| {
        let encoding = tokenizer.encode_fast("a", special);
        let encoding =
            encoding.map_err(|error| TokenizerError::Build { reason: error.to_string() });
        Ok::<_, TokenizerError>(encoding?.get_ids().to_vec())
    };
    let (around, bare) = (encode(true)?, encode(false)?);
    match around.strip_suffix(&bare[..]) {
        Some([]) => Ok(None),
        Some([bos]) => Ok(Some(*bos)),
        _ => Err(unsupported("post_processor", format!("it makes {around:?} of {bare:?}"))),
    }
}

fn has_long_space(text: &str) -> bool {
    let mut run = 0;
    text.chars().any(|character| {
        run = if character.is_whitespace() { run + 1 } else { 0 };
        run > LONGEST_SPACE
    })
}

/// What a decoder does to one token.
#[derive(Debug)]
enum Rule {
    /// Its characters are bytes.
    Spell,
    /// One text stands for another.
    Replace(String, String),
    /// `<0x0A>` is a byte.
    Bytes,
}

/// The bytes of every id of the model, none for one that the tokenizer does not have.
fn pieces(tokenizer: &Tokenizer, decoder: &Value, vocab: usize) -> Result<Pieces, TokenizerError> {
    let mut rules = Vec::new();
    rules_of(decoder, &mut rules)?;
    let characters = characters();
    let ids = 0..u32::try_from(vocab).unwrap_or(u32::MAX);
    let bytes = ids.map(|id| {
        let token = tokenizer.id_to_token(id);
        (token.map(|token| decode(token, &rules, &characters)).unwrap_or_default(), false)
    });
    Ok(Pieces::new(bytes))
}

fn rules_of(decoder: &Value, rules: &mut Vec<Rule>) -> Result<(), TokenizerError> {
    let text = |key: &str| decoder.get(key).and_then(Value::as_str).map(str::to_owned);
    let refuse = || unsupported("decoder", decoder.to_string());
    match decoder.get("type").and_then(Value::as_str) {
        Some("Sequence") => {
            let steps = decoder.get("decoders").and_then(Value::as_array).ok_or_else(refuse)?;
            return steps.iter().try_for_each(|step| rules_of(step, rules));
        }
        Some("ByteLevel") => rules.push(Rule::Spell),
        Some("ByteFallback") => rules.push(Rule::Bytes),
        Some("Metaspace") => {
            rules.push(Rule::Replace(text("replacement").ok_or_else(refuse)?, " ".into()));
        }
        Some("Replace") => {
            let from = decoder.get("pattern").and_then(|pattern| pattern.get("String")?.as_str());
            let from = from.filter(|from| !from.is_empty()).ok_or_else(refuse)?;
            rules.push(Rule::Replace(from.into(), text("content").ok_or_else(refuse)?));
        }
        // What these do is done to a whole text: they join tokens, and take a space from the
        // first one.
        Some("Fuse") => {}
        Some("Strip") if text("content").as_deref() == Some(" ") => {}
        _ => return Err(refuse()),
    }
    Ok(())
}

fn decode(mut token: String, rules: &[Rule], characters: &[char; 256]) -> Vec<u8> {
    for rule in rules {
        match rule {
            Rule::Spell => return spell(&token, characters).unwrap_or_else(|| token.into_bytes()),
            Rule::Replace(from, to) => token = token.replace(from.as_str(), to),
            Rule::Bytes => {
                if let Some(byte) = byte(&token) {
                    return vec![byte];
                }
            }
        }
    }
    token.into_bytes()
}

/// The byte that a token of the form `<0x0A>` stands for.
fn byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    u8::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 2)
}

fn unsupported(what: &str, detail: String) -> TokenizerError {
    TokenizerError::Unsupported { what: what.into(), detail }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
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
        assert_eq!(
            read("null", |vocabulary| vocabulary.bos = Some("<s>".into())),
            (Some(5), false)
        );
        assert_eq!(read("null", |vocabulary| vocabulary.bos_id = Some(1)), (Some(1), false));
        assert_eq!(
            read(TEMPLATE, |vocabulary| vocabulary.adds_bos = Some(false)),
            (Some(5), false)
        );
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
        let after = TEMPLATE.replace(
            r#""single": ["#,
            r#""single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, "#,
        );
        let dropout = json("null", DECODER).replace(r#""dropout": null"#, r#""dropout": 0.1"#);
        for (json, name) in [
            (json(&after, DECODER), "post_processor"),
            (json("null", r#"{"type": "WordPiece", "prefix": "", "cleanup": true}"#), "decoder"),
            (json("null", "null"), "decoder"),
            (dropout, "model.dropout"),
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
}
