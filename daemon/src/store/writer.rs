//! Writing behind: one thread that owns every change of the disk but quarantine.
//!
//! Saves wait in a queue that is bounded by their bytes; what does not fit is dropped and counted,
//! for the cache may forget. Removal and collection go through the same queue, so that they come
//! after the saves that were asked for before them.

use std::fs;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use super::catalogue::{Farewell, FileId};
use super::promise::Promise;
use super::publish::{Published, Unwritten, sync_dir};
use super::remove::Target;
use super::rewrite::Kind;
use super::shared::Shared;
use super::side::{Side, Writing};
use super::{Collected, Durability, Family, Removed, Save, head_digest, record};
use crate::kv::block::Block;
use crate::kv::key::{BlockKey, RecordKey};
use crate::kv::layout::{BLOCK, Layout};
use crate::kv::pin::{Lease, NoRoom, Pinned};
use crate::kv::record::Record;
use crate::sys::heap;

/// How often modification times follow what was used.
const HOUSEKEEPING: Duration = Duration::from_secs(10);
/// Modification times set in one go.
const TIMES: usize = 256;

/// What the writer is asked to do.
pub(super) enum Order {
    Save(Box<Queued>),
    Side(Side),
    Remove(Target, Sender<Removed>),
    Pin(Lease, Sender<Result<Option<Pinned>, NoRoom>>),
    Unpin(RecordKey, Sender<()>),
    Collect(Sender<Collected>),
    Flush(Sender<()>),
    Close,
}

/// A save that waits.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) family: Arc<Family>,
    pub(super) blocks: Vec<Arc<Block>>,
    pub(super) record: Option<Arc<Record>>,
    pub(super) replace: bool,
    durable: Option<Promise<bool>>,
    published: Promise<Vec<Arc<Block>>>,
    /// What waits in memory for its sake.
    pub(super) bytes: u64,
}

/// The writer's thread: serves orders until it is told to close.
pub(super) fn run(shared: &Shared, orders: &Receiver<Order>) {
    shared.drop_other_versions();
    let mut cleaned = Instant::now();
    let mut sides = Vec::new();
    loop {
        let patience = if sides.is_empty() { HOUSEKEEPING } else { Duration::ZERO };
        match orders.recv_timeout(patience) {
            Ok(Order::Close) | Err(RecvTimeoutError::Disconnected) => break,
            Ok(order) => shared.obey(order, &mut sides),
            Err(RecvTimeoutError::Timeout) => shared.go_on(&mut sides),
        }
        if cleaned.elapsed() >= HOUSEKEEPING && shared.expect_home().is_ok() {
            shared.set_times(TIMES);
            cleaned = Instant::now();
        }
    }
    shared.set_times(usize::MAX);
}

impl Queued {
    /// Weighs a save: blocks that are mapped or on the disk keep no memory.
    pub(super) fn new(save: Save, shared: &Shared) -> Self {
        let Save { family, blocks, record, replace, durability, published } = save;
        let durable = match durability {
            Durability::Behind => None,
            Durability::Durable(reply) => Some(Promise::new(reply)),
        };
        let published = Promise::new(published);
        let mut queued = Self { family, blocks, record, replace, durable, published, bytes: 0 };
        let blocks = shared.absent(&queued);
        let blocks: usize = blocks.iter().map(|block| block.heap_bytes()).sum();
        let record = queued.record.as_ref().map_or(0, |record| record.bytes());
        queued.bytes = (blocks + record) as u64;
        queued
    }

    fn kind(&self) -> Kind {
        Kind { fingerprint: self.family.fingerprint, layout: self.family.layout.digest() }
    }

    /// The last block of the chain that is saved.
    fn last(&self) -> Option<BlockKey> {
        let record = self.record.as_ref().map(|record| record.last);
        record.or_else(|| self.blocks.last().map(|block| block.key))
    }
}

impl Shared {
    fn obey<'a>(&'a self, order: Order, sides: &mut Vec<Writing<'a>>) {
        match order {
            Order::Save(save) => self.save(*save),
            Order::Side(side) if sides.iter().any(|begun| begun.key() == side.key) => {}
            Order::Side(side) => match self.begin_side(side) {
                Ok(begun) => sides.extend(begun),
                Err(unwritten) => self.forgo_side(&unwritten),
            },
            Order::Remove(target, reply) => {
                if matches!(target, Target::Everything) {
                    sides.clear();
                }
                let _ = reply.send(self.remove(target));
            }
            Order::Pin(lease, reply) => _ = reply.send(self.pin(lease)),
            Order::Unpin(key, reply) => {
                self.unpin(&key);
                let _ = reply.send(());
            }
            Order::Collect(reply) => _ = reply.send(self.collect()),
            Order::Flush(reply) => {
                while !sides.is_empty() {
                    self.go_on(sides);
                }
                let _ = reply.send(());
            }
            Order::Close => {}
        }
    }

    /// Writes a piece of a side file, if one is wanted. Everything else comes first.
    fn go_on<'a>(&'a self, sides: &mut Vec<Writing<'a>>) {
        match sides.pop().map(Writing::go_on) {
            None => return,
            Some(Ok(Some(unfinished))) => return sides.push(unfinished),
            Some(Ok(None)) => {}
            Some(Err(unwritten)) => self.forgo_side(&unwritten),
        }
        // Its pieces may have been the last of a model that was unloaded meanwhile.
        heap::give_back();
    }

    fn save(&self, save: Queued) {
        let (published, result) = self.write(&save);
        if let Err(unwritten) = &result {
            self.count(unwritten);
        }
        let durable = result.is_ok() && save.durable.is_some() && self.sync_chain(&save);
        self.tally.queue_bytes.sub(save.bytes);
        save.published.keep(blocks_of(&published, &save.family.layout));
        if let Some(promise) = save.durable {
            promise.keep(durable);
        }
    }

    /// Remembers what a prompt begins with before anything of it is written: the next prompt may
    /// come sooner, under another family.
    pub(super) fn remember(&self, save: &Queued) {
        let root = BlockKey::root(&save.family.fingerprint);
        let first = save.blocks.first().filter(|block| block.parent == root);
        let short = save.record.as_ref().filter(|record| record.last == root);
        let head = first.map(|block| &block.tokens[..]).or(short.map(|record| &record.tail[..]));
        let text = save.record.as_ref().and_then(|record| record.text);
        let (family, identity) = (save.family.fingerprint.short(), save.family.fields.identity);
        let mut catalogue = self.catalogue();
        for mark in head.map(head_digest).into_iter().chain(text) {
            catalogue.history.seen(identity, family, mark);
        }
    }

    /// Writes what is not there yet.
    fn write(&self, save: &Queued) -> (Vec<Published>, Result<(), Unwritten>) {
        if let Err(unwritten) = self.prepare(save) {
            return (Vec::new(), Err(unwritten));
        }
        let kind = save.kind();
        let blocks = match save.replace {
            true => self.replacement(kind, save.blocks.clone()),
            false => self.absent(save),
        };
        let (mut published, mut result) = self.write_runs(kind, &blocks, save.durable.is_some());
        self.drop_covered(save);
        if let Some(record) = save.record.as_ref().filter(|_| result.is_ok()) {
            result = self.write_record(save, record);
        }
        if let Some((merged, parts)) = published.last().and_then(|last| self.merge(kind, last.id)) {
            published.retain(|segment| !parts.contains(&segment.id));
            published.push(merged);
        }
        self.touch(save);
        (published, result)
    }

    /// Everything that comes before the first byte.
    fn prepare(&self, save: &Queued) -> Result<(), Unwritten> {
        if self.closing.get().is_some_and(|deadline| Instant::now() > *deadline) {
            return Err(Unwritten::Closing);
        }
        self.expect_root()?;
        self.expect_awake()?;
        self.expect_length(save)?;
        self.expect_family(save.family.fingerprint.short());
        self.catalogue().declare(save.family.fingerprint, save.family.fields);
        // Nothing is written or evicted before it is known what is there.
        self.read_all_headers();
        self.touch(save);
        self.publish_fields(&save.family)
    }

    /// Refuses chains that are cheaper to compute than to keep. A run that continues what is on
    /// the disk was long enough before.
    fn expect_length(&self, save: &Queued) -> Result<(), Unwritten> {
        let minimum = self.settings.minimum_tokens;
        let at_root = match save.blocks.first() {
            Some(block) => block.parent == BlockKey::root(&save.family.fingerprint),
            None => false,
        };
        let counted = save.blocks.len() * BLOCK;
        let tokens = match &save.record {
            Some(record) => record.length as usize,
            None if at_root => counted,
            None => return Ok(()),
        };
        let short = Unwritten::BelowMinimum { tokens, minimum };
        if tokens < minimum { Err(short) } else { Ok(()) }
    }

    /// The blocks that are not on the disk.
    pub(super) fn absent(&self, save: &Queued) -> Vec<Arc<Block>> {
        let catalogue = self.catalogue();
        let fingerprint = &save.family.fingerprint;
        let absent = |block: &&Arc<Block>| catalogue.place(fingerprint, &block.key).is_none();
        save.blocks.iter().filter(absent).cloned().collect()
    }

    fn write_record(&self, save: &Queued, record: &Record) -> Result<(), Unwritten> {
        let kind = save.kind();
        let follows = || match self.catalogue().chain(&kind.fingerprint, record.last).whole {
            true => Ok(()),
            false => Err(Unwritten::Orphan),
        };
        follows()?;
        let (head, bytes) = record::encode(kind.fingerprint, kind.layout, record);
        if !save.replace && self.has_record(&head) {
            return Ok(());
        }
        let reserved = self.reserve_record(bytes.len() as u64)?;
        // Making room may have evicted the blocks before it.
        follows()?;
        self.publish_record(head, &bytes, save.durable.is_some(), reserved).map(drop)
    }

    /// Whether there is a record that is as good: one with a hidden state is never superseded.
    fn has_record(&self, head: &record::Head) -> bool {
        let catalogue = self.catalogue();
        let known = catalogue.record(&head.fingerprint, head.last, head.key);
        known.is_some_and(|(_, known)| known.complete || !head.complete)
    }

    /// Drops records whose tail is the beginning of a block that is now on the disk, unless they
    /// hold a hidden state.
    fn drop_covered(&self, save: &Queued) {
        let covered: Vec<_> = {
            let catalogue = self.catalogue();
            let fingerprint = &save.family.fingerprint;
            let written = |block: &&Arc<Block>| catalogue.place(fingerprint, &block.key).is_some();
            let blocks = save.blocks.iter().filter(written);
            blocks.flat_map(|block| catalogue.covered(fingerprint, block)).collect()
        };
        covered.into_iter().for_each(|id| self.discard(id, Farewell::Gone));
    }

    /// Marks the whole chain as just used.
    fn touch(&self, save: &Queued) {
        let Some(last) = save.last() else { return };
        let mut catalogue = self.catalogue();
        let fingerprint = &save.family.fingerprint;
        let chain = catalogue.chain(fingerprint, last).segments.into_iter().map(|(id, _)| id);
        let record = save.record.as_ref().and_then(|record| {
            catalogue.record(fingerprint, record.last, record.key).map(|(id, _)| id)
        });
        let files: Vec<_> = chain.chain(record).collect();
        catalogue.touch(&files);
    }

    /// Makes the saved chain durable from its root on: parts of it may have been written behind.
    fn sync_chain(&self, save: &Queued) -> bool {
        let Some(last) = save.last() else { return false };
        let (files, whole) = self.unsynced(save, last);
        let synced = files.iter().all(|id| self.sync_file(*id));
        let dir = self.dir(save.family.fingerprint.short());
        let named = files.is_empty() || (sync_dir(&dir).is_ok() && sync_dir(self.root()).is_ok());
        if synced && named {
            let mut catalogue = self.catalogue();
            files.iter().for_each(|id| catalogue.set_synced(*id));
        }
        whole && synced && named && self.expect_home().is_ok()
    }

    fn unsynced(&self, save: &Queued, last: BlockKey) -> (Vec<FileId>, bool) {
        let catalogue = self.catalogue();
        let fingerprint = &save.family.fingerprint;
        let chain = catalogue.chain(fingerprint, last);
        let record = save
            .record
            .as_ref()
            .map(|record| catalogue.record(fingerprint, record.last, record.key).map(|(id, _)| id));
        let whole = chain.whole && record != Some(None);
        let files = chain.segments.iter().map(|(id, _)| *id).chain(record.flatten());
        let unsynced = |id: &FileId| catalogue.entry(*id).is_some_and(|entry| !entry.synced);
        (files.filter(unsynced).collect(), whole)
    }

    fn sync_file(&self, id: FileId) -> bool {
        let Some((.., path)) = self.locate(id) else { return false };
        fs::File::open(path).and_then(|file| file.sync_all()).is_ok()
    }

    fn count(&self, unwritten: &Unwritten) {
        match unwritten {
            Unwritten::BelowMinimum { .. } => {
                return tracing::debug!(%unwritten, "not kept on disk");
            }
            Unwritten::Io(_) => self.tally.write_errors.add(1),
            _ => {}
        }
        self.tally.dropped_writes.add(1);
        if matches!(unwritten, Unwritten::Moved(_)) {
            // It was said when it was noticed.
            return;
        }
        if unwritten.is_full() {
            self.pause();
        }
        tracing::warn!(reason = %unwritten, "a save was dropped");
    }

    /// Lets modification times follow what was used, so that eviction goes on after a restart
    /// where it stopped.
    fn set_times(&self, most: usize) {
        let touched = self.catalogue().take_touched(most);
        for (family, name, used) in touched {
            let time = std::time::UNIX_EPOCH + Duration::from_nanos(used);
            // A file that is gone needs no time.
            let Ok(file) = fs::File::open(self.path(family, name)) else { continue };
            let _ = self.home.permit().map(|permit| permit.set_modified(&file, time));
        }
    }
}

/// The blocks of segments that were written, where they have the family's sizes: old blocks that
/// were written again with new ones are what was found on the disk.
fn blocks_of(published: &[Published], layout: &Layout) -> Vec<Arc<Block>> {
    let mapped = |segment: &Published| {
        let mapping = segment.mapping.clone()?;
        mapping.header.expect_layout(layout).ok()?;
        let blocks = 0..mapping.header.blocks.len();
        Some(blocks.map(move |index| Arc::new(super::loader::mapped(&mapping, index))))
    };
    published.iter().filter_map(mapped).flatten().collect()
}
