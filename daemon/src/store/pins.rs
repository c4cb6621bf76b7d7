//! Pins on disk: files that eviction passes over, and the small file that lets them survive the
//! daemon.
//!
//! ```text
//!      0   8  magic "tgkv-pin"
//!      8   4  format version, 1
//!     12   4  n: number of pins, 1 to 1024
//!     16      n times: fingerprint (32), last whole block or the chain's root (32), when the lease
//!             ends in milliseconds since the epoch (8), t: tokens after the block (4), which are
//!             31 at most, and their ids of 4 bytes each
//!         32  blake3 of everything before
//! ```
//!
//! A damaged file costs the pins that are in it. There is none while nothing is pinned.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::io::Read;
use std::path::Path;

use super::catalogue::{Catalogue, FileId};
use super::coding::{Decoder, Encoder, SUM, expect_count, expect_kind, summed};
use super::contents::Contents;
use super::damage::{Damage, Fault};
use super::name::{PINS, VERSION};
use super::publish::Unwritten;
use super::room::RECORD_SHARE;
use super::shared::Shared;
use crate::kv::key::{BlockKey, End, Fingerprint, RecordKey};
use crate::kv::layout::BLOCK;
use crate::kv::pin::{Book, LONGEST, Lease, MOST, NoRoom, Pinned, Share, milliseconds, now};
use crate::sys::file;

const MAGIC: [u8; 8] = *b"tgkv-pin";

/// Bytes before the first lease.
const HEAD: usize = 16;
/// The longest file of pins.
const LONGEST_FILE: u64 = (HEAD + MOST * (76 + (BLOCK - 1) * 4) + SUM) as u64;

/// The leases, and what they hold.
#[derive(Debug)]
pub(super) struct Pins {
    pub(super) book: Book,
    /// Bytes of the file that has them.
    pub(super) file_bytes: u64,
    /// Most bytes on disk.
    budget: u64,
    /// `None` when it is to be found out again.
    held: Option<Held>,
}

/// Files that eviction passes over.
#[derive(Debug, Default)]
struct Held {
    files: HashSet<FileId>,
    segment_bytes: u64,
    record_bytes: u64,
    /// When the first lease ends.
    until: Option<u64>,
}

/// The files of a leased chain.
#[derive(Debug, Default)]
struct Files {
    ids: Vec<FileId>,
    segment_bytes: u64,
    record_bytes: u64,
}

impl Pins {
    pub(super) fn new(budget: u64) -> Self {
        Self { book: Book::default(), file_bytes: 0, budget, held: None }
    }

    /// Whether eviction passes over a file, as far as [`Catalogue::see_pins`] has seen.
    pub(super) fn hold(&self, id: FileId) -> bool {
        self.held.as_ref().is_some_and(|held| held.files.contains(&id))
    }

    /// A file was entered, which may belong to a leased chain.
    pub(super) fn file_comes(&mut self) {
        self.held = None;
    }

    pub(super) fn file_goes(&mut self, id: FileId) {
        if self.hold(id) {
            self.held = None;
        }
    }

    fn is_current(&self) -> bool {
        let held = self.held.as_ref();
        held.is_some_and(|held| held.until.is_none_or(|until| until > now()))
    }
}

impl Held {
    fn add(&mut self, files: Files) {
        self.files.extend(files.ids);
        self.segment_bytes += files.segment_bytes;
        self.record_bytes += files.record_bytes;
    }

    /// Refuses files that would hold more than pins may.
    fn expect_room(&self, files: &Files, budget: u64) -> Result<(), NoRoom> {
        Share { what: "bytes on disk", held: self.bytes(), budget }.expect_room(files.bytes())?;
        let (held, budget) = (self.record_bytes, budget / RECORD_SHARE);
        Share { what: "bytes of records on disk", held, budget }.expect_room(files.record_bytes)
    }

    fn bytes(&self) -> u64 {
        self.segment_bytes + self.record_bytes
    }
}

impl Files {
    fn bytes(&self) -> u64 {
        self.segment_bytes + self.record_bytes
    }
}

impl Catalogue {
    /// Finds out what the leases hold, unless it is known. Those that do not fit, since the budget
    /// was larger when they were given, hold nothing; the ones that end last come first.
    pub(super) fn see_pins(&mut self) {
        if self.pins.is_current() {
            return;
        }
        let ended = self.pins.book.ended(now());
        ended.iter().for_each(|key| _ = self.pins.book.remove(key));
        let mut held = Held { until: self.pins.book.first_end(), ..Held::default() };
        let mut leases: Vec<_> = self.pins.book.iter().collect();
        leases.sort_by_key(|lease| Reverse(lease.until));
        for lease in leases {
            let files = self.files_of(lease, &held);
            if held.expect_room(&files, self.pins.budget).is_ok() {
                held.add(files);
            }
        }
        self.pins.held = Some(held);
    }

    /// Enters a lease, or extends the one that there is. `None` when the chain is not whole here.
    pub(super) fn pin(&mut self, lease: Lease) -> Result<Option<Pinned>, NoRoom> {
        self.see_pins();
        let (key, fingerprint) = (lease.key(), lease.fingerprint);
        let recorded = self.record(&fingerprint, lease.end.last, key).is_some();
        let whole = self.chain(&fingerprint, lease.end.last).whole;
        if !whole || !(recorded || lease.end.tail.is_empty()) {
            return Ok(None);
        }
        let fresh = self.pins.book.find(&key).is_none();
        if fresh {
            self.pins.book.expect_room()?;
            let held = self.pins.held.take().unwrap_or_default();
            let room = held.expect_room(&self.files_of(&lease, &held), self.pins.budget);
            self.pins.held = Some(held);
            room?;
        }
        let bytes = self.files_of(&lease, &Held::default()).bytes();
        let until = self.pins.book.enter(lease);
        self.pins.held = None;
        Ok(Some(Pinned { bytes, until, fresh }))
    }

    /// Lets a prompt be evicted again. Whether it was pinned.
    pub(super) fn unpin(&mut self, key: &RecordKey) -> bool {
        let known = self.pins.book.remove(key).is_some();
        if known {
            self.pins.held = None;
        }
        known
    }

    /// The files of a leased chain that `held` does not hold.
    fn files_of(&self, lease: &Lease, held: &Held) -> Files {
        let chain = self.chain(&lease.fingerprint, lease.end.last);
        let record = self.record(&lease.fingerprint, lease.end.last, lease.key());
        let segments = chain.segments.into_iter().map(|(id, _)| id);
        let mut files = Files::default();
        for id in segments.chain(record.map(|(id, _)| id)) {
            let Some(entry) = self.entry(id).filter(|_| !held.files.contains(&id)) else {
                continue;
            };
            match &entry.contents {
                Some(Contents::Record(_)) => files.record_bytes += entry.bytes,
                _ => files.segment_bytes += entry.bytes,
            }
            files.ids.push(id);
        }
        files
    }

    /// The blocks at which pinned chains end: a segment that holds one ends with it, lest it grow
    /// under the pin.
    pub(super) fn pinned_lasts(&self) -> HashSet<BlockKey> {
        self.pins.book.lasts()
    }
}

impl Shared {
    /// Keeps a chain from eviction, and makes that known to the next start, if possible. Runs on
    /// the writer's thread, after everything that was saved before.
    pub(super) fn pin(&self, lease: Lease) -> Result<Option<Pinned>, NoRoom> {
        self.read_all_headers();
        let pinned = self.catalogue().pin(lease)?;
        if pinned.is_some() {
            self.keep_pins();
        }
        Ok(pinned)
    }

    /// Lets a prompt be evicted again; runs on the writer's thread.
    pub(super) fn unpin(&self, key: &RecordKey) {
        if self.catalogue().unpin(key) {
            self.keep_pins();
        }
    }

    /// Writes the leases down.
    pub(super) fn keep_pins(&self) {
        if let Err(unwritten) = self.publish_pins() {
            tracing::warn!(reason = %unwritten, "a restart will not know what is pinned now");
        }
    }

    fn publish_pins(&self) -> Result<(), Unwritten> {
        let path = self.root().join(PINS);
        let bytes = encode(&self.catalogue().pins.book);
        let Some(bytes) = bytes else {
            self.expect_home()?;
            self.sweep(&path);
            self.catalogue().pins.file_bytes = 0;
            return Ok(());
        };
        self.expect_root()?;
        let length = bytes.len() as u64;
        let reserved = self.reserve(length)?;
        self.write_temporary(&path, true, |file| self.write_at(file, &bytes, 0))?;
        self.give_name(&path, length, true)?;
        drop(reserved);
        self.catalogue().pins.file_bytes = length;
        Ok(())
    }

    /// Forgets all leases.
    pub(super) fn drop_pins(&self) {
        let budget = self.settings.disk_budget;
        let file_bytes = self.catalogue().pins.file_bytes;
        self.catalogue().pins = Pins { file_bytes, ..Pins::new(budget) };
        self.keep_pins();
    }

    /// Reads what an earlier process pinned.
    pub(super) fn recall_pins(&self) {
        let path = self.root().join(PINS);
        match read(&path) {
            Ok((leases, bytes)) => {
                // The clock may have been ahead.
                let latest = now() + milliseconds(LONGEST);
                let mut catalogue = self.catalogue();
                for lease in leases {
                    let until = lease.until.min(latest);
                    catalogue.pins.book.enter(Lease { until, ..lease });
                }
                catalogue.pins.file_bytes = bytes;
            }
            Err(fault) => {
                tracing::warn!(path = %path.display(), %fault, "all pins are lost");
                self.sweep(&path);
            }
        }
    }
}

fn read(path: &Path) -> Result<(Vec<Lease>, u64), Fault> {
    let file = file::open(path)?;
    let length = file.metadata()?.len();
    if length > LONGEST_FILE {
        return Err(Damage::Length { found: length, said: LONGEST_FILE }.into());
    }
    let mut bytes = Vec::new();
    file.take(LONGEST_FILE).read_to_end(&mut bytes)?;
    Ok((decode(&bytes)?, bytes.len() as u64))
}

/// The bytes of the file; `None` when there is nothing to write down.
fn encode(book: &Book) -> Option<Vec<u8>> {
    if book.is_empty() {
        return None;
    }
    let mut to = Encoder::default();
    to.bytes(&MAGIC).u32(VERSION).u32(book.iter().count() as u32);
    for Lease { fingerprint, end: End { last, tail }, until } in book.iter() {
        to.bytes(&fingerprint.0).bytes(&last.0).u64(*until).u32(tail.len() as u32).u32s(tail);
    }
    Some(to.sum().finish())
}

/// The inverse of [`encode`].
pub(super) fn decode(bytes: &[u8]) -> Result<Vec<Lease>, Damage> {
    let mut from = Decoder::new(bytes);
    expect_kind(&mut from, MAGIC, VERSION)?;
    let (found, needed) = (bytes.len() as u64, (HEAD + SUM) as u64);
    if found < needed {
        return Err(Damage::Short { found, needed });
    }
    let covered = summed(bytes, bytes.len())?;
    let count = expect_count("pins", from.u32()?, MOST as u32)?;
    let leases = (0..count).map(|_| lease(&mut from)).collect::<Result<Vec<_>, _>>()?;
    let said = covered.len() as u64 - from.left() as u64 + SUM as u64;
    let whole = said == covered.len() as u64;
    whole.then_some(leases).ok_or(Damage::Length { found: bytes.len() as u64, said })
}

fn lease(from: &mut Decoder<'_>) -> Result<Lease, Damage> {
    let (fingerprint, last) = (Fingerprint(from.array()?), BlockKey(from.array()?));
    let (until, count) = (from.u64()?, from.u32()? as usize);
    if count >= BLOCK {
        return Err(Damage::Field("tail"));
    }
    let tail = (0..count).map(|_| from.u32()).collect::<Result<_, _>>()?;
    Ok(Lease { fingerprint, end: End { last, tail }, until })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::kv::key::Fields;

    fn book() -> Book {
        let mut book = Book::default();
        let fingerprint = Fields::default().fingerprint();
        for length in [5, 32, 95] {
            let end = End::of(&fingerprint, &vec![7; length]);
            book.enter(Lease { fingerprint, end, until: length as u64 });
        }
        book
    }

    #[test]
    fn leases_read_back_as_what_was_written() {
        let leases: Vec<_> = book().iter().cloned().collect();
        assert_eq!(decode(&encode(&book()).unwrap()).unwrap(), leases);
        assert!(encode(&Book::default()).is_none());
    }

    #[test]
    fn every_flipped_bit_and_every_other_length_is_noticed() {
        let mut bytes = encode(&book()).unwrap();
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&bytes).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        for length in 0..bytes.len() {
            assert!(decode(&bytes[..length]).is_err(), "{length} bytes");
        }
        bytes.push(0);
        assert!(decode(&bytes).is_err());
    }

    #[test]
    fn what_a_checksum_covers_is_not_believed_either() {
        let good = encode(&book()).unwrap();
        let summed = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = good[..good.len() - SUM].to_vec();
            change(&mut bytes);
            let mut to = Encoder::default();
            to.bytes(&bytes).sum();
            decode(&to.finish())
        };
        assert!(summed(&|_| {}).is_ok());
        assert!(matches!(summed(&|bytes| bytes[12] = 0), Err(Damage::Count { .. })));
        assert!(matches!(summed(&|bytes| bytes[13] = 255), Err(Damage::Count { .. })));
        assert!(summed(&|bytes| bytes[12] = 2).is_err(), "one lease more than it says");
        assert!(summed(&|bytes| bytes[12] = 4).is_err(), "one lease fewer than it says");
        assert_eq!(summed(&|bytes| bytes[16 + 72] = 32), Err(Damage::Field("tail")));
    }
}
