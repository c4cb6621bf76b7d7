//! Chains for tests.

use std::sync::Arc;

use super::block::{Block, Part};
use super::key::{BlockKey, End, Fingerprint, chain};
use super::layout::BLOCK;
use super::record::Record;
use crate::sys::memory::Slab;

/// The blocks of a prompt, in slabs, with these bytes in their parts.
pub(crate) fn blocks(
    fingerprint: &Fingerprint,
    tokens: &[u32],
    parts: impl Fn(&BlockKey) -> Vec<Vec<u8>>,
) -> Vec<Arc<Block>> {
    let mut slabs = Vec::new();
    let mut parent = BlockKey::root(fingerprint);
    let (chunks, _) = tokens.as_chunks::<BLOCK>();
    let block = |(tokens, key): (&[u32; BLOCK], BlockKey)| {
        let parts = parts(&key);
        slabs.resize_with(parts.len(), || None);
        let parts = parts.iter().zip(&mut slabs);
        let parts = parts
            .map(|(bytes, slab)| part(slab.get_or_insert_with(|| Slab::new(bytes.len())), bytes));
        let block = Block { key, parent, tokens: *tokens, parts: parts.collect() };
        parent = key;
        Arc::new(block)
    };
    chunks.iter().zip(chain(fingerprint, tokens)).map(block).collect()
}

fn part(slab: &mut Slab, bytes: &[u8]) -> Arc<Part> {
    let mut slot = slab.take().unwrap();
    slot.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
    Arc::new(Part::Heap(slot, bytes.len()))
}

/// The record of a prompt.
pub(crate) fn record(
    fingerprint: &Fingerprint,
    tokens: &[u32],
    rows: Vec<u8>,
    hidden: Option<Vec<f32>>,
) -> Record {
    let end = End::of(fingerprint, tokens);
    let (key, length) = (end.key(fingerprint), u32::try_from(tokens.len()).unwrap());
    let family = *fingerprint;
    Record { family, key, last: end.last, length, rows, hidden, text: None, tail: end.tail }
}
