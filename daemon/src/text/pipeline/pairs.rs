//! The byte-pair model of a `tokenizer.json`, with the library's ids.
//!
//! A word's characters are its first symbols. One that is no token is spelled by tokens for its
//! bytes where the model has them, or becomes the unknown token, or is left out.

use tokenizers::{Result, Token};

use super::super::merge::merge;
use super::super::merges::Merges;
use super::super::pieces::Pieces;

mod read;

/// A byte-pair model.
pub(super) struct Pairs {
    pieces: Pieces,
    merges: Merges,
    /// Tokens of single bytes, if characters are to be spelled by them.
    bytes: Option<Box<[Option<u32>; 256]>>,
    unknown: Option<String>,
    /// Whether several unknown characters in a row are one unknown token.
    fuses: bool,
    /// Whether a word that is itself a token is taken whole, before any merge.
    whole_words: bool,
}

impl Pairs {
    /// The token with this text.
    pub(super) fn find(&self, text: &str) -> Option<u32> {
        self.pieces.find(text.as_bytes())
    }

    /// The text of a token.
    pub(super) fn text(&self, id: u32) -> Option<String> {
        let bytes = Some(self.pieces.bytes(id)).filter(|bytes| !bytes.is_empty());
        bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    }

    /// All tokens.
    pub(super) fn tokens(&self) -> impl Iterator<Item = (String, u32)> {
        let ids = 0..self.pieces.len() as u32;
        ids.filter_map(|id| Some((self.text(id)?, id)))
    }

    /// The tokens of a word, whose texts nobody asks for.
    pub(super) fn tokenize(&self, word: &str) -> Result<Vec<Token>> {
        let token = |id, start, end| Token::new(id, String::new(), (start, end));
        if let Some(id) = self.find(word).filter(|_| self.whole_words) {
            return Ok(vec![token(id, 0, word.len())]);
        }
        let symbols = merge(&self.merges, word.as_bytes(), self.symbols(word)?, &|| true)?;
        let symbols = symbols.into_iter().map(|symbol| {
            let (start, length) = (symbol.start as usize, symbol.length as usize);
            token(symbol.id, start, start + length)
        });
        Ok(symbols.collect())
    }

    /// What a word is made of before anything is joined: lengths and tokens.
    fn symbols(&self, word: &str) -> Result<impl Iterator<Item = (usize, u32)> + use<>> {
        let mut symbols = Vec::with_capacity(word.len());
        let mut unknown = None;
        for (start, character) in word.char_indices() {
            let text = &word[start..start + character.len_utf8()];
            if let Some(id) = self.find(text) {
                symbols.extend(unknown.take());
                symbols.push((text.len(), id));
            } else if let Some(bytes) = self.spell(text) {
                // As the library has it: what was unknown before comes behind them.
                symbols.extend(bytes.into_iter().map(|id| (1, id)));
            } else if let Some(id) = self.unknown()? {
                let before = if self.fuses { unknown.take() } else { None };
                symbols.extend(unknown.take());
                unknown = Some((before.map_or(0, |(length, _)| length) + text.len(), id));
            }
        }
        symbols.extend(unknown);
        Ok(symbols.into_iter())
    }

    /// The tokens of a character's bytes, if the model has all of them.
    fn spell(&self, character: &str) -> Option<Vec<u32>> {
        let bytes = self.bytes.as_ref()?;
        character.bytes().map(|byte| bytes[usize::from(byte)]).collect()
    }

    fn unknown(&self) -> Result<Option<u32>> {
        let Some(text) = &self.unknown else { return Ok(None) };
        let id = self.find(text).ok_or_else(|| format!("unk_token \"{text}\" is no token"));
        Ok(Some(id?))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests;
