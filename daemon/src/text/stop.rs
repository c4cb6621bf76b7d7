//! Stop strings: text that ends a generation, and is not part of it.

use std::sync::Arc;

use super::tokenizer::Tokenizer;
use super::transcript::Transcript;
use crate::engine::constraint::{Constraint, Mask, Verdict};

/// Watches a stream of text for the first of several strings.
///
/// The first is the one that is complete first; of two that end together, the longer. So the cut
/// does not depend on how the stream was cut into pushes. Text that may be the beginning of a stop
/// string is held back until it is not.
#[derive(Clone, Debug)]
pub struct StopStrings {
    strings: Vec<String>,
    held: String,
}

/// What a push gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// Text that no stop string can cut any more; may be empty.
    Text(String),
    /// A stop string is complete; what remains before it.
    Stop(String),
}

impl StopStrings {
    /// Watches for `strings`; empty ones are ignored.
    pub fn new(strings: Vec<String>) -> Self {
        let strings = strings.into_iter().filter(|string| !string.is_empty()).collect();
        Self { strings, held: String::new() }
    }

    /// Takes text. After a stop there is nothing more to push.
    pub fn push(&mut self, text: &str) -> Stopped {
        self.held.push_str(text);
        if let Some(start) = self.first() {
            self.held.truncate(start);
            return Stopped::Stop(std::mem::take(&mut self.held));
        }
        let kept = self.held.split_off(self.held.len() - self.beginning());
        Stopped::Text(std::mem::replace(&mut self.held, kept))
    }

    /// Ends the stream: what was held back is text after all.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Where the first stop string starts.
    fn first(&self) -> Option<usize> {
        let found = self.strings.iter().filter_map(|string| {
            let start = self.held.find(string.as_str())?;
            Some((start + string.len(), start))
        });
        found.min().map(|(_, start)| start)
    }

    /// Bytes at the end of `held` that begin a stop string, at most.
    fn beginning(&self) -> usize {
        let beginnings = self.strings.iter().map(|string| {
            let cuts = string.char_indices().map(|(at, _)| at).rev();
            cuts.into_iter().find(|&at| self.held.ends_with(&string[..at])).unwrap_or(0)
        });
        beginnings.max().unwrap_or(0)
    }
}

/// Stops a sequence at its first stop string.
///
/// The engine keeps the tokens; whoever shows their text has a [`Transcript`] of its own.
#[derive(Debug)]
pub struct StopConstraint {
    tokenizer: Arc<Tokenizer>,
    strings: Vec<String>,
    transcript: Transcript,
}

impl StopConstraint {
    /// Watches the text of a sequence's tokens for `strings`.
    pub fn new(tokenizer: Arc<Tokenizer>, strings: Vec<String>) -> Self {
        let transcript = Transcript::new(Arc::clone(&tokenizer), strings.clone());
        Self { tokenizer, strings, transcript }
    }
}

impl Constraint for StopConstraint {
    fn mask(&self, _: &mut Mask) {}

    fn afresh(&self) -> Box<dyn Constraint> {
        Box::new(Self::new(Arc::clone(&self.tokenizer), self.strings.clone()))
    }

    fn accept(&mut self, token: u32) -> Verdict {
        // Whoever shows the text has it from its own transcript.
        let _ = self.transcript.push(token);
        if self.transcript.has_stopped() { Verdict::Stop } else { Verdict::Continue }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stops(strings: &[&str]) -> StopStrings {
        StopStrings::new(strings.iter().map(|&string| string.into()).collect())
    }

    /// The text given out, and whether a stop string ended it.
    fn stream(strings: &[&str], pushes: &[&str]) -> (String, bool) {
        let mut stops = stops(strings);
        let mut given = String::new();
        for push in pushes {
            match stops.push(push) {
                Stopped::Text(text) => given += &text,
                Stopped::Stop(text) => return (given + &text, true),
            }
        }
        (given + &stops.finish(), false)
    }

    #[test]
    fn text_that_may_begin_a_stop_string_is_held_back() {
        let mut stops = stops(&["\nUser:"]);
        assert_eq!(stops.push("hi\nUs"), Stopped::Text("hi".into()));
        assert_eq!(stops.push("ed"), Stopped::Text("\nUsed".into()));
        assert_eq!(stops.push("\n"), Stopped::Text(String::new()));
        assert_eq!(stops.push("User: x"), Stopped::Stop(String::new()));
    }

    #[test]
    fn the_string_that_is_complete_first_wins_and_then_the_longer() {
        assert_eq!(stream(&["abcd", "bc"], &["xabcd"]), ("xa".into(), true));
        assert_eq!(stream(&["bc", "abc"], &["xabc"]), ("x".into(), true));
    }

    #[test]
    fn without_stop_strings_nothing_is_held_back() {
        assert_eq!(stops(&[""]).push("abc"), Stopped::Text("abc".into()));
    }

    #[test]
    fn a_stop_string_inside_a_multibyte_text_cuts_at_characters() {
        assert_eq!(stream(&["é!"], &["aé", "é!b"]), ("aé".into(), true));
    }

    #[test]
    fn a_constraint_stops_at_the_token_that_completes_the_string() {
        let strings = vec!["né".to_owned()];
        let mut constraint = StopConstraint::new(Arc::new(Tokenizer::Bytes), strings);
        let verdicts: Vec<_> = "ané".bytes().map(|byte| constraint.accept(byte.into())).collect();
        let last = verdicts.iter().position(|&verdict| verdict == Verdict::Stop);
        assert_eq!(last, Some(3));
    }

    proptest! {
        #[test]
        fn the_cut_does_not_depend_on_the_pushes(
            text in "[abé]{0,24}",
            strings in proptest::collection::vec("[abé]{1,4}", 0..4),
        ) {
            let strings: Vec<&str> = strings.iter().map(String::as_str).collect();
            let characters: Vec<String> = text.chars().map(String::from).collect();
            let characters: Vec<&str> = characters.iter().map(String::as_str).collect();
            let whole = stream(&strings, &[&text]);
            prop_assert_eq!(&stream(&strings, &characters), &whole);
            let (given, stopped) = whole;
            let ends = strings.iter().any(|stop| text.starts_with(&(given.clone() + stop)));
            prop_assert_eq!(stopped, ends);
            prop_assert!(stopped || given == text);
        }
    }
}
