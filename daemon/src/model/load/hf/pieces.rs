//! `tokenizer.model`: SentencePiece's own file, a message of protocol buffers, of which the few
//! fields that count are read.
//!
//! ```text
//! ModelProto      1 pieces*, 2 trainer, 3 normaliser
//! SentencePiece   1 text, 2 score (f32), 3 kind (1 normal, 2 unknown, 3 control, 4 user-defined,
//!                 5 unused, 6 byte)
//! TrainerSpec     3 kind of model (1 unigram, 2 byte-pair), 24 space behind words, 41 id of the
//!                 beginning
//! NormalizerSpec  2 table of characters, 3 space in front, 4 fewer spaces, 5 spaces become U+2581
//! ```

use super::super::cursor::Cursor;
use crate::model::load::LoadError;

/// Kinds of pieces.
pub(super) const UNKNOWN: u64 = 2;
pub(super) const CONTROL: u64 = 3;
pub(super) const USER_DEFINED: u64 = 4;
pub(super) const BYTE: u64 = 6;

/// What a file says.
#[derive(Debug, PartialEq)]
pub(super) struct Pieces {
    pub(super) pieces: Vec<Piece>,
    /// Whether a text is read as if a space were before it.
    pub(super) prefix: bool,
    /// The id of the piece that begins a text.
    pub(super) bos: u64,
}

/// A token.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Piece {
    pub(super) text: String,
    pub(super) score: f32,
    pub(super) kind: u64,
}

/// The value of a field.
enum Value<'a> {
    Number(u64),
    Float(f32),
    Bytes(&'a [u8]),
    /// Eight bytes, which no field here has.
    Long,
}

impl Pieces {
    /// Reads a file, and refuses by name what is not implemented.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, LoadError> {
        let mut read = Self { pieces: Vec::new(), prefix: true, bos: 1 };
        // What a file that does not say has.
        let (mut kind, mut fewer_spaces) = (1, 1);
        for field in Fields::of(bytes) {
            match field? {
                (1, Value::Bytes(piece)) => read.pieces.push(Piece::read(piece)?),
                (2, Value::Bytes(trainer)) => read.train(trainer, &mut kind)?,
                (3, Value::Bytes(normaliser)) => read.normalise(normaliser, &mut fewer_spaces)?,
                _ => {}
            }
        }
        expect("trainer_spec.model_type", kind, 2, "2, byte-pair encoding, is")?;
        expect("normalizer_spec.remove_extra_whitespaces", fewer_spaces, 0, "0 is")?;
        Ok(read)
    }

    fn train(&mut self, trainer: &[u8], kind: &mut u64) -> Result<(), LoadError> {
        for field in Fields::of(trainer) {
            match field? {
                (3, Value::Number(found)) => *kind = found,
                (24, Value::Number(found)) => {
                    expect("trainer_spec.treat_whitespace_as_suffix", found, 0, "0 is")?;
                }
                (41, Value::Number(found)) => self.bos = found,
                _ => {}
            }
        }
        Ok(())
    }

    fn normalise(&mut self, normaliser: &[u8], fewer_spaces: &mut u64) -> Result<(), LoadError> {
        const TABLE: &str = "normalizer_spec.precompiled_charsmap";
        for field in Fields::of(normaliser) {
            match field? {
                (2, Value::Bytes(table)) => expect(TABLE, table.len() as u64, 0, "none is")?,
                (3, Value::Number(found)) => self.prefix = found != 0,
                (4, Value::Number(found)) => *fewer_spaces = found,
                (5, Value::Number(found)) => {
                    expect("normalizer_spec.escape_whitespaces", found, 1, "1 is")?;
                }
                _ => {}
            }
        }
        Ok(())
    }
}

impl Piece {
    fn read(bytes: &[u8]) -> Result<Self, LoadError> {
        let mut piece = Self { text: String::new(), score: 0.0, kind: 1 };
        for field in Fields::of(bytes) {
            match field? {
                (1, Value::Bytes(text)) => {
                    let text = String::from_utf8(text.to_vec());
                    piece.text = text.map_err(|_| LoadError::NotUtf8 { what: "a piece".into() })?;
                }
                (2, Value::Float(score)) => piece.score = score,
                (3, Value::Number(kind)) => piece.kind = kind,
                _ => {}
            }
        }
        Ok(piece)
    }
}

fn expect(what: &str, found: u64, implemented: u64, words: &str) -> Result<(), LoadError> {
    if found == implemented {
        return Ok(());
    }
    Err(LoadError::Unsupported { what: what.into(), detail: format!("{found}; {words}") })
}

/// The fields of a message, in their order.
struct Fields<'a>(Cursor<'a>);

impl<'a> Fields<'a> {
    fn of(message: &'a [u8]) -> Self {
        Self(Cursor::new(message))
    }

    fn field(&mut self) -> Result<(u64, Value<'a>), LoadError> {
        let tag = self.number()?;
        let value = match tag & 7 {
            0 => Value::Number(self.number()?),
            1 => self.0.take(8, "a field").map(|_| Value::Long)?,
            2 => {
                let length = self.number()?;
                Value::Bytes(self.0.take(length, "a field")?)
            }
            5 => Value::Float(f32::from_bits(self.0.u32("a field")?)),
            kind => {
                let detail = format!("{kind}; 0, 1, 2 and 5 are");
                let what = "a type of fields of protocol buffers".into();
                return Err(LoadError::Unsupported { what, detail });
            }
        };
        Ok((tag >> 3, value))
    }

    /// Seven bits in each byte, the low ones first, until one has no eighth.
    fn number(&mut self) -> Result<u64, LoadError> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let [byte] = self.0.array("a number")?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        Ok(number)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Value<'a>), LoadError>;

    fn next(&mut self) -> Option<Self::Item> {
        let field = (self.0.left() > 0).then(|| self.field());
        if let Some(Err(_)) = field {
            // What follows cannot be told.
            self.0 = Cursor::new(&[]);
        }
        field
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// One piece, byte-pair encoding, spaces as they are.
    const FILE: &[u8] = b"\x0a\x09\x0a\x02ab\x15\0\0\x80\xbf\x12\x02\x18\x02\x1a\x04\x18\0\x20\0";

    #[test]
    fn a_file_gives_its_pieces_and_says_how_spaces_are_read() {
        let piece = Piece { text: "ab".into(), score: -1.0, kind: 1 };
        let expected = Pieces { pieces: vec![piece], prefix: false, bos: 1 };
        assert_eq!(Pieces::read(FILE).unwrap(), expected);
    }

    #[test]
    fn what_is_not_implemented_is_refused_by_name() {
        let cases = [
            (&b"\x1a\x02\x20\0"[..], "model_type is not supported: 1"),
            (b"\x12\x02\x18\x02", "remove_extra_whitespaces"),
            (b"\x12\x05\x18\x02\xc0\x01\x01", "treat_whitespace_as_suffix"),
            (b"\x1a\x05\x12\x03abc", "precompiled_charsmap"),
            (b"\x1a\x02\x28\0", "escape_whitespaces"),
            (b"\x0b", "protocol buffers"),
            (b"\x0a\x05ab", "the file ends inside a field"),
            (b"\x0a\x03\x0a\x01\xff", "a piece is not UTF-8"),
        ];
        for (bytes, words) in cases {
            let refused = Pieces::read(bytes).unwrap_err().to_string();
            assert!(refused.contains(words), "{refused}");
        }
    }

    proptest! {
        #[test]
        fn changed_bytes_never_panic(changes in proptest::collection::vec((0..FILE.len(), any::<u8>()), 1..4)) {
            let mut bytes = FILE.to_vec();
            changes.into_iter().for_each(|(at, byte)| bytes[at] = byte);
            let _ = Pieces::read(&bytes);
        }
    }
}
