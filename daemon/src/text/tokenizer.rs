//! Text to ids and back, for any vocabulary.

use super::bpe::Bpe;
use super::error::TokenizerError;
use super::pipeline::Pipeline;
use super::sentencepiece::SentencePiece;
use super::tokens::Tokens;
use crate::model::load::Vocabulary;

/// A model's tokenizer.
#[derive(Debug)]
pub enum Tokenizer {
    /// A token is a byte.
    Bytes,
    /// Byte-pair encoding of words by merges.
    Bpe(Box<Bpe>),
    /// Byte-pair encoding of whole texts by scores.
    SentencePiece(Box<SentencePiece>),
    /// What a `tokenizer.json` describes.
    Pipeline(Box<Pipeline>),
}

/// Every byte, so that a byte token's text can be borrowed.
const BYTES: [u8; 256] = {
    let mut bytes = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        bytes[byte] = byte as u8;
        byte += 1;
    }
    bytes
};

impl Tokenizer {
    /// The tokenizer of a vocabulary.
    ///
    /// # Errors
    /// When the vocabulary names a kind of tokenizer that is not implemented, or contradicts
    /// itself.
    pub fn new(vocabulary: &Vocabulary) -> Result<Self, TokenizerError> {
        match vocabulary {
            Vocabulary::Bytes => Ok(Self::Bytes),
            Vocabulary::Gguf(gguf) => match &*gguf.model {
                "gpt2" => Ok(Self::Bpe(Box::new(Bpe::new(gguf)?))),
                "llama" => Ok(Self::SentencePiece(Box::new(SentencePiece::new(gguf)?))),
                found => Err(TokenizerError::Model { found: found.into() }),
            },
            Vocabulary::HuggingFace(json) => Ok(Self::Pipeline(Box::new(Pipeline::new(json)?))),
        }
    }

    /// The ids of a text, nothing added. The names of control tokens (`<|im_start|>`) become those
    /// tokens, whoever wrote them.
    ///
    /// # Errors
    /// When the vocabulary cannot spell the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        self.encode_while(text, &|| true)
    }

    /// The same for somebody who may go away: `wanted` is asked now and then.
    ///
    /// # Errors
    /// When the vocabulary cannot spell the text, or it is not wanted any more.
    pub fn encode_while(
        &self,
        text: &str,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Vec<u32>, TokenizerError> {
        match self {
            Self::Bytes => Ok(text.bytes().map(u32::from).collect()),
            Self::Bpe(bpe) => bpe.encode(text, wanted),
            Self::SentencePiece(pieces) => pieces.encode(text, wanted),
            Self::Pipeline(pipeline) => pipeline.encode(text, wanted),
        }
    }

    /// The ids of a prompt: those of the text, after the beginning-of-sequence token if the model
    /// wants one. A text that brings its own, as chat templates do, goes to
    /// [`encode`](Self::encode) instead.
    ///
    /// # Errors
    /// When the vocabulary cannot spell the text.
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        Ok(self.as_prompt(self.encode(text)?))
    }

    /// A text's ids as those of a prompt.
    pub fn as_prompt(&self, ids: Vec<u32>) -> Vec<u32> {
        self.prompt_bos().into_iter().chain(ids).collect()
    }

    /// Whether a prompt begins with two beginning-of-sequence tokens, which no model was made for.
    pub fn doubles_bos(&self, ids: &[u32]) -> bool {
        matches!((self.bos(), ids), (Some(bos), &[first, second, ..])
            if first == bos && second == bos)
    }

    /// The text of ids; bytes that are not UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> String {
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| self.token_bytes(id)).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The bytes that a token stands for, control tokens' names included; none for an id outside
    /// the vocabulary.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        match self.tokens() {
            None => BYTES.get(id as usize..id as usize + 1).unwrap_or_default(),
            Some(tokens) => tokens.pieces.bytes(id),
        }
    }

    /// V, the number of ids.
    pub fn vocab(&self) -> usize {
        self.tokens().map_or(BYTES.len(), |tokens| tokens.pieces.len())
    }

    /// The beginning-of-sequence token, if the vocabulary has one.
    pub fn bos(&self) -> Option<u32> {
        self.tokens()?.bos
    }

    /// The token that [`encode_prompt`](Self::encode_prompt) puts in front.
    fn prompt_bos(&self) -> Option<u32> {
        self.tokens().filter(|tokens| tokens.adds_bos)?.bos
    }

    /// The tokens that end a generation.
    pub fn ends(&self) -> &[u32] {
        self.tokens().map_or(&[], |tokens| &tokens.ends)
    }

    /// All but bytes have a table of them.
    fn tokens(&self) -> Option<&Tokens> {
        match self {
            Self::Bytes => None,
            Self::Bpe(bpe) => Some(&bpe.tokens),
            Self::SentencePiece(pieces) => Some(&pieces.tokens),
            Self::Pipeline(pipeline) => Some(&pipeline.tokens),
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_byte_token_is_a_byte_and_adds_nothing() {
        let tokenizer = Tokenizer::new(&Vocabulary::Bytes).unwrap();
        let ids = tokenizer.encode_prompt("Aé").unwrap();
        assert_eq!(ids, [65, 0xc3, 0xa9]);
        assert_eq!(tokenizer.decode(&ids), "Aé");
        assert_eq!(tokenizer.vocab(), 256);
        assert!(tokenizer.ends().is_empty());
    }

    #[test]
    fn an_id_outside_the_vocabulary_is_no_text() {
        let tokenizer = Tokenizer::Bytes;
        assert_eq!(tokenizer.decode(&[65, 256, u32::MAX, 66]), "AB");
    }
}
