//! Ids to text, one at a time, never half a character.

use std::sync::Arc;

use super::tokenizer::Tokenizer;

/// Turns a stream of ids into text.
///
/// A token may end inside a UTF-8 character; its bytes wait for the next token. What is given out
/// is never taken back, and all pieces together are [`Tokenizer::decode`] of all ids.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    /// At most three bytes: the beginning of a character.
    waiting: Vec<u8>,
}

impl Detokenizer {
    /// A stream that has seen nothing.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Self {
        Self { tokenizer, waiting: Vec::new() }
    }

    /// Takes an id and gives the characters that it completes, if any.
    pub fn push(&mut self, id: u32) -> Option<String> {
        self.waiting.extend_from_slice(self.tokenizer.token_bytes(id));
        let text = self.complete();
        (!text.is_empty()).then_some(text)
    }

    /// Ends the stream: bytes that still wait become U+FFFD.
    pub fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.waiting)).into_owned()
    }

    /// Takes everything out of `waiting` that later bytes cannot change.
    fn complete(&mut self) -> String {
        let mut text = String::new();
        let mut done = 0;
        for chunk in self.waiting.utf8_chunks() {
            text.push_str(chunk.valid());
            done += chunk.valid().len();
            let invalid = chunk.invalid();
            if invalid.is_empty() || may_continue(invalid, done, self.waiting.len()) {
                break;
            }
            text.push(char::REPLACEMENT_CHARACTER);
            done += invalid.len();
        }
        self.waiting.drain(..done);
        text
    }
}

/// Whether an invalid run at `at` is the beginning of a character cut off by the end of the bytes.
fn may_continue(invalid: &[u8], at: usize, end: usize) -> bool {
    let cut = std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none());
    cut && at + invalid.len() == end
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pieces(ids: &[u32]) -> (Vec<String>, String) {
        let mut stream = Detokenizer::new(Arc::new(Tokenizer::Bytes));
        let mut pieces: Vec<String> = ids.iter().filter_map(|&id| stream.push(id)).collect();
        pieces.push(stream.finish());
        (pieces, Tokenizer::Bytes.decode(ids))
    }

    #[test]
    fn a_character_appears_when_its_last_byte_has_come() {
        let mut stream = Detokenizer::new(Arc::new(Tokenizer::Bytes));
        let given: Vec<_> = "é!".bytes().map(|byte| stream.push(byte.into())).collect();
        assert_eq!(given, [None, Some("é".into()), Some("!".into())]);
        assert_eq!(stream.finish(), "");
    }

    #[test]
    fn a_byte_that_no_character_begins_with_does_not_wait() {
        let mut stream = Detokenizer::new(Arc::new(Tokenizer::Bytes));
        assert_eq!(stream.push(0xff), Some("\u{fffd}".into()));
        assert_eq!(stream.push(0xe2), None);
        assert_eq!(stream.push(b'a'.into()), Some("\u{fffd}a".into()));
        assert_eq!(stream.push(0xf0), None);
        assert_eq!(stream.finish(), "\u{fffd}");
    }

    proptest! {
        #[test]
        fn pieces_together_are_the_decoded_whole(
            ids in proptest::collection::vec(0u32..260, 0..64),
        ) {
            let (pieces, whole) = pieces(&ids);
            prop_assert_eq!(pieces.concat(), whole);
        }

        #[test]
        fn text_streams_without_replacement(text in "\\PC{0,24}") {
            let ids: Vec<u32> = text.bytes().map(u32::from).collect();
            let (pieces, _) = pieces(&ids);
            prop_assert_eq!(pieces.concat(), text);
        }
    }
}
