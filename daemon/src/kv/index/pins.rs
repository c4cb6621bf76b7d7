//! Pins in memory: what eviction passes over.
//!
//! A lease may come before its chain, or outlive it: it holds nothing until the chain's last block
//! is here, whose ancestors then are, too, and holds whatever is here of the chain from then on.

use std::collections::HashMap;
use std::sync::Arc;

use super::Index;
use super::weight::Weight;
use crate::kv::block::Block;
use crate::kv::key::{BlockKey, End, RecordKey};
use crate::kv::pin::{Book, Lease, NoRoom, Pinned, Share, now};

/// The leases, and what they hold.
#[derive(Debug, Default)]
pub(super) struct Pins {
    pub(super) book: Book,
    /// The chains of the leases that have found theirs.
    chains: HashMap<RecordKey, Vec<BlockKey>>,
    /// How many leases hold a block, whether it is here or not.
    blocks: HashMap<BlockKey, usize>,
    /// What the held blocks weigh that are here.
    weight: Weight,
    /// Bytes of the held records that are here.
    records: usize,
}

impl Pins {
    pub(super) fn block_comes(&mut self, block: &Block) {
        if self.blocks.contains_key(&block.key) {
            self.weight.put(block);
        }
    }

    pub(super) fn block_goes(&mut self, block: &Block) {
        if self.blocks.contains_key(&block.key) {
            self.weight.take(block);
        }
    }

    pub(super) fn record_comes(&mut self, key: &RecordKey, bytes: usize) {
        if self.book.find(key).is_some() {
            self.records += bytes;
        }
    }

    pub(super) fn record_goes(&mut self, key: &RecordKey, bytes: usize) {
        if self.book.find(key).is_some() {
            self.records -= bytes;
        }
    }

    fn heap(&self) -> usize {
        self.weight.heap + self.records
    }
}

impl Index {
    /// Keeps a chain from eviction until the lease ends.
    ///
    /// # Errors
    /// When pins would hold more than half of a budget. What is pinned already is always renewed.
    pub fn pin(&mut self, lease: Lease) -> Result<Pinned, NoRoom> {
        self.end_leases();
        let key = lease.key();
        let fresh = self.pins.book.find(&key).is_none();
        if fresh {
            self.expect_room(&lease)?;
        }
        let until = self.pins.book.enter(lease);
        let record = self.records.peek(&key).map_or(0, |entry| entry.value.bytes());
        if fresh {
            self.pins.records += record;
        }
        self.hold(&key);
        let blocks = self.pins.chains.get(&key).into_iter().flatten();
        let bytes = blocks.filter_map(|key| self.block(key)).map(|block| block.bytes());
        let bytes = (bytes.sum::<usize>() + record) as u64;
        Ok(Pinned { bytes, until, fresh })
    }

    /// Lets a chain be evicted again.
    pub fn unpin(&mut self, key: &RecordKey) {
        if self.pins.book.find(key).is_none() {
            return;
        }
        self.pins.records -= self.records.peek(key).map_or(0, |entry| entry.value.bytes());
        self.pins.book.remove(key);
        for block in self.pins.chains.remove(key).into_iter().flatten() {
            self.let_block_go(&block);
        }
    }

    /// When the lease on a prompt ends.
    pub fn pinned_until(&self, key: &RecordKey) -> Option<u64> {
        self.pins.book.until(key)
    }

    /// How many prompts are pinned.
    pub fn pins(&self) -> usize {
        self.pins.book.iter().count()
    }

    /// Ends the leases whose time has come.
    pub(super) fn end_leases(&mut self) {
        if self.pins.book.is_empty() {
            return;
        }
        let ended = self.pins.book.ended(now());
        ended.iter().for_each(|key| self.unpin(key));
    }

    /// Ends the leases on what goes when `removed` and the blocks behind it do.
    pub(super) fn end_removed(
        &mut self,
        removed: &End,
        blocks: &std::collections::HashSet<BlockKey>,
    ) {
        let doomed = self.pins.book.doomed(removed, blocks);
        doomed.iter().for_each(|key| self.unpin(key));
    }

    /// Lets the leases that waited for the block `last` hold their chains.
    pub(super) fn hold_before(&mut self, last: &BlockKey) {
        let waits = |lease: &&Lease| lease.end.last == *last;
        let waiting: Vec<_> = self.pins.book.iter().filter(waits).map(Lease::key).collect();
        waiting.iter().for_each(|key| self.hold(key));
    }

    /// Whether eviction passes over a block. It does as long as pins keep to their share, which
    /// what is pinned may outgrow when it is computed again.
    pub(super) fn keeps_block(&self, key: &BlockKey) -> bool {
        self.pins.blocks.contains_key(key)
            && self.heap_share().is_kept()
            && self.mapping_share().is_kept()
    }

    /// Whether eviction passes over a record.
    pub(super) fn keeps_record(&self, key: &RecordKey) -> bool {
        self.record_share().is_kept() && self.pins.book.find(key).is_some()
    }

    fn heap_share(&self) -> Share {
        let (held, budget) = (self.pins.heap() as u64, self.budget.heap as u64);
        Share { what: "bytes of memory", held, budget }
    }

    fn record_share(&self) -> Share {
        let (held, budget) = (self.pins.records as u64, self.record_budget() as u64);
        Share { what: "bytes of records in memory", held, budget }
    }

    fn mapping_share(&self) -> Share {
        let (held, budget) = (self.pins.weight.mappings() as u64, self.budget.mappings as u64);
        Share { what: "mapped segments", held, budget }
    }

    fn hold(&mut self, key: &RecordKey) {
        if self.pins.chains.contains_key(key) {
            return;
        }
        let Some(chain) = self.pins.book.find(key).and_then(|lease| self.chain(lease)) else {
            return;
        };
        for block in &chain {
            let leases = self.pins.blocks.entry(block.key).or_default();
            *leases += 1;
            if *leases == 1 {
                self.pins.weight.put(block);
            }
        }
        self.pins.chains.insert(*key, chain.iter().map(|block| block.key).collect());
    }

    fn let_block_go(&mut self, key: &BlockKey) {
        let Some(leases) = self.pins.blocks.get_mut(key) else { return };
        *leases -= 1;
        if *leases == 0 {
            self.pins.blocks.remove(key);
            if let Some(entry) = self.blocks.peek(key) {
                self.pins.weight.take(&entry.value);
            }
        }
    }

    /// The blocks of a leased chain, when all of them are here.
    fn chain(&self, lease: &Lease) -> Option<Vec<Arc<Block>>> {
        let root = BlockKey::root(&lease.fingerprint);
        let (mut chain, mut last) = (Vec::new(), lease.end.last);
        while last != root {
            let block = self.block(&last)?;
            last = block.parent;
            chain.push(Arc::clone(block));
        }
        Some(chain)
    }

    fn expect_room(&self, lease: &Lease) -> Result<(), NoRoom> {
        self.pins.book.expect_room()?;
        let chain = self.chain(lease).unwrap_or_default();
        let new = chain.iter().filter(|block| !self.pins.blocks.contains_key(&block.key));
        let growth = self.pins.weight.growth(new);
        let record = self.records.peek(&lease.key()).map_or(0, |entry| entry.value.bytes());
        self.heap_share().expect_room((growth.heap + record) as u64)?;
        self.record_share().expect_room(record as u64)?;
        self.mapping_share().expect_room(growth.mappings() as u64)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kv::index::{Budget, Origin};
    use crate::kv::key::{Fields, Fingerprint, chain};
    use crate::kv::layout::BLOCK;
    use crate::kv::samples;

    const BYTES: usize = 512;
    /// Of 32 blocks.
    const HEAP: usize = 32 * BYTES;

    fn fingerprint() -> Fingerprint {
        Fields::default().fingerprint()
    }

    /// A prompt whose first 64 tokens are everyone's.
    fn prompt(seed: u32, len: usize) -> Vec<u32> {
        (0..len as u32).map(|at| if at < 64 { at } else { at + seed * 10_000 }).collect()
    }

    fn insert(index: &mut Index, tokens: &[u32]) {
        for block in samples::blocks(&fingerprint(), tokens, |_| vec![vec![0; BYTES]]) {
            index.insert(block, Origin::Memory);
        }
        let record = samples::record(&fingerprint(), tokens, vec![], Some(vec![]));
        index.insert_record(Arc::new(record), Origin::Memory);
    }

    fn lease(tokens: &[u32], until: u64) -> Lease {
        let fingerprint = fingerprint();
        Lease { fingerprint, end: End::of(&fingerprint, tokens), until }
    }

    fn index() -> Index {
        Index::new(Budget { heap: HEAP, mappings: 4 })
    }

    /// Whether all of a prompt is here.
    fn is_whole(index: &Index, tokens: &[u32]) -> bool {
        let keys = chain(&fingerprint(), tokens);
        index.longest(&keys, tokens).len() == keys.len()
            && index.record_source(&lease(tokens, 0).key()).is_some()
    }

    #[test]
    fn a_pinned_chain_outlasts_everything_that_is_used_later() {
        let mut index = index();
        let pinned = prompt(1, 200);
        insert(&mut index, &pinned);
        let given = index.pin(lease(&pinned, u64::MAX)).unwrap();
        assert!(given.fresh && given.bytes >= 6 * BYTES as u64, "{given:?}");
        for seed in 2..40 {
            insert(&mut index, &prompt(seed, 300));
            index.evict();
            assert!(is_whole(&index, &pinned), "after {seed}");
            assert!(index.heap_bytes() <= HEAP);
        }
        index.unpin(&lease(&pinned, 0).key());
        for seed in 40..50 {
            insert(&mut index, &prompt(seed, 300));
            index.evict();
        }
        assert!(!is_whole(&index, &pinned));
    }

    #[test]
    fn pins_hold_half_of_the_budget_at_most_and_shared_blocks_once() {
        let mut index = index();
        let (one, two, three) = (prompt(1, 320), prompt(2, 320), prompt(3, 256));
        for tokens in [&one, &two, &three] {
            insert(&mut index, tokens);
        }
        index.pin(lease(&one, u64::MAX)).unwrap();
        let refused = index.pin(lease(&two, u64::MAX)).unwrap_err();
        assert_eq!((refused.what, refused.limit), ("bytes of memory", HEAP as u64 / 2));
        assert!(refused.needed >= 8 * BYTES as u64 && refused.needed < 9 * BYTES as u64);
        assert!(index.pinned_until(&lease(&two, 0).key()).is_none());
        index.unpin(&lease(&one, 0).key());
        index.pin(lease(&two, u64::MAX)).unwrap();
        assert!(index.pin(lease(&three, u64::MAX)).is_err());
    }

    #[test]
    fn two_pins_that_share_blocks_are_independent() {
        let mut index = index();
        let (short, long) = (prompt(1, 96), prompt(1, 224));
        for tokens in [&short, &long] {
            insert(&mut index, tokens);
        }
        for tokens in [&short, &long] {
            index.pin(lease(tokens, u64::MAX)).unwrap();
        }
        index.unpin(&lease(&long, 0).key());
        for seed in 2..20 {
            insert(&mut index, &prompt(seed, 400));
            index.evict();
        }
        assert!(is_whole(&index, &short) && !is_whole(&index, &long));
        assert_eq!(index.pins.blocks.len(), 3);
    }

    #[test]
    fn a_lease_that_comes_before_its_chain_holds_it_once_it_is_here() {
        let mut index = index();
        let pinned = prompt(1, 100);
        assert_eq!(index.pin(lease(&pinned, u64::MAX)).unwrap().bytes, 0);
        insert(&mut index, &pinned);
        for seed in 2..20 {
            insert(&mut index, &prompt(seed, 400));
            index.evict();
        }
        assert!(is_whole(&index, &pinned));
    }

    #[test]
    fn a_pinned_prompt_survives_the_removal_of_what_goes_on_from_it() {
        let mut index = index();
        let (short, long) = (prompt(1, 96), prompt(1, 224));
        for tokens in [&short, &long] {
            insert(&mut index, tokens);
        }
        index.pin(lease(&short, u64::MAX)).unwrap();
        index.remove_record(&lease(&short, 0).key());
        index.remove_chain(&End::of(&fingerprint(), &long));
        let keys = chain(&fingerprint(), &long);
        assert_eq!(index.longest(&keys, &long).len(), 3);
        index.remove_chain(&End::of(&fingerprint(), &short));
        assert_eq!((index.counts(), index.pins()), ((0, 0), 0));
    }

    /// What someone does with an index.
    #[derive(Debug, Clone)]
    enum Act {
        Insert(u32, usize),
        Pin(u32, usize, bool),
        Unpin(u32, usize),
        Remove(u32, usize),
    }

    fn act() -> impl Strategy<Value = Act> {
        let (seeds, lens) =
            (1..6u32, prop::sample::select(vec![40usize, 64, 70, 100, 128, 260, 400]));
        prop_oneof![
            5 => (seeds.clone(), lens.clone()).prop_map(|(seed, len)| Act::Insert(seed, len)),
            3 => (seeds.clone(), lens.clone(), prop::bool::weighted(0.2))
                .prop_map(|(seed, len, ended)| Act::Pin(seed, len, ended)),
            1 => (seeds.clone(), lens.clone()).prop_map(|(seed, len)| Act::Unpin(seed, len)),
            1 => (seeds, lens).prop_map(|(seed, len)| Act::Remove(seed, len)),
        ]
    }

    /// What the pins should weigh, counted anew.
    fn counted(index: &Index) -> usize {
        let held = index.pins.blocks.keys().filter_map(|key| index.block(key));
        let records = index.records().filter(|record| index.pins.book.find(&record.key).is_some());
        let records: usize = records.map(crate::kv::record::Record::bytes).sum();
        held.map(|block| block.heap_bytes()).sum::<usize>() + records
    }

    proptest! {
        #[test]
        fn pinned_chains_are_always_found_and_neither_budgets_nor_their_half_are_exceeded(
            acts in prop::collection::vec(act(), 1..120),
        ) {
            let mut index = index();
            let mut pinned: Vec<Vec<u32>> = Vec::new();
            for act in acts {
                match act {
                    Act::Insert(seed, len) => insert(&mut index, &prompt(seed, len)),
                    Act::Pin(seed, len, ended) => {
                        let tokens = prompt(seed, len);
                        let whole = is_whole(&index, &tokens);
                        let until = if ended { 1 } else { u64::MAX };
                        let given = index.pin(lease(&tokens, until)).is_ok();
                        if given && whole && !ended {
                            pinned.push(tokens);
                        } else if given && !whole {
                            index.unpin(&lease(&tokens, 0).key());
                        }
                    }
                    Act::Unpin(seed, len) => {
                        let tokens = prompt(seed, len);
                        index.unpin(&lease(&tokens, 0).key());
                        pinned.retain(|pinned| *pinned != tokens);
                    }
                    Act::Remove(seed, len) => {
                        let tokens = prompt(seed, len);
                        index.remove_chain(&End::of(&fingerprint(), &tokens));
                        pinned.retain(|pinned| !pinned.starts_with(&tokens));
                    }
                }
                index.evict();
                prop_assert!(pinned.iter().all(|tokens| is_whole(&index, tokens)), "{pinned:?}");
                prop_assert!(index.heap_bytes() <= HEAP);
                prop_assert!(index.record_bytes <= index.record_budget());
                prop_assert!(index.pins.heap() <= HEAP / 2);
                prop_assert_eq!(index.pins.heap(), counted(&index));
                prop_assert!(pinned.iter().all(|tokens| tokens.len() >= BLOCK));
            }
        }
    }
}
