//! The tokenizer that a `tokenizer.json` describes, run by the library that defines the format.
//!
//! Ids are the library's, whatever the file puts together: normalisers, ways of cutting, models,
//! names of tokens. Only the tokens and merges of byte-pair models are kept otherwise (`Model`).
//! Two things are done here. What the library would put around a text is found
//! out once and left to the one owner of the beginning token. And the bytes of each token are
//! taken from the decoder's rules, so that any sequence of ids has a text, piece by piece: a token
//! that begins a word keeps its space wherever it stands, since what is generated continues
//! something.

use std::fmt;

use serde::Deserialize;
use serde_json::Value;
use tokenizers::{
    DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, TokenizerImpl,
};

use self::model::Model;
use super::alphabet::{characters, spell};
use super::error::TokenizerError;
use super::pieces::Pieces;
use super::tokens::Tokens;
use crate::model::load::HfVocabulary;

mod model;
mod pairs;

/// The library's, with the model as it is kept here.
type Library = TokenizerImpl<
    Model,
    NormalizerWrapper,
    PreTokenizerWrapper,
    PostProcessorWrapper,
    DecoderWrapper,
>;

/// Longest run of white space that is encoded. The library's way of looking ahead in one gives up
/// after a million steps, and says nothing.
const LONGEST_SPACE: usize = 100_000;

/// A tokenizer by the library.
pub struct Pipeline {
    tokenizer: Library,
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
    #[serde(rename = "type")]
    kind: Option<String>,
    dropout: Option<f64>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
}

impl DescribedModel {
    /// Refuses by name what is not implemented.
    fn check(&self) -> Result<(), TokenizerError> {
        if let Some(dropout) = self.dropout {
            return Err(unsupported("model.dropout", dropout.to_string()));
        }
        let affixes = [
            ("model.continuing_subword_prefix", &self.continuing_subword_prefix),
            ("model.end_of_word_suffix", &self.end_of_word_suffix),
        ];
        if self.kind.as_deref() != Some("BPE") {
            return Ok(());
        }
        let set = |affix: &'_ Option<String>| affix.clone().filter(|text| !text.is_empty());
        match affixes.into_iter().find_map(|(what, affix)| Some((what, set(affix)?))) {
            Some((what, text)) => Err(unsupported(what, format!("\"{text}\""))),
            None => Ok(()),
        }
    }
}

/// The tokenizer, without what makes ids depend on anything but a text, and its decoder.
fn read(json: &[u8]) -> Result<(Library, Value), TokenizerError> {
    let build =
        |reason: String| TokenizerError::Build { reason: format!("tokenizer.json: {reason}") };
    let described: Description =
        serde_json::from_slice(json).map_err(|error| build(error.to_string()))?;
    described.model.check()?;
    let mut tokenizer: Library =
        serde_json::from_slice(json).map_err(|error| build(error.to_string()))?;
    tokenizer.with_truncation(None).map_err(|error| build(error.to_string()))?.with_padding(None);
    Ok((tokenizer, described.decoder))
}

/// Tokens that another file of the directory names must be the ones that this one has.
fn check_added(tokenizer: &Library, vocabulary: &HfVocabulary) -> Result<(), TokenizerError> {
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
fn front(tokenizer: &Library) -> Result<Option<u32>, TokenizerError> {
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
fn pieces(tokenizer: &Library, decoder: &Value, vocab: usize) -> Result<Pieces, TokenizerError> {
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
            // A token never gets longer than the file has it.
            let to = text("content").filter(|to| to.len() <= from.len()).ok_or_else(refuse)?;
            rules.push(Rule::Replace(from.into(), to));
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
mod tests;
