//! SentencePiece's byte-pair encoding (`tokenizer.ggml.model` = `llama`), as llama.cpp has it.
//!
//! A text is not cut into words: of all neighbours that together are a token, those whose token has
//! the best score are joined, the leftmost first, until there are none.
//! A character that ends up in no token is spelled by tokens for its bytes.
//!
//! Tokens write a space as U+2581, and so may a text; both are read as spaces here.

use std::borrow::Cow;
use std::fmt;

use super::error::TokenizerError;
use super::literals::{BYTE, Literals, is_literal};
use super::merge::{Joins, NONE, merge};
use super::pieces::Pieces;
use super::tokens::Tokens;
use crate::model::load::GgufVocabulary;

/// How tokens write a space.
const SPACE: char = '\u{2581}';

/// A SentencePiece tokenizer.
pub struct SentencePiece {
    literals: Literals,
    pub(super) tokens: Tokens,
    /// How good each token is, the best first; equals share a rank.
    ranks: Box<[u32]>,
    /// Tokens for bytes.
    bytes: Box<[Option<u32>; 256]>,
    unknown: Option<u32>,
    /// Whether ordinary text is read as if a space were before it.
    prefix: bool,
}

impl fmt::Debug for SentencePiece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SentencePiece")
            .field("tokens", &self.tokens)
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

impl SentencePiece {
    pub(super) fn new(vocabulary: &GgufVocabulary) -> Result<Self, TokenizerError> {
        let (tokens, found) = (vocabulary.tokens.len(), vocabulary.scores.len());
        if found != tokens {
            return Err(TokenizerError::Scores { found, tokens });
        }
        Ok(Self {
            literals: Literals::new(vocabulary)?,
            ranks: ranks(&vocabulary.scores),
            bytes: bytes(vocabulary),
            unknown: vocabulary.unknown,
            prefix: vocabulary.add_space_prefix.unwrap_or(true),
            tokens: Tokens {
                pieces: pieces(vocabulary),
                bos: vocabulary.bos,
                adds_bos: vocabulary.add_bos.unwrap_or(true),
                ends: vocabulary.eos_ids.clone(),
            },
        })
    }

    /// Asks now and then whether anybody still wants the ids.
    pub(super) fn encode(
        &self,
        text: &str,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Vec<u32>, TokenizerError> {
        self.literals.encode(text, |at, text, ids| self.encode_text(at, text, wanted, ids))
    }

    fn encode_text(
        &self,
        at: usize,
        text: &str,
        wanted: &dyn Fn() -> bool,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        let plain = self.plain(text);
        let bytes = plain.as_bytes();
        let character = |(at, character): (usize, char)| {
            let length = character.len_utf8();
            (length, self.tokens.pieces.find(&bytes[at..at + length]).unwrap_or(NONE))
        };
        for symbol in merge(self, bytes, plain.char_indices().map(character), wanted)? {
            if symbol.id == NONE {
                let place = || at + self.place(text, &plain, symbol.start as usize);
                self.spell(symbol.text(bytes), place, ids)?;
            } else {
                ids.push(symbol.id);
            }
        }
        Ok(())
    }

    /// A text as tokens have it.
    fn plain<'t>(&self, text: &'t str) -> Cow<'t, str> {
        match (self.prefix, text.contains(SPACE)) {
            (false, false) => text.into(),
            (true, false) => format!(" {text}").into(),
            (prefix, true) => {
                let text = text.replace(SPACE, " ");
                if prefix { format!(" {text}").into() } else { text.into() }
            }
        }
    }

    /// The place in a text of what is at `start` in its plain form.
    fn place(&self, text: &str, plain: &str, start: usize) -> usize {
        let characters = plain[..start].chars().count().saturating_sub(usize::from(self.prefix));
        text.char_indices().nth(characters).map_or(text.len(), |(at, _)| at)
    }

    /// A character that no token has.
    fn spell(
        &self,
        character: &[u8],
        place: impl FnOnce() -> usize,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        let tokens = character.iter().map(|&byte| self.bytes[usize::from(byte)]);
        match (tokens.collect::<Option<Vec<u32>>>(), self.unknown) {
            (Some(tokens), _) => ids.extend(tokens),
            (None, Some(unknown)) => ids.push(unknown),
            (None, None) => {
                return Err(TokenizerError::NoToken { byte: character[0], at: place() });
            }
        }
        Ok(())
    }
}

/// What each token stands for. Those that have a name or are a byte are not found in ordinary text.
fn pieces(vocabulary: &GgufVocabulary) -> Pieces {
    let kind = |id| vocabulary.token_types.get(id).copied().unwrap_or_default();
    Pieces::new(vocabulary.tokens.iter().enumerate().map(|(id, text)| {
        match (kind(id), byte(text)) {
            (BYTE, Some(byte)) => (vec![byte], false),
            (kind, _) if is_literal(kind) => (text.clone().into_bytes(), false),
            _ => (text.replace(SPACE, " ").into_bytes(), !text.is_empty()),
        }
    }))
}

/// The byte that a token's name (`<0x0A>`) spells.
fn byte(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    u8::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 2)
}

fn bytes(vocabulary: &GgufVocabulary) -> Box<[Option<u32>; 256]> {
    let mut bytes = Box::new([None; 256]);
    for (id, text) in (0..).zip(&vocabulary.tokens) {
        if let Some(byte) = byte(text) {
            bytes[usize::from(byte)].get_or_insert(id);
        }
    }
    bytes
}

/// Places in the order of the scores, from the highest.
fn ranks(scores: &[f32]) -> Box<[u32]> {
    // Adding 0 makes one zero of two.
    let score = |id: u32| scores[id as usize] + 0.0;
    let mut ids: Vec<u32> = (0..scores.len() as u32).collect();
    ids.sort_by(|&a, &b| score(b).total_cmp(&score(a)));
    let mut ranks = vec![0; scores.len()];
    let mut rank = 0;
    for pair in ids.windows(2) {
        rank += u32::from(score(pair[0]) != score(pair[1]));
        ranks[pair[1] as usize] = rank;
    }
    ranks.into()
}

impl Joins for SentencePiece {
    fn join(&self, _: u32, _: u32, text: &[u8]) -> Option<(u32, u32)> {
        let id = self.tokens.pieces.find(text)?;
        Some((self.ranks[id as usize], id))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests;
