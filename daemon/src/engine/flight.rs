//! Single flight: who computes what, so that nobody computes it twice.
//!
//! A sequence that is about to prefill claims the names of the blocks it will seal, and of the
//! prompt's record. Others with the same prompt wait and attach each block as it appears.
//! A claim ends with its sequence, however that ends; the next one in line takes over at the last
//! sealed block.

use std::collections::HashMap;

use super::sequence::SeqId;
use crate::kv::key::{BlockKey, RecordKey};

/// The claims of one engine.
#[derive(Debug, Default)]
pub(super) struct Claims {
    blocks: HashMap<BlockKey, SeqId>,
    records: HashMap<RecordKey, SeqId>,
}

impl Claims {
    /// Claims what nobody else has claimed.
    pub(super) fn claim(&mut self, by: SeqId, blocks: &[BlockKey], record: Option<RecordKey>) {
        for key in blocks {
            self.blocks.entry(*key).or_insert(by);
        }
        if let Some(record) = record {
            self.records.entry(record).or_insert(by);
        }
    }

    /// Whether another sequence is computing the block.
    pub(super) fn block(&self, key: &BlockKey) -> Option<SeqId> {
        self.blocks.get(key).copied()
    }

    /// Whether another sequence is computing the record.
    pub(super) fn record(&self, key: &RecordKey) -> Option<SeqId> {
        self.records.get(key).copied()
    }

    /// A block exists now.
    pub(super) fn settle(&mut self, key: &BlockKey) {
        self.blocks.remove(key);
    }

    /// Ends every claim of a sequence.
    pub(super) fn release(&mut self, by: SeqId) {
        self.blocks.retain(|_, owner| *owner != by);
        self.records.retain(|_, owner| *owner != by);
    }
}
