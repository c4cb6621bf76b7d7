//! The index: which blocks and records this process can reach, by name.
//!
//! One hash map over heap and mapped blocks, in LRU order, with byte weights.
//! Blocks form trees; eviction takes leaves only, so a chain never has a hole, and it never takes
//! what a sequence uses or a lease holds.
//! The index belongs to one engine thread.

mod pins;
mod weight;

use std::collections::HashMap;
use std::sync::Arc;

use lru::LruCache;

use self::pins::Pins;
use self::weight::Weight;
use super::block::Block;
use super::key::{BlockKey, End, RecordKey, common};
use super::layout::BLOCK;
use super::record::Record;
use super::remove::{Chains, Pieces, doomed};

/// Where a hit came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// This process computed it or used it before.
    Memory,
    /// First use in this process of something that another process computed.
    Disk,
}

/// How much the index may hold.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Heap bytes of blocks and records.
    pub heap: usize,
    /// Segments mapped for indexed blocks.
    pub mappings: usize,
}

/// Rows that a relative lends behind the last whole block.
#[derive(Debug, Clone)]
pub enum Lent {
    /// The first rows of a block that begins like the prompt goes on.
    Block(Arc<Block>, usize),
    /// The first rows of a recorded tail.
    Tail(Arc<Record>, usize),
}

impl Lent {
    /// How many rows.
    pub fn rows(&self) -> usize {
        match self {
            Self::Block(_, rows) | Self::Tail(_, rows) => *rows,
        }
    }
}

#[derive(Debug)]
struct Entry<T> {
    value: Arc<T>,
    fresh: bool,
}

impl<T> Entry<T> {
    /// Where it came from; from now on it is in memory.
    fn source(&mut self) -> Origin {
        let source = self.peek_source();
        self.fresh = false;
        source
    }

    fn peek_source(&self) -> Origin {
        if self.fresh { Origin::Disk } else { Origin::Memory }
    }
}

/// Blocks and records by name.
#[derive(Debug)]
pub struct Index {
    blocks: LruCache<BlockKey, Entry<Block>>,
    children: HashMap<BlockKey, Vec<BlockKey>>,
    records: LruCache<RecordKey, Entry<Record>>,
    /// Records by the block that they follow.
    tails: HashMap<BlockKey, Vec<RecordKey>>,
    weight: Weight,
    record_bytes: usize,
    pins: Pins,
    budget: Budget,
}

impl Index {
    /// An empty index.
    pub fn new(budget: Budget) -> Self {
        Self {
            blocks: LruCache::unbounded(),
            children: HashMap::new(),
            records: LruCache::unbounded(),
            tails: HashMap::new(),
            weight: Weight::default(),
            record_bytes: 0,
            pins: Pins::default(),
            budget,
        }
    }

    /// The longest run of `keys` from the first on that is here, checked against `tokens`.
    pub fn longest(&self, keys: &[BlockKey], tokens: &[u32]) -> Vec<Arc<Block>> {
        let (wanted, _) = tokens.as_chunks::<BLOCK>();
        let found = keys.iter().zip(wanted).map_while(|(key, wanted)| {
            let block = &self.blocks.peek(key)?.value;
            (block.tokens == *wanted).then(|| Arc::clone(block))
        });
        found.collect()
    }

    /// The relative behind `parent` that shares most tokens with `rest`, at most `limit` of them.
    pub fn lend(&self, parent: &BlockKey, rest: &[u32], limit: usize) -> Option<Lent> {
        let limit = limit.min(BLOCK - 1);
        let block = self.children.get(parent).into_iter().flatten().filter_map(|key| {
            let block = &self.blocks.peek(key)?.value;
            Some(Lent::Block(Arc::clone(block), common(&block.tokens, rest).min(limit)))
        });
        let tail = self.tails.get(parent).into_iter().flatten().filter_map(|key| {
            let record = &self.records.peek(key)?.value;
            Some(Lent::Tail(Arc::clone(record), common(&record.tail, rest).min(limit)))
        });
        block.chain(tail).max_by_key(Lent::rows).filter(|lent| lent.rows() > 0)
    }

    /// The ids of the blocks and tails that follow `parent`.
    pub fn follows(&self, parent: &BlockKey) -> impl Iterator<Item = &[u32]> {
        let blocks = self.children.get(parent).into_iter().flatten();
        let blocks = blocks.filter_map(|key| Some(&self.blocks.peek(key)?.value.tokens[..]));
        let tails = self.tails.get(parent).into_iter().flatten();
        blocks.chain(tails.filter_map(|key| Some(&self.records.peek(key)?.value.tail[..])))
    }

    /// Where a hit of this block would come from; `None` when it is not here.
    pub fn source(&self, key: &BlockKey) -> Option<Origin> {
        self.blocks.peek(key).map(Entry::peek_source)
    }

    /// Where a hit of this record would come from; `None` when it is not here.
    pub fn record_source(&self, key: &RecordKey) -> Option<Origin> {
        self.records.peek(key).map(Entry::peek_source)
    }

    /// The record of a whole prompt, if its tail is really `tail`.
    pub fn record(&self, key: &RecordKey, tail: &[u32]) -> Option<Arc<Record>> {
        let record = &self.records.peek(key)?.value;
        (record.tail == tail).then(|| Arc::clone(record))
    }

    /// All records, most recently used first.
    pub fn records(&self) -> impl Iterator<Item = &Record> {
        self.records.iter().map(|(_, entry)| &*entry.value)
    }

    /// Whether the block is here.
    pub fn contains(&self, key: &BlockKey) -> bool {
        self.blocks.contains(key)
    }

    /// The block itself.
    pub fn block(&self, key: &BlockKey) -> Option<&Arc<Block>> {
        self.blocks.peek(key).map(|entry| &entry.value)
    }

    /// Notes a use of a chain, deepest block first, so that leaves are always the oldest of their
    /// chain. Says where each block came from, in chain order.
    pub fn touch(&mut self, chain: &[Arc<Block>]) -> Vec<Origin> {
        let used = chain.iter().rev().map(|block| match self.blocks.get_mut(&block.key) {
            Some(entry) => entry.source(),
            None => Origin::Memory,
        });
        let mut sources: Vec<Origin> = used.collect();
        sources.reverse();
        sources
    }

    /// Notes a use of a record and says where it came from.
    pub fn touch_record(&mut self, key: &RecordKey) -> Origin {
        self.records.get_mut(key).map_or(Origin::Memory, Entry::source)
    }

    /// Adds a block; when one of the same name is here, that one stays and is returned.
    /// Tail records that the block makes needless go.
    pub fn insert(&mut self, block: Arc<Block>, source: Origin) -> Arc<Block> {
        if let Some(present) = self.blocks.peek(&block.key) {
            return Arc::clone(&present.value);
        }
        self.weigh(&block, true);
        self.children.entry(block.parent).or_default().push(block.key);
        self.drop_covered_tails(&block);
        let entry = Entry { value: Arc::clone(&block), fresh: source == Origin::Disk };
        self.blocks.put(block.key, entry);
        self.hold_before(&block.key);
        block
    }

    /// Puts `block` in the place of the one with the same name: the same bytes in a mapping, or a
    /// recomputed block. Without one it does nothing.
    pub fn replace(&mut self, block: Arc<Block>) {
        let Some(entry) = self.blocks.peek_mut(&block.key) else { return };
        let old = std::mem::replace(&mut entry.value, Arc::clone(&block));
        self.weigh(&old, false);
        self.weigh(&block, true);
    }

    /// Adds a record. One with a hidden state is never replaced by one without.
    pub fn insert_record(&mut self, record: Arc<Record>, source: Origin) {
        if let Some(present) = self.records.peek(&record.key)
            && (present.value.hidden.is_some() || record.hidden.is_none())
        {
            return;
        }
        self.remove_record(&record.key);
        self.record_bytes += record.bytes();
        self.pins.record_comes(&record.key, record.bytes());
        self.tails.entry(record.last).or_default().push(record.key);
        let fresh = source == Origin::Disk;
        self.records.put(record.key, Entry { value: record, fresh });
    }

    /// Forgets a record.
    pub fn remove_record(&mut self, key: &RecordKey) -> Option<Arc<Record>> {
        let record = self.records.pop(key)?.value;
        self.record_bytes -= record.bytes();
        self.pins.record_goes(key, record.bytes());
        unlink(&mut self.tails, &record.last, key);
        Some(record)
    }

    /// Forgets a chain end and what goes with it, leases included. Returns how many blocks and
    /// records went.
    pub fn remove_chain(&mut self, end: &End) -> (usize, usize) {
        let Pieces { blocks, records } = doomed(self, end);
        self.end_removed(end, &blocks);
        records.iter().for_each(|key| _ = self.remove_record(key));
        blocks.iter().for_each(|key| _ = self.remove_block(key));
        (blocks.len(), records.len())
    }

    /// Forgets everything, leases included.
    pub fn clear(&mut self) -> (usize, usize) {
        let counts = (self.blocks.len(), self.records.len());
        *self = Self::new(self.budget);
        counts
    }

    /// Forgets least recently used leaves and records that nobody uses and no lease holds until the
    /// budget holds.
    pub fn evict(&mut self) {
        self.end_leases();
        while self.record_bytes > self.record_budget() && self.evict_record() {}
        while self.heap_bytes() > self.budget.heap && self.evict_leaf(|b| b.heap_bytes() > 0) {}
        while self.weight.mappings() > self.budget.mappings
            && self.evict_leaf(|block| block.heap_bytes() == 0)
        {}
    }

    /// Forgets those of `keys` that nobody uses, nothing follows and no lease holds, children before
    /// parents: the disk needs their room.
    pub fn let_go(&mut self, keys: &[BlockKey]) {
        for key in keys.iter().rev() {
            let unused = |entry: &Entry<Block>| Arc::strong_count(&entry.value) == 1;
            let evictable = self.is_leaf(key) && !self.keeps_block(key);
            if evictable && self.blocks.peek(key).is_some_and(unused) {
                self.remove_block(key);
            }
        }
    }

    /// Heap bytes of blocks and records.
    pub fn heap_bytes(&self) -> usize {
        self.weight.heap + self.record_bytes
    }

    /// How many blocks and records there are.
    pub fn counts(&self) -> (usize, usize) {
        (self.blocks.len(), self.records.len())
    }

    fn evict_record(&mut self) -> bool {
        let victim = self.records.iter().rev().find(|(key, _)| !self.keeps_record(key));
        let victim = victim.map(|(key, _)| *key);
        victim.is_some_and(|key| self.remove_record(&key).is_some())
    }

    fn evict_leaf(&mut self, wanted: impl Fn(&Block) -> bool) -> bool {
        let mut passed = Vec::new();
        let mut oldest = self.blocks.iter().rev();
        let victim = oldest.find(|(key, entry)| {
            if self.keeps_block(key) {
                passed.push(**key);
                return false;
            }
            let unused = Arc::strong_count(&entry.value) == 1;
            unused && self.is_leaf(key) && wanted(&entry.value)
        });
        let victim = victim.map(|(key, _)| *key);
        // The next eviction need not pass over the same blocks again.
        passed.iter().for_each(|key| _ = self.blocks.promote(key));
        victim.is_some_and(|key| self.remove_block(&key).is_some())
    }

    /// Most bytes of records.
    fn record_budget(&self) -> usize {
        self.budget.heap / 8
    }

    fn is_leaf(&self, key: &BlockKey) -> bool {
        !self.children.contains_key(key)
    }

    fn remove_block(&mut self, key: &BlockKey) -> Option<Arc<Block>> {
        let block = self.blocks.pop(key)?.value;
        self.weigh(&block, false);
        unlink(&mut self.children, &block.parent, key);
        Some(block)
    }

    fn drop_covered_tails(&mut self, block: &Block) {
        let tails = self.tails.get(&block.parent).into_iter().flatten();
        let covered = tails.filter(|key| {
            let record = self.records.peek(key).map(|entry| &entry.value);
            let covers = |r: &&Arc<Record>| block.tokens.starts_with(&r.tail);
            record.filter(covers).is_some_and(|r| r.hidden.is_none() && !self.keeps_record(key))
        });
        for key in covered.copied().collect::<Vec<_>>() {
            self.remove_record(&key);
        }
    }

    fn weigh(&mut self, block: &Block, add: bool) {
        if add {
            self.weight.put(block);
            self.pins.block_comes(block);
        } else {
            self.weight.take(block);
            self.pins.block_goes(block);
        }
    }
}

impl Chains for Index {
    type Record = RecordKey;

    fn parent(&self, key: &BlockKey) -> Option<BlockKey> {
        Some(self.block(key)?.parent)
    }

    fn is_pinned(&self, key: &BlockKey, removed: &End) -> bool {
        self.pins.book.outlasts(key, removed)
    }

    fn after(&self, key: &BlockKey, tail: &[u32]) -> Pieces<RecordKey> {
        let blocks = self.children.get(key).into_iter().flatten().copied();
        let records = self.tails.get(key).into_iter().flatten().copied();
        let begins = |key: &BlockKey| {
            self.blocks.peek(key).is_some_and(|entry| entry.value.tokens.starts_with(tail))
        };
        let continues = |key: &RecordKey| {
            self.records.peek(key).is_some_and(|entry| entry.value.tail.starts_with(tail))
        };
        Pieces {
            blocks: blocks.filter(begins).collect(),
            records: records.filter(continues).collect(),
        }
    }
}

fn unlink<K: std::hash::Hash + Eq, V: PartialEq>(map: &mut HashMap<K, Vec<V>>, key: &K, value: &V) {
    if let Some(values) = map.get_mut(key) {
        values.retain(|known| known != value);
        if values.is_empty() {
            map.remove(key);
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::kv::key::{Fields, Fingerprint, chain};
    use crate::kv::samples;

    const BYTES: usize = 64;

    fn fingerprint() -> Fingerprint {
        Fields::default().fingerprint()
    }

    fn blocks(tokens: &[u32]) -> Vec<Arc<Block>> {
        samples::blocks(&fingerprint(), tokens, |_| vec![vec![0; BYTES]])
    }

    fn index(heap: usize) -> Index {
        Index::new(Budget { heap, mappings: 10 })
    }

    fn insert(index: &mut Index, tokens: &[u32]) {
        for block in blocks(tokens) {
            index.insert(block, Origin::Memory);
        }
    }

    fn record(tokens: &[u32], hidden: Option<Vec<f32>>) -> Arc<Record> {
        Arc::new(samples::record(&fingerprint(), tokens, vec![], hidden))
    }

    fn found(index: &Index, tokens: &[u32]) -> usize {
        index.longest(&chain(&fingerprint(), tokens), tokens).len()
    }

    #[test]
    fn the_longest_known_prefix_is_found() {
        let mut index = index(1 << 20);
        let tokens: Vec<u32> = (0..160).collect();
        insert(&mut index, &tokens[..96]);
        assert_eq!(found(&index, &tokens), 3);
        let mut other = tokens.clone();
        other[40] = 7;
        assert_eq!(found(&index, &other), 1);
    }

    #[test]
    fn the_relative_with_most_tokens_in_common_lends() {
        let mut index = index(1 << 20);
        let tokens: Vec<u32> = (0..64).collect();
        insert(&mut index, &tokens);
        let mut other = tokens.clone();
        other[50] = 7;
        insert(&mut index, &other);
        let parent = chain(&fingerprint(), &tokens)[0];
        let mut asked = tokens[32..].to_vec();
        asked[20] = 9;
        assert!(matches!(index.lend(&parent, &asked, 31), Some(Lent::Block(_, 20))));
        assert!(matches!(index.lend(&parent, &asked, 5), Some(Lent::Block(_, 5))));
        index.insert_record(record(&[&tokens[..32], &asked[..25]].concat(), None), Origin::Memory);
        assert!(matches!(index.lend(&parent, &asked, 31), Some(Lent::Tail(_, 25))));
        assert!(index.lend(&parent, &[99], 31).is_none());
    }

    #[test]
    fn eviction_takes_leaves_and_never_what_is_used() {
        let mut index = index(3 * BYTES);
        let tokens: Vec<u32> = (0..160).collect();
        insert(&mut index, &tokens);
        let used = index.longest(&chain(&fingerprint(), &tokens), &tokens);
        index.evict();
        assert_eq!(found(&index, &tokens), 5);
        drop(used);
        index.evict();
        assert_eq!((found(&index, &tokens), index.heap_bytes()), (3, 3 * BYTES));
    }

    #[test]
    fn the_least_recently_used_chain_goes_first() {
        let mut index = index(4 * BYTES);
        let (a, b): (Vec<u32>, Vec<u32>) = ((0..64).collect(), (100..164).collect());
        insert(&mut index, &a);
        insert(&mut index, &b);
        let chain_a = index.longest(&chain(&fingerprint(), &a), &a);
        index.touch(&chain_a);
        drop(chain_a);
        insert(&mut index, &(200..232).collect::<Vec<u32>>());
        index.evict();
        assert_eq!((found(&index, &a), found(&index, &b)), (2, 1));
    }

    #[test]
    fn a_hit_counts_as_disk_once() {
        let mut index = index(1 << 20);
        let tokens: Vec<u32> = (0..32).collect();
        let block = index.insert(blocks(&tokens).remove(0), Origin::Disk);
        assert_eq!(index.touch(&[Arc::clone(&block)]), [Origin::Disk]);
        assert_eq!(index.touch(&[block]), [Origin::Memory]);
    }

    fn remove(index: &mut Index, tokens: &[u32]) -> (usize, usize) {
        index.remove_chain(&End::of(&fingerprint(), tokens))
    }

    #[test]
    fn removing_a_chain_keeps_what_others_need_and_takes_descendants() {
        let mut index = index(1 << 20);
        let tokens: Vec<u32> = (0..128).collect();
        insert(&mut index, &tokens);
        let mut other = tokens[..96].to_vec();
        other[40] = 7;
        insert(&mut index, &other);
        index.insert_record(record(&tokens[..70], Some(vec![])), Origin::Memory);
        assert_eq!(remove(&mut index, &tokens[..70]), (3, 1));
        assert_eq!((found(&index, &tokens), found(&index, &other)), (1, 3));
    }

    #[test]
    fn an_end_whose_own_record_is_elsewhere_takes_its_descendants() {
        let mut index = index(1 << 20);
        let tokens: Vec<u32> = (0..170).collect();
        insert(&mut index, &tokens);
        index.insert_record(record(&tokens, Some(vec![])), Origin::Memory);
        assert_eq!(remove(&mut index, &tokens[..70]), (5, 1));
        assert_eq!(index.counts(), (0, 0));
    }

    #[test]
    fn a_tail_that_begins_with_a_removed_one_goes_too() {
        let mut index = index(1 << 20);
        let tokens: Vec<u32> = (0..73).collect();
        insert(&mut index, &tokens);
        for len in [66, 70, 73] {
            index.insert_record(record(&tokens[..len], Some(vec![])), Origin::Memory);
        }
        assert_eq!(remove(&mut index, &tokens[..70]), (0, 2));
        let parent = chain(&fingerprint(), &tokens)[1];
        assert!(matches!(index.lend(&parent, &tokens[64..], 31), Some(Lent::Tail(_, 2))));
    }

    #[test]
    fn what_goes_on_otherwise_than_a_removed_tail_stays() {
        let mut index = index(1 << 20);
        let long: Vec<u32> = (0..164).collect();
        let short: Vec<u32> = (0..64).chain(500..510).collect();
        for tokens in [&long, &short] {
            insert(&mut index, tokens);
            index.insert_record(record(tokens, Some(vec![])), Origin::Memory);
        }
        assert_eq!(remove(&mut index, &short), (0, 1));
        assert_eq!((found(&index, &long), index.counts()), (5, (5, 1)));
    }

    #[test]
    fn a_record_with_a_hidden_state_stays_and_a_covered_tail_goes() {
        let mut index = index(1 << 20);
        let tokens: Vec<u32> = (0..64).collect();
        let (full, tail) = (record(&tokens[..40], Some(vec![1.0])), record(&tokens[..50], None));
        index.insert_record(Arc::clone(&full), Origin::Memory);
        index.insert_record(record(&tokens[..40], None), Origin::Memory);
        index.insert_record(Arc::clone(&tail), Origin::Memory);
        insert(&mut index, &tokens);
        assert!(index.record(&full.key, &tokens[32..40]).unwrap().hidden.is_some());
        assert!(index.record(&tail.key, &tokens[32..50]).is_none());
    }
}
