//! The store as everyone else sees it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Sender};

use super::clean::Collected;
use super::glimpse::Glimpse;
use super::loader::{Job, Loader};
use super::promise::Promise;
use super::remove::{Removed, Target};
use super::shared::Shared;
use super::side::Side;
use super::stats::Stats;
use super::verify::Verified;
use super::writer::{Order, Queued};
use super::{ChainEnd, Family, Lookalike, Relative, Restore, Restored, Save};
use crate::kv::key::{BlockKey, End, Fields, Fingerprint, RecordKey, ShortKey};
use crate::kv::pin::{Lease, NoRoom, Pinned};
use crate::sys::mmap::Map;

/// A cheap, cloneable way to the disk tier.
#[derive(Debug, Clone)]
pub struct StoreHandle {
    pub(super) shared: Arc<Shared>,
    orders: Sender<Order>,
    loaders: Arc<[Loader]>,
}

impl StoreHandle {
    pub(super) fn new(shared: Arc<Shared>, orders: Sender<Order>, loaders: Arc<[Loader]>) -> Self {
        Self { shared, orders, loaders }
    }

    /// The directory of this version's files, for others' small ones that belong with them.
    pub fn dir(&self) -> &std::path::Path {
        self.shared.root()
    }

    /// Maps a side file, and makes it the most recently used one. What is in it is not verified.
    pub fn side(&self, key: ShortKey) -> Option<Arc<Map>> {
        self.shared.map_side(key)
    }

    /// Unlinks a side file that is not what it should be, or of no more use.
    pub fn drop_side(&self, key: ShortKey) {
        self.shared.drop_side(key);
    }

    /// Has a side file written, in the writer's spare time, unless it is there.
    pub fn keep_side(&self, side: Side) {
        // A writer that is gone writes nothing.
        let _ = self.orders.send(Order::Side(side));
    }

    /// Remembers what a family is made from, for the reasons of misses.
    pub fn declare(&self, family: &Family) {
        self.shared.catalogue().declare(family.fingerprint, family.fields);
    }

    /// Calls `hook` when the disk is full of segments whose blocks others hold, or when as many
    /// are mapped as may be: with the keys of blocks that should be let go of. It is called on a
    /// thread of the store, which then waits for a moment, and must not wait itself.
    pub fn on_pressure(&self, hook: impl Fn(&[BlockKey]) + Send + Sync + 'static) {
        self.shared.catalogue().pressure.push(Arc::new(hook));
    }

    /// Whether a loader would find anything useful; `record` is the key of the whole prompt's
    /// record. One look at the catalogue.
    pub fn may_have(&self, asked: &Restore, record: RecordKey) -> bool {
        self.shared.catalogue().may_have(asked, record)
    }

    /// Has a loader find everything that helps with a prompt, and calls `reply` on its thread.
    pub fn restore(&self, asked: Restore, reply: Box<dyn FnOnce(Restored) + Send>) {
        self.load(Job::Restore(Box::new(asked), Promise::new(reply)));
    }

    /// Has a loader look what would be found for a prompt, and calls `reply` on its thread.
    pub fn glimpse(&self, asked: Restore, reply: Box<dyn FnOnce(Glimpse) + Send>) {
        self.load(Job::Glimpse(Box::new(asked), Promise::new(reply)));
    }

    fn load(&self, job: Job) {
        let waiting = |loader: &&Loader| loader.waiting.load(Ordering::Relaxed);
        let Some(idle) = self.loaders.iter().min_by_key(waiting) else { return };
        idle.waiting.fetch_add(1, Ordering::Relaxed);
        // A loader that is gone drops the promise, which answers that nothing was found.
        idle.send(job);
    }

    /// The ids of what follows the block `last` on disk and goes on most like `rest`, even if
    /// nothing of it does, as far as headers in memory tell. One look at the catalogue.
    pub fn follows(
        &self,
        fingerprint: &Fingerprint,
        last: BlockKey,
        rest: &[u32],
    ) -> Option<Vec<u32>> {
        self.shared.catalogue().follows(fingerprint, last, rest)
    }

    /// Queues blocks and a record for the writer. `false` when there is no room in the queue: the
    /// save is dropped, and whoever waits for a durable one is told so.
    pub fn save(&self, save: Save) -> bool {
        let shared = &self.shared;
        let queued = Queued::new(save, shared);
        shared.remember(&queued);
        let waiting = shared.tally.queue_bytes.count();
        // One save of any size always fits: its blocks are in memory anyway.
        if waiting > 0 && waiting + queued.bytes > shared.tuning.queue {
            shared.tally.dropped_writes.add(1);
            return false;
        }
        let bytes = queued.bytes;
        shared.tally.queue_bytes.add(bytes);
        let sent = self.orders.send(Order::Save(Box::new(queued))).is_ok();
        if !sent {
            shared.tally.queue_bytes.sub(bytes);
        }
        sent
    }

    /// The nearest relative of a prompt that missed. One look at the catalogue.
    pub fn relative(&self, asked: &Lookalike) -> Option<Relative> {
        self.shared.catalogue().relative(asked)
    }

    /// What a family is made from, when it was declared or its digest file could be read.
    pub fn fields(&self, fingerprint: &Fingerprint) -> Option<Fields> {
        self.shared.catalogue().shelf(fingerprint)?.fields
    }

    /// All chain ends. May read headers: call it off the runtime.
    pub fn list(&self) -> Vec<ChainEnd> {
        self.shared.list()
    }

    /// Which of these blocks of a family the disk holds, as far as headers were read. One look at
    /// the catalogue.
    pub fn holds(&self, fingerprint: &Fingerprint, keys: &[BlockKey]) -> Vec<bool> {
        let catalogue = self.shared.catalogue();
        keys.iter().map(|key| catalogue.place(fingerprint, key).is_some()).collect()
    }

    /// The token ids of the chain that ends with `key`. Reads headers.
    pub fn tokens(&self, fingerprint: &Fingerprint, key: &RecordKey) -> Option<Vec<u32>> {
        self.shared.tokens(fingerprint, key)
    }

    /// Removes a chain end and what goes with it ([`crate::kv::remove`]), after everything that was
    /// saved before. Waits for the disk.
    pub fn remove(&self, fingerprint: &Fingerprint, end: &End) -> Removed {
        self.order_removal(Target::Chain(*fingerprint, end.clone()))
    }

    /// Removes everything. Waits for the disk.
    pub fn remove_all(&self) -> Removed {
        self.order_removal(Target::Everything)
    }

    /// Keeps a chain from eviction, after everything that was saved before; `None` when the disk does
    /// not have all of it. Waits for the disk.
    ///
    /// # Errors
    /// When pins would hold more than half of a budget. What is pinned already is always renewed.
    pub fn pin(&self, lease: Lease) -> Result<Option<Pinned>, NoRoom> {
        self.order(|reply| Order::Pin(lease, reply)).unwrap_or(Ok(None))
    }

    /// Lets a prompt be evicted again. Waits for the disk.
    pub fn unpin(&self, key: RecordKey) {
        let _ = self.order(|reply| Order::Unpin(key, reply));
    }

    /// What is pinned. One look at the catalogue.
    pub fn leases(&self) -> Vec<Lease> {
        self.shared.catalogue().pins.book.iter().cloned().collect()
    }

    /// Reads every file again and compares every checksum; with `repair`, sets damaged ones
    /// aside. Waits for the disk, for long.
    pub fn verify(&self, repair: bool) -> Verified {
        self.shared.verify(repair)
    }

    /// Enforces the budgets and removes temporary, quarantined and foreign files. Waits for the
    /// disk.
    pub fn gc(&self) -> Collected {
        self.order(Order::Collect).unwrap_or_default()
    }

    /// Shortest chain, in tokens, that is worth a file.
    pub fn minimum_tokens(&self) -> usize {
        self.shared.settings.minimum_tokens
    }

    /// Where the store stands. One look at the catalogue.
    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }

    /// Waits until everything that was saved before is written or dropped.
    pub fn flush(&self) {
        // A writer that is gone has nothing left to write.
        let _ = self.order(Order::Flush);
    }

    fn order_removal(&self, target: Target) -> Removed {
        self.order(|reply| Order::Remove(target, reply)).unwrap_or_default()
    }

    fn order<T>(&self, order: impl FnOnce(Sender<T>) -> Order) -> Option<T> {
        let (reply, answer) = mpsc::channel();
        self.orders.send(order(reply)).ok()?;
        answer.recv().ok()
    }
}
