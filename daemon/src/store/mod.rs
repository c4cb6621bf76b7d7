//! The disk tier: immutable segment files, mapped and verified by loader threads, written behind
//! by a writer thread, evicted by LRU under byte budgets.
//!
//! A cache may forget, never lie: an unreadable or mismatching file is a logged miss, never an
//! error to a caller and never a wrong answer.
//! Nothing here knows models or numbers: a part is bytes with a checksum.
//!
//! [`StoreHandle`] is the whole interface. What an engine calls never waits for a disk: it looks at
//! the catalogue, or it queues work for the loaders or the writer, which answer through a callback.
//! What `cache` commands call does wait, and says so.
//!
//! ```text
//!  handle ── may_have, relative ──▶ catalogue: names, headers, order of use (one lock, no I/O)
//!    │                                ▲  ▲
//!    ├── restore ──▶ loader ──────────┘  │   map, fault in, verify, hand out
//!    └── save ─────▶ writer ─────────────┘   account, evict, write, rename, map, publish
//! ```
//!
//! Invariants:
//! * a published file never changes; what leaves is unlinked, and mappings keep its bytes;
//! * the writer's thread alone creates and evicts files; damaged ones are set aside, and ones whose
//!   blocks all lie in others unlinked, by whoever finds them; no name is given to a file while
//!   another thread takes it from one;
//! * whatever changes a file holds a permit of `home`, given while the directory is the locked one;
//! * nothing on the disk is believed: the formats (`docs/format.md`) have one way to write each
//!   thing, and readers check every byte of it before anyone sees it.

mod handle;
mod open;

// What is known of the disk.
mod catalogue;
mod lookup;
mod shelf;

mod contents;
mod history;

// Reading it.
mod glimpse;
mod loader;
mod mappings;

// Changing it.
mod writer;

mod publish;
mod rewrite;

mod home;
mod leave;
mod pins;
mod remove;
mod room;
mod side;
mod vanished;

// Looking after it.
mod clean;
mod list;
mod stats;
mod verify;

// What the threads share.
mod clock;
mod promise;
mod shared;

// What lies on it.
mod name;

mod fields;
mod record;
mod segment;

mod coding;
mod damage;

#[cfg(fuzzing)]
pub mod fuzz;
#[cfg(test)]
mod tests;

pub use clean::Collected;
pub use glimpse::{Glimpse, Glimpsed};
pub use handle::StoreHandle;
pub use open::{OpenError, StoreThreads, open};
pub use remove::Removed;
pub use side::Side;
pub use stats::Stats;
pub use verify::Verified;

pub use crate::kv::pin::{LONGEST as LONGEST_LEASE, Lease, NoRoom, Pinned};

use std::path::PathBuf;
use std::sync::Arc;

use crate::kv::block::Block;
use crate::kv::key::{BlockKey, Digest, End, Field, Fields, Fingerprint, RecordKey};
use crate::kv::layout::Layout;
use crate::kv::record::Record;

/// What the store is told at start.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The cache directory; created with mode 0700.
    pub dir: PathBuf,
    /// Most bytes on disk over all models.
    pub disk_budget: u64,
    /// Free bytes on the file system below which nothing is written.
    pub free_floor: u64,
    /// Most bytes written in 24 hours; `None` for no limit.
    pub daily_writes: Option<u64>,
    /// Most segments mapped at once.
    pub mappings: usize,
    /// Shortest chain, in tokens, that is written.
    pub minimum_tokens: usize,
    /// The daemon's socket, told to whoever meets the lock.
    pub socket: PathBuf,
}

/// A chain family: everything that its blocks have in common.
#[derive(Debug, Clone)]
pub struct Family {
    /// The name.
    pub fingerprint: Fingerprint,
    /// What the name was made from.
    pub fields: Fields,
    /// Where the bytes lie.
    pub layout: Arc<Layout>,
    /// C: how many numbers a final hidden state has.
    pub width: usize,
}

/// A question to a loader: what is there of this prompt?
#[derive(Debug, Clone)]
pub struct Restore {
    /// Under which family.
    pub family: Arc<Family>,
    /// The prompt.
    pub tokens: Arc<[u32]>,
    /// The keys of all its whole blocks.
    pub keys: Arc<[BlockKey]>,
    /// How many leading blocks the asker already has.
    pub from: usize,
}

/// A loader's answer. Everything in it is mapped, faulted in and verified.
#[derive(Debug, Default)]
pub struct Restored {
    /// The blocks `from..`, without a gap.
    pub blocks: Vec<Arc<Block>>,
    /// A block that begins like the rest of the prompt after `blocks`, if any: the one with most
    /// tokens in common.
    pub partial: Option<Arc<Block>>,
    /// The record of the whole prompt, else the record with the longest tail in common after
    /// `blocks`.
    pub record: Option<Arc<Record>>,
    /// A file that should have helped was damaged and is quarantined.
    pub corrupt: bool,
    /// A file that should have helped could not be read.
    pub io_error: bool,
}

/// Whether a save is waited for.
pub enum Durability {
    /// Written soon, synced by the system.
    Behind,
    /// Synced, file and directory, before the callback is called with whether it succeeded.
    Durable(Box<dyn FnOnce(bool) + Send>),
}

impl std::fmt::Debug for Durability {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if matches!(self, Self::Behind) { "Behind" } else { "Durable" })
    }
}

/// Blocks to keep: a run of consecutive blocks of one chain.
pub struct Save {
    /// Under which family.
    pub family: Arc<Family>,
    /// The run; blocks that are on disk already are skipped by the writer.
    pub blocks: Vec<Arc<Block>>,
    /// A record to keep with them.
    pub record: Option<Arc<Record>>,
    /// Write blocks that are on disk already, and drop the old ones once the new are published.
    pub replace: bool,
    /// Whether to sync.
    pub durability: Durability,
    /// Called on the writer's thread with the blocks that were written, now backed by their mapped
    /// segments: without those that were on disk already, and with earlier blocks of the chain
    /// that were written again along with them.
    pub published: Box<dyn FnOnce(Vec<Arc<Block>>) + Send>,
}

impl std::fmt::Debug for Save {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let blocks = self.blocks.len();
        write!(f, "Save({:?}, {blocks} blocks, {:?})", self.family.fingerprint, self.durability)
    }
}

/// Why nothing was found, as far as files and history tell.
#[derive(Debug, Clone, PartialEq)]
pub enum Relative {
    /// The same tokens (or the same text) are known to this identity under a family that differs
    /// first in this field.
    Differs(Field),
    /// The same tokens were there and were evicted.
    Evicted,
}

/// What a miss is compared with.
#[derive(Debug, Clone)]
pub struct Lookalike {
    /// The asker's fields; only relatives of the same identity are seen.
    pub fields: Fields,
    /// [`head_digest`] of the prompt.
    pub head: Digest,
    /// [`text_digest`] of the prompt, when it came as text.
    pub text: Option<Digest>,
}

/// Stands for the first tokens of a prompt (a block, or all when fewer), whatever the family.
pub fn head_digest(tokens: &[u32]) -> Digest {
    let head = &tokens[..tokens.len().min(crate::kv::layout::BLOCK)];
    Digest::of("head", &head.iter().flat_map(|token| token.to_le_bytes()).collect::<Vec<_>>())
}

/// Stands for a prompt's text, whatever the tokenizer.
pub fn text_digest(text: &str) -> Digest {
    Digest::of("text", text.as_bytes())
}

/// A chain end on the disk, as `cache ls` lists it.
#[derive(Debug, Clone)]
pub struct ChainEnd {
    /// The prompt key.
    pub key: RecordKey,
    /// Under which family.
    pub fingerprint: Fingerprint,
    /// Tokens of the chain.
    pub tokens: u32,
    /// Bytes on disk of the record and of the chain's blocks.
    pub bytes: u64,
    /// Whether the record holds a final hidden state.
    pub complete: bool,
    /// When its end was written, in milliseconds since the epoch, where the file system knows.
    pub created_ms: Option<u64>,
    /// Last use, in milliseconds since the epoch; future times are clamped to now.
    pub used_ms: u64,
    /// Until when it is pinned, in milliseconds since the epoch.
    pub pinned_ms: Option<u64>,
    /// Where it is.
    pub end: End,
}
