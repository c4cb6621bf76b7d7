//! Questions that others ask an engine: what would hit, what it holds, and the order to forget.

use std::sync::Arc;

use super::Engine;
use super::handle::{Explanation, Held, Question, Removal, Removed, Report};
use super::history::Asked;
use super::job::Reason;
use super::sequence::Phase;
use crate::kv::key::{BlockKey, End, RecordKey, chain};
use crate::kv::layout::BLOCK;
use crate::kv::record::Record;
use crate::store::Restore;

impl Engine {
    /// Forgets in memory; the store was told by whoever asks.
    pub(super) fn remove(&mut self, what: &Removal) -> Removed {
        self.removals += 1;
        let (blocks, records) = match what {
            Removal::Prompt(end) => self.index.remove_chain(end),
            Removal::All => self.index.clear(),
        };
        self.history.clear();
        Removed { blocks: blocks as u64, records: records as u64 }
    }

    /// What would hit for a prompt, without touching anything.
    pub(super) fn explain(&mut self, question: &Question) -> Explanation {
        let fields = self.loaded.info.fields(question.codec, &question.namespace);
        let fingerprint = fields.fingerprint();
        let keys = chain(&fingerprint, &question.tokens);
        let root = BlockKey::root(&fingerprint);
        let tail = &question.tokens[keys.len() * BLOCK..];
        let key = RecordKey::new(&fingerprint, keys.last().unwrap_or(&root), tail);
        let found = self.index.longest(&keys, &question.tokens);
        let parent = found.last().map_or(root, |block| block.key);
        let rest = &question.tokens[found.len() * BLOCK..];
        let lent = self.index.lend(&parent, rest, rest.len().saturating_sub(1));
        let record = self.index.record(&key, tail).is_some_and(|record| record.hidden.is_some());
        let whole = record && found.len() == keys.len();
        let memory = match whole {
            true => question.tokens.len(),
            false => found.len() * BLOCK + lent.map_or(0, |lent| lent.rows()),
        };
        let asked = Asked {
            fields: &fields,
            tokens: &question.tokens,
            text: question.text,
            cached: memory,
        };
        let reason = self.history.explain(&asked).unwrap_or(if memory == 0 {
            Reason::NoEntry
        } else {
            Reason::Unknown
        });
        let divergence = match &reason {
            Reason::Diverged(divergence) => Some(divergence.clone()),
            _ => None,
        };
        let disk = !whole && self.disk_may_have(question, fields, &keys, found.len(), key);
        Explanation {
            memory: u32::try_from(memory).unwrap_or(u32::MAX),
            disk,
            record: whole,
            reason: (!whole).then_some(reason),
            divergence,
            key: Some(key),
        }
    }

    fn disk_may_have(
        &self,
        question: &Question,
        fields: crate::kv::key::Fields,
        keys: &[BlockKey],
        from: usize,
        record: RecordKey,
    ) -> bool {
        let Some(store) = &self.store else { return false };
        let fingerprint = fields.fingerprint();
        let layout = Arc::clone(self.loaded.info.layout(question.codec));
        let family = Arc::new(crate::store::Family { fingerprint, fields, layout });
        let tokens = Arc::clone(&question.tokens);
        let restore = Restore { family, tokens, keys: Arc::from(keys), from };
        store.may_have(&restore, Some(record))
    }

    /// The chain ends in memory whose blocks are all here.
    pub(super) fn list(&self) -> Vec<Held> {
        self.index.records().filter_map(|record| self.held(record)).collect()
    }

    fn held(&self, record: &Record) -> Option<Held> {
        let named = |fingerprint| RecordKey::new(fingerprint, &record.last, &record.tail);
        let mut families = self.families.values();
        let family = families.find(|family| named(&family.fingerprint) == record.key)?;
        let root = BlockKey::root(&family.fingerprint);
        let (mut blocks, mut last) = (Vec::new(), record.last);
        while last != root {
            let block = self.index.block(&last)?;
            blocks.push(block);
            last = block.parent;
        }
        let ids = blocks.iter().rev().flat_map(|block| block.tokens);
        let heap: usize = blocks.iter().map(|block| block.heap_bytes()).sum();
        Some(Held {
            key: record.key,
            fields: family.fields,
            tokens: ids.chain(record.tail.iter().copied()).collect(),
            heap_bytes: (heap + record.bytes()) as u64,
            complete: record.hidden.is_some(),
            end: End { last: record.last, tail: record.tail.clone() },
        })
    }

    /// What the engine holds.
    pub(super) fn report(&self) -> Report {
        let (blocks, records) = self.index.counts();
        let running = self.sequences.iter().filter(|s| s.phase != Phase::Syncing).count();
        Report {
            running: u32::try_from(running).unwrap_or(u32::MAX),
            waiting: u32::try_from(self.waiting.len()).unwrap_or(u32::MAX),
            blocks: blocks as u64,
            heap_bytes: self.index.heap_bytes() as u64,
            mapped_bytes: self.index.mapped_bytes() as u64,
            active_bytes: self.sequences.iter().map(|s| s.reserved as u64).sum(),
            records: records as u64,
        }
    }
}
