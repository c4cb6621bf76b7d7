//! Tokens that are no ordinary text: control tokens, and what the makers of a model added.

use std::iter;

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind, Span};

use super::error::TokenizerError;
use crate::model::load::GgufVocabulary;

/// ggml's token types that are not ordinary text.
pub(super) const UNKNOWN: i32 = 2;
pub(super) const CONTROL: i32 = 3;
pub(super) const USER_DEFINED: i32 = 4;
/// A byte for which there is no other token.
pub(super) const BYTE: i32 = 6;

/// Tokens that are found in a text by their name, the longest at the leftmost place.
pub(super) struct Literals {
    search: AhoCorasick,
    ids: Vec<u32>,
    /// Whether each swallows the white space behind it.
    swallow: Vec<bool>,
}

/// A part of a text.
#[derive(Debug, PartialEq, Eq)]
enum Piece<'t> {
    /// Ordinary text, not empty, and where it begins.
    Text { at: usize, text: &'t str },
    /// The name of a token.
    Token(u32),
}

impl Literals {
    pub(super) fn new(vocabulary: &GgufVocabulary) -> Result<Self, TokenizerError> {
        let tokens = vocabulary.tokens.iter().zip(&vocabulary.token_types).enumerate();
        let (ids, names): (Vec<u32>, Vec<&str>) = tokens
            .filter(|(_, (text, kind))| is_literal(**kind) && !text.is_empty())
            .map(|(id, (text, _))| (id as u32, text.as_str()))
            .unzip();
        // The fastest kind, which is taken for few names, has a table for each of their bytes.
        let search = AhoCorasick::builder()
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .match_kind(MatchKind::LeftmostLongest)
            .build(names);
        let search = search.map_err(|error| TokenizerError::Build { reason: error.to_string() })?;
        let swallow = ids.iter().map(|id| vocabulary.swallow.binary_search(id).is_ok()).collect();
        Ok(Self { search, ids, swallow })
    }

    /// The ids of a text, of whose ordinary parts, and where they begin, `ordinary` appends those.
    pub(super) fn encode(
        &self,
        text: &str,
        mut ordinary: impl FnMut(usize, &str, &mut Vec<u32>) -> Result<(), TokenizerError>,
    ) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = Vec::new();
        for piece in self.cut(text) {
            match piece {
                Piece::Token(id) => ids.push(id),
                Piece::Text { at, text } => ordinary(at, text, &mut ids)?,
            }
        }
        Ok(ids)
    }

    /// The parts of a text, left to right. No two parts of ordinary text follow each other.
    fn cut<'t>(&'t self, text: &'t str) -> impl Iterator<Item = Piece<'t>> {
        let mut at = 0;
        let tokens = self.search.find_iter(text);
        let tokens = tokens.map(|found| (found.span(), Some(found.pattern().as_usize())));
        let end = (Span { start: text.len(), end: text.len() }, None);
        tokens.chain(iter::once(end)).flat_map(move |(span, token)| {
            // White space that a token has swallowed is no token any more.
            let token = token.filter(|_| span.start >= at);
            let before = text.get(at..span.start).filter(|before| !before.is_empty());
            let before = before.map(|text| Piece::Text { at, text });
            at = at.max(span.start);
            let token = token.map(|token| {
                at = span.end + self.swallowed(token, &text[span.end..]);
                Piece::Token(self.ids[token])
            });
            before.into_iter().chain(token)
        })
    }

    /// Bytes of white space that belong to a token because they follow it.
    fn swallowed(&self, token: usize, rest: &str) -> usize {
        if self.swallow[token] { rest.len() - rest.trim_start().len() } else { 0 }
    }
}

/// Whether a token of this type is found by its name.
pub(super) fn is_literal(kind: i32) -> bool {
    matches!(kind, UNKNOWN | CONTROL | USER_DEFINED)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn literals(names: &[&str], swallow: &[u32]) -> Literals {
        let tokens: Vec<String> = names.iter().map(|&name| name.into()).collect();
        let token_types = vec![CONTROL; names.len()];
        let swallow = swallow.into();
        let vocabulary = GgufVocabulary { tokens, token_types, swallow, ..Default::default() };
        Literals::new(&vocabulary).unwrap()
    }

    fn text(at: usize, text: &str) -> Piece<'_> {
        Piece::Text { at, text }
    }

    #[test]
    fn a_text_is_cut_at_the_names_in_it() {
        let literals = literals(&["<a>", "<a>>"], &[]);
        let pieces: Vec<_> = literals.cut("x<a>> y<a>").collect();
        assert_eq!(pieces, [text(0, "x"), Piece::Token(1), text(5, " y"), Piece::Token(0)]);
        assert_eq!(literals.cut("").count(), 0);
    }

    #[test]
    fn white_space_behind_a_token_may_be_part_of_it() {
        let literals = literals(&["<a>", "<b>", "\n"], &[0]);
        let pieces: Vec<_> = literals.cut("<a> \n\t<b> \nc<a> ").collect();
        let [a, b, line] = [0, 1, 2].map(Piece::Token);
        assert_eq!(pieces, [a, b, text(9, " "), line, text(11, "c"), Piece::Token(0)]);
    }
}
