//! Questions that others ask an engine: what it holds, and the order to forget.

use super::Engine;
use super::handle::{Held, Removal, Removed, Report};
use super::sequence::Phase;
use crate::kv::device::Tier;
use crate::kv::key::{BlockKey, End};
use crate::kv::record::Record;

impl Engine {
    /// Forgets in memory; the store was told by whoever asks.
    pub(super) fn remove(&mut self, what: &Removal) -> Removed {
        self.removals += 1;
        let pins = self.index.pins();
        let (blocks, records) = match what {
            Removal::Prompt(end) => self.index.remove_chain(end),
            Removal::All => self.index.clear(),
        };
        self.loaded.model.tier().inspect(|tier| tier.clear());
        self.history.clear();
        let pins = (pins - self.index.pins()) as u64;
        Removed { blocks: blocks as u64, records: records as u64, pins }
    }

    /// The chain ends in memory whose blocks are all here.
    pub(super) fn list(&self) -> Vec<Held> {
        self.index.records().filter_map(|record| self.held(record)).collect()
    }

    fn held(&self, record: &Record) -> Option<Held> {
        let family = self.families.get(&record.family)?;
        let root = BlockKey::root(&family.fingerprint);
        let (mut blocks, mut last) = (Vec::new(), record.last);
        while last != root {
            let block = self.index.block(&last)?;
            blocks.push(block);
            last = block.parent;
        }
        let ids = blocks.iter().rev().flat_map(|block| block.tokens);
        let heap: usize = blocks.iter().map(|block| block.heap_bytes()).sum();
        let mapped: usize = blocks.iter().map(|block| block.mapped_bytes()).sum();
        Some(Held {
            key: record.key,
            fields: family.fields,
            tokens: ids.chain(record.tail.iter().copied()).collect(),
            heap_bytes: (heap + record.bytes()) as u64,
            mapped_bytes: mapped as u64,
            complete: record.hidden.is_some(),
            pinned_ms: self.index.pinned_until(&record.key),
            end: End { last: record.last, tail: record.tail.clone() },
        })
    }

    /// What the engine holds.
    pub(super) fn report(&self) -> Report {
        let (blocks, records) = self.index.counts();
        let running = self.sequences.iter().filter(|s| s.phase.runs()).count();
        let preempted = self.sequences.iter().filter(|s| s.phase == Phase::Preempted).count();
        Report {
            running: u32::try_from(running).unwrap_or(u32::MAX),
            waiting: u32::try_from(self.queue.len() + preempted).unwrap_or(u32::MAX),
            blocks: blocks as u64,
            heap_bytes: self.index.heap_bytes() as u64,
            active_bytes: self.sequences.iter().map(|s| s.reserved as u64).sum(),
            records: records as u64,
            device: self.loaded.model.tier().map(Tier::usage),
        }
    }
}
