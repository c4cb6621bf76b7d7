//! Records: the end of a prompt or of a generation that fills no block.
//!
//! A chain's last tokens, fewer than a block, are kept in plain form with their ids. After a
//! prefill the final hidden state of the last position is kept too, so that the same prompt again
//! needs no layer at all: output head, sample, first token.

use super::key::{BlockKey, Digest, Fingerprint, RecordKey};

/// The end of one chain.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// The family of its chain.
    pub family: Fingerprint,
    /// The name of the whole prompt.
    pub key: RecordKey,
    /// The last sealed block; the chain's root when there is none.
    pub last: BlockKey,
    /// Tokens of the whole chain, blocks and tail.
    pub length: u32,
    /// The ids after the last block, at most 31.
    pub tail: Vec<u32>,
    /// The tail's rows, as [`crate::kv::seq::KvSeq::tail_rows`] packs them.
    pub rows: Vec<u8>,
    /// The final hidden state `[C]` of the last position, after the final norm; present when the
    /// record was made at the end of a prefill.
    pub hidden: Option<Vec<f32>>,
    /// Stands for the prompt's text, to tell a changed tokenizer from a new prompt.
    pub text: Option<Digest>,
}

impl Record {
    /// Bytes that the record holds in memory.
    pub fn bytes(&self) -> usize {
        let hidden = self.hidden.as_ref().map_or(0, |hidden| hidden.len() * 4);
        self.rows.len() + self.tail.len() * 4 + hidden + size_of::<Self>()
    }
}
