//! The cached prompts of a peer, over memory and disk.
//!
//! An engine knows what it can reach, the store knows what it could reach after a restart; the
//! same prompt is often in both. Which model, codec and identity a prompt belongs to is read from
//! the digests that its fingerprint was made of.

use std::collections::HashMap;
use std::sync::Arc;

use tinygpt_proto::v1::CacheBlock;

use super::Daemon;
use super::convert::reply::count;
use super::inquire::ask;
use super::models::{Readiness, Served, Slot};
use super::peer::Peer;
use super::refusal::{Count, Refusal};
use crate::engine::ModelInfo;
use crate::engine::handle::Held;
use crate::kv::codec::Codec;
use crate::kv::key::{BlockKey, Digest, End, Fields, Fingerprint, RecordKey, chain};
use crate::store;

/// Fewest hexadecimal digits that stand for a key.
const MIN_DIGITS: usize = 4;

/// A cached prompt.
#[derive(Debug)]
pub(super) struct Entry {
    /// Its key.
    pub key: RecordKey,
    /// Its family.
    pub fingerprint: Fingerprint,
    /// Its codec, when this version knows it.
    pub codec: Option<Codec>,
    /// Tokens of its chain.
    pub length: u32,
    /// Its ids, once they are known.
    pub tokens: Option<Vec<u32>>,
    /// What an engine holds of it.
    pub memory: Option<Held>,
    /// What the store holds of it.
    pub disk: Option<store::ChainEnd>,
    /// What its family is made from.
    pub fields: Fields,
    /// Where its chain ends.
    pub end: End,
    /// The model that computed it, when it was loaded before.
    info: Option<Arc<ModelInfo>>,
    /// The same with its tokenizer, while it is loaded.
    served: Option<Arc<Served>>,
}

/// The models that may have computed something.
struct Known {
    /// Those that were loaded at some time.
    infos: Vec<Arc<ModelInfo>>,
    /// Those that are.
    loaded: Vec<Arc<Served>>,
}

impl Entry {
    fn new(key: RecordKey, end: End, length: u32, fields: Fields, known: &Known) -> Self {
        let codec = |codec: &Codec| Digest::of("codec", codec.name().as_bytes()) == fields.codec;
        Self {
            key,
            fingerprint: fields.fingerprint(),
            codec: Codec::ALL.into_iter().find(codec),
            length,
            tokens: None,
            memory: None,
            disk: None,
            fields,
            end,
            info: known.infos.iter().find(|info| info.computed(&fields)).cloned(),
            served: known.loaded.iter().find(|served| served.info.computed(&fields)).cloned(),
        }
    }

    /// The name of the model that computed it; empty when that was not loaded yet.
    pub(super) fn model(&self) -> &str {
        self.info.as_ref().map_or("", |info| &info.name)
    }

    /// The arithmetic that computed it; empty when its model was not loaded yet.
    pub(super) fn numerics(&self) -> &str {
        self.info.as_ref().map_or("", |info| info.numerics)
    }

    /// Whether a record answers exactly this prompt without running a layer.
    pub(super) fn complete(&self) -> bool {
        self.memory.as_ref().is_some_and(|memory| memory.complete)
            || self.disk.as_ref().is_some_and(|disk| disk.complete)
    }

    /// Until when it is pinned, in milliseconds since the epoch.
    pub(super) fn pinned_ms(&self) -> Option<u64> {
        let memory = self.memory.as_ref().and_then(|memory| memory.pinned_ms);
        memory.max(self.disk.as_ref().and_then(|disk| disk.pinned_ms))
    }

    /// The keys of its blocks. Needs the ids.
    fn keys(&self) -> Arc<[BlockKey]> {
        chain(&self.fingerprint, self.tokens.as_deref().unwrap_or_default()).into()
    }

    /// Bytes of one block; 0 when its model was not loaded yet.
    fn block_bytes(&self) -> u64 {
        let layout = self.info.as_ref().zip(self.codec);
        layout.map_or(0, |(info, codec)| info.layout(codec).block_bytes() as u64)
    }
}

impl Daemon {
    /// The cached prompts of `peer`, most recently used first as far as that is known: those in
    /// memory before those that are on disk only.
    pub(super) async fn entries(&self, peer: Peer) -> Result<Vec<Entry>, Refusal> {
        let identity = peer.namespace("").identity;
        let known = self.known();
        let mut entries = Vec::new();
        let mut places = HashMap::new();
        for engine in self.answering() {
            for held in ask(&engine, |engine| engine.list()).await? {
                if held.fields.identity != identity {
                    continue;
                }
                let length = count(held.tokens.len());
                let end = held.end.clone();
                let mut entry = Entry::new(held.key, end, length, held.fields, &known);
                entry.tokens = Some(held.tokens.clone());
                entry.memory = Some(held);
                places.insert(entry.key, entries.len());
                entries.push(entry);
            }
        }
        let mut on_disk = self.in_store(on_disk).await.unwrap_or_default();
        on_disk.retain(|(_, fields)| fields.identity == identity);
        for (disk, fields) in on_disk {
            let place = *places.entry(disk.key).or_insert_with(|| {
                let end = disk.end.clone();
                entries.push(Entry::new(disk.key, end, disk.tokens, fields, &known));
                entries.len() - 1
            });
            entries[place].disk = Some(disk);
        }
        Ok(entries)
    }

    /// The one cached prompt of `peer` whose key begins with `prefix`.
    pub(super) async fn entry(&self, peer: Peer, prefix: &str) -> Result<Entry, Refusal> {
        let prefix = prefix.to_ascii_lowercase();
        let digits = prefix.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !digits || !(MIN_DIGITS..=64).contains(&prefix.len()) {
            return Err(Refusal::MalformedKey { key: prefix });
        }
        let mut found = self.entries(peer).await?;
        found.retain(|entry| entry.key.to_string().starts_with(&prefix));
        let count = Count::from(found.len());
        match (found.pop(), found.is_empty()) {
            (None, _) => Err(Refusal::UnknownKey { key: prefix }),
            (Some(entry), true) => Ok(entry),
            (Some(_), false) => Err(Refusal::AmbiguousKey { key: prefix, count }),
        }
    }

    /// The ids of an entry, read from disk if need be. `None` when they cannot be read.
    pub(super) async fn tokens<'a>(&self, entry: &'a mut Entry) -> Option<&'a [u32]> {
        if entry.tokens.is_none() {
            let (fingerprint, key) = (entry.fingerprint, entry.key);
            entry.tokens = self.in_store(move |store| store.tokens(&fingerprint, &key)).await?;
        }
        entry.tokens.as_deref()
    }

    /// The text of an entry. `None` when its model is not loaded, or its ids cannot be read.
    pub(super) async fn text(&self, entry: &mut Entry) -> Option<String> {
        let served = entry.served.clone()?;
        Some(served.tokenizer.decode(self.tokens(entry).await?))
    }

    /// The blocks of an entry whose ids are known, and who holds each.
    pub(super) async fn blocks(&self, entry: &Entry) -> Result<Vec<CacheBlock>, Refusal> {
        let keys = entry.keys();
        let mut memory = vec![false; keys.len()];
        for engine in self.answering() {
            let asked = Arc::clone(&keys);
            let holds = ask(&engine, move |engine| engine.holds(asked)).await?;
            memory.iter_mut().zip(holds).for_each(|(memory, holds)| *memory |= holds);
        }
        let disk = self.store.as_ref().map(|store| store.holds(&entry.fingerprint, &keys));
        let disk = disk.unwrap_or_else(|| vec![false; keys.len()]);
        let bytes = entry.block_bytes();
        let blocks = keys.iter().zip(memory).zip(disk).map(|((key, memory), disk)| CacheBlock {
            key: key.to_string(),
            memory,
            disk,
            bytes,
        });
        Ok(blocks.collect())
    }

    fn known(&self) -> Known {
        let slots = self.models.all();
        let served = |slot: &Slot| match slot.readiness() {
            Readiness::Ready(served) => Some(served),
            _ => None,
        };
        Known {
            infos: slots.iter().filter_map(Slot::info).collect(),
            loaded: slots.iter().filter_map(served).collect(),
        }
    }
}

/// All chain ends on disk whose families are known, most recently used first.
fn on_disk(store: &store::StoreHandle) -> Vec<(store::ChainEnd, Fields)> {
    let mut entries = store.list();
    entries.sort_by_key(|entry| std::cmp::Reverse(entry.used_ms));
    let known = entries.into_iter().filter_map(|entry| {
        let fields = store.fields(&entry.fingerprint)?;
        Some((entry, fields))
    });
    known.collect()
}
