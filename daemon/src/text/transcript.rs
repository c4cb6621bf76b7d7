//! The text of a generation, as far as it is certain.

use std::sync::Arc;

use super::detokenize::Detokenizer;
use super::stop::{StopStrings, Stopped};
use super::tokenizer::Tokenizer;

/// Turns generated ids into text that will not be taken back: whole characters, and no part of a
/// stop string.
#[derive(Debug)]
pub struct Transcript {
    characters: Detokenizer,
    stops: StopStrings,
    stopped: bool,
}

impl Transcript {
    /// Text by `tokenizer` that ends before the first of `stops`.
    pub fn new(tokenizer: Arc<Tokenizer>, stops: Vec<String>) -> Self {
        let characters = Detokenizer::new(tokenizer);
        Self { characters, stops: StopStrings::new(stops), stopped: false }
    }

    /// Takes a token and gives the text that it makes certain.
    pub fn push(&mut self, id: u32) -> String {
        match self.characters.push(id) {
            Some(text) => self.cut(&text),
            None => String::new(),
        }
    }

    /// Ends the text and gives what was held back.
    pub fn finish(&mut self) -> String {
        let rest = self.characters.finish();
        let mut text = self.cut(&rest);
        if !self.stopped {
            text += &self.stops.finish();
        }
        text
    }

    /// Whether a stop string is complete: no more text will come.
    pub fn has_stopped(&self) -> bool {
        self.stopped
    }

    fn cut(&mut self, text: &str) -> String {
        if self.stopped {
            return String::new();
        }
        match self.stops.push(text) {
            Stopped::Text(text) => text,
            Stopped::Stop(text) => {
                self.stopped = true;
                text
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transcript(stops: &[&str], bytes: &[u8]) -> (Vec<String>, String) {
        let stops = stops.iter().map(|stop| (*stop).to_owned()).collect();
        let mut transcript = Transcript::new(Arc::new(Tokenizer::Bytes), stops);
        let pieces = bytes.iter().map(|byte| transcript.push((*byte).into())).collect();
        (pieces, transcript.finish())
    }

    #[test]
    fn half_a_character_waits_for_the_other_half() {
        assert_eq!(
            transcript(&[], "é".as_bytes()),
            (vec![String::new(), "é".into()], String::new())
        );
    }

    #[test]
    fn half_a_character_at_the_end_becomes_a_replacement() {
        assert_eq!(transcript(&[], &[0xc3]), (vec![String::new()], "\u{fffd}".into()));
    }

    #[test]
    fn a_stop_string_and_what_follows_it_are_never_given() {
        let (pieces, rest) = transcript(&["END"], b"aENDbc");
        assert_eq!((pieces.concat(), &*rest), ("a".into(), ""));
    }

    #[test]
    fn the_beginning_of_a_stop_string_that_never_came_is_text() {
        let (pieces, rest) = transcript(&["END"], b"aEN");
        assert_eq!((pieces.concat(), &*rest), ("a".into(), "EN"));
    }
}
