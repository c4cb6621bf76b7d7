//! What is on the disk, as far as names, headers and this process's own writes tell.
//!
//! The catalogue sits behind the daemon's one lock, and nothing in here touches a file: callers
//! take a decision under the lock, let go, do the work, and come back with the result.
//! What it says may therefore be out of date by the time it is acted upon. That costs a miss.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use super::clock::now;
use super::contents::{Contents, Found};
use super::fields;
use super::history::History;
use super::mappings::Mappings;
use super::name::Name;
use super::pins::Pins;
use super::shelf::{Place, Precedence, Shelf};
use super::side::Sides;
use super::{Lookalike, Relative};
use crate::kv::key::{BlockKey, Fields, Fingerprint, ShortKey};

/// Quarantined files remembered for the prompts that miss them.
const DAMAGED: usize = 1024;

/// Names one file for as long as it exists; never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct FileId(pub(super) u64);

impl FileId {
    pub(super) const FIRST: Self = Self(0);
}

/// A file.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) family: ShortKey,
    pub(super) name: Name,
    /// `None` until the header was read.
    pub(super) contents: Option<Contents>,
    pub(super) bytes: u64,
    /// Last use in nanoseconds since the epoch. No two files have the same.
    pub(super) used: u64,
    /// When it was written, in nanoseconds since the epoch, where the file system knows.
    pub(super) born: Option<u64>,
    /// Whether this process made the file durable.
    pub(super) synced: bool,
}

/// Why a file leaves the catalogue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Farewell {
    /// To make room.
    Evicted,
    /// On request.
    Removed,
    /// Its contents live on in another file, or it went by itself.
    Gone,
    /// It is kept under another name to be looked at.
    Quarantined,
}

/// Tells whoever holds mapped blocks that their space on the disk is wanted.
pub(super) type Pressure = Arc<dyn Fn(&[BlockKey]) + Send + Sync>;

/// Families of which those without files begin to be forgotten.
const MANY: usize = 1024;

/// Everything that is known of the disk.
pub(super) struct Catalogue {
    shelves: HashMap<ShortKey, Shelf>,
    entries: HashMap<FileId, Entry>,
    next: u64,
    clock: u64,
    /// Files whose header was read, least recently used first.
    segments: BTreeSet<(u64, FileId)>,
    records: BTreeSet<(u64, FileId)>,
    segment_bytes: u64,
    record_bytes: u64,
    /// Quarantined files and their bytes.
    pub(super) bad: BTreeMap<PathBuf, u64>,
    /// Files that were taken out and are not off the disk yet, and their bytes.
    leaving: HashMap<(ShortKey, Name), u64>,
    /// Quarantined files that no prompt was told of.
    damaged: HashSet<(ShortKey, Name)>,
    /// Bytes about to be written.
    pub(super) reserved: u64,
    /// Files whose header is yet to be read, in the order of the background reader.
    unread: BTreeSet<FileId>,
    /// Files used since their modification time was set.
    touched: HashSet<FileId>,
    pub(super) mappings: Mappings,
    pub(super) sides: Sides,
    pub(super) pins: Pins,
    pub(super) history: History,
    pub(super) pressure: Vec<Pressure>,
}

impl Catalogue {
    pub(super) fn new(mappings: usize, disk_budget: u64) -> Self {
        Self {
            shelves: HashMap::new(),
            entries: HashMap::new(),
            next: 0,
            clock: 0,
            segments: BTreeSet::new(),
            records: BTreeSet::new(),
            segment_bytes: 0,
            record_bytes: 0,
            bad: BTreeMap::new(),
            leaving: HashMap::new(),
            damaged: HashSet::new(),
            reserved: 0,
            unread: BTreeSet::new(),
            touched: HashSet::new(),
            mappings: Mappings::new(mappings),
            sides: Sides::default(),
            pins: Pins::new(disk_budget),
            history: History::default(),
            pressure: Vec::new(),
        }
    }

    /// Remembers what a family is made from.
    pub(super) fn declare(&mut self, fingerprint: Fingerprint, fields: Fields) {
        if self.shelves.len() >= MANY && self.shelves.len().is_power_of_two() {
            // A caller may ask in a namespace of its own each time, and save nothing.
            self.shelves.retain(|_, shelf| !shelf.is_empty() || shelf.has_fields_file);
        }
        let shelf = self.shelves.entry(fingerprint.short()).or_default();
        shelf.fingerprint.get_or_insert(fingerprint);
        if shelf.fields.is_some() || shelf.fingerprint != Some(fingerprint) {
            return;
        }
        shelf.fields = Some(fields);
        let contents = shelf.files().filter_map(|id| self.entries.get(&id)?.contents.as_ref());
        for mark in contents.flat_map(Contents::marks) {
            self.history.seen(fields.identity, fingerprint.short(), mark);
        }
    }

    /// The files of `fingerprint`, when no other family has its short name.
    pub(super) fn shelf(&self, fingerprint: &Fingerprint) -> Option<&Shelf> {
        let shelf = self.shelves.get(&fingerprint.short())?;
        shelf.fingerprint.is_none_or(|known| known == *fingerprint).then_some(shelf)
    }

    pub(super) fn shelf_mut(&mut self, family: ShortKey) -> &mut Shelf {
        self.shelves.entry(family).or_default()
    }

    pub(super) fn shelves(&self) -> impl Iterator<Item = (ShortKey, &Shelf)> {
        self.shelves.iter().map(|(family, shelf)| (*family, shelf))
    }

    /// Families that have a digest file, those without a directory included.
    pub(super) fn digested(&self) -> Vec<ShortKey> {
        let with_file = self.shelves.iter().filter(|(_, shelf)| shelf.has_fields_file);
        with_file.map(|(family, _)| *family).collect()
    }

    pub(super) fn fields(&self, family: ShortKey) -> Option<&Fields> {
        self.shelves.get(&family)?.fields.as_ref()
    }

    pub(super) fn entry(&self, id: FileId) -> Option<&Entry> {
        self.entries.get(&id)
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (FileId, &Entry)> {
        self.entries.iter().map(|(id, entry)| (*id, entry))
    }

    /// Where the block `key` of a family lies, by its full key.
    pub(super) fn place(&self, fingerprint: &Fingerprint, key: &BlockKey) -> Option<Place> {
        let place = self.shelf(fingerprint)?.place(key.short())?;
        let contents = self.entries.get(&place.file)?.contents.as_ref()?;
        (contents.keys().get(place.index as usize) == Some(key)).then_some(place)
    }

    /// The nearest relative of a prompt that missed.
    pub(super) fn relative(&mut self, asked: &Lookalike) -> Option<Relative> {
        let Self { shelves, history, .. } = self;
        history.relative(asked, |family| shelves.get(&family)?.fields.as_ref())
    }

    /// Quarantined files that no prompt was told of.
    pub(super) fn damaged(&self) -> impl Iterator<Item = &(ShortKey, Name)> {
        self.damaged.iter()
    }

    /// A prompt is told of quarantined files. Whether there were any.
    pub(super) fn tell_damaged(&mut self, files: &[(ShortKey, Name)]) -> bool {
        let told = files.iter().filter(|file| self.damaged.remove(file));
        told.count() > 0
    }

    /// Adds a file by its name alone.
    pub(super) fn add(&mut self, family: ShortKey, name: Name) -> FileId {
        let id = FileId(self.next);
        self.next += 1;
        let entry =
            Entry { family, name, contents: None, bytes: 0, used: 0, born: None, synced: false };
        self.entries.insert(id, entry);
        self.shelf_mut(family).add(name, id);
        self.unread.insert(id);
        id
    }

    /// Adds what the header of a file tells. Returns files, maybe itself, whose blocks all lie in
    /// others; `None` when the file is gone, or what its header tells was here before.
    pub(super) fn learn(
        &mut self,
        id: FileId,
        found: Found,
        precedence: Precedence,
    ) -> Option<Vec<FileId>> {
        self.unread.remove(&id);
        self.pins.file_comes();
        let entry = self.entries.get_mut(&id).filter(|entry| entry.contents.is_none())?;
        let family = entry.family;
        let shelf = self.shelves.entry(family).or_default();
        shelf.fingerprint.get_or_insert(found.contents.fingerprint());
        let mut sharing = shelf.learn(id, &found.contents, precedence);
        sharing.insert(id);
        (entry.bytes, entry.used, entry.born) = (found.bytes, found.used, found.born);
        if let Some(fields) = shelf.fields {
            for mark in found.contents.marks() {
                self.history.seen(fields.identity, family, mark);
            }
        }
        entry.contents = Some(found.contents);
        *self.bytes_mut(id) += found.bytes;
        self.reorder(id, found.used);
        Some(sharing.into_iter().filter(|id| self.is_superfluous(*id)).collect())
    }

    /// Takes a file out.
    pub(super) fn forget(&mut self, id: FileId, farewell: Farewell) {
        let Some(used) = self.entries.get(&id).map(|entry| entry.used) else { return };
        let bytes = self.entries[&id].bytes;
        if self.entries[&id].contents.is_some() {
            *self.bytes_mut(id) -= bytes;
        }
        self.order_mut(id).remove(&(used, id));
        self.unread.remove(&id);
        self.touched.remove(&id);
        self.pins.file_goes(id);
        let Some(entry) = self.entries.remove(&id) else { return };
        self.shelf_mut(entry.family).remove(entry.name, id, entry.contents.as_ref());
        self.mappings.unlink(id, if farewell == Farewell::Quarantined { 0 } else { bytes });
        self.remember(&entry, farewell);
    }

    /// Takes a file out that is about to lose its name; nobody takes the name until it has
    /// [`left`](Self::left). From now on a prompt that misses a damaged one is told.
    pub(super) fn leave(&mut self, id: FileId, farewell: Farewell) -> Option<(ShortKey, Name)> {
        let entry = self.entries.get(&id)?;
        let (file, bytes) = ((entry.family, entry.name), entry.bytes);
        if farewell == Farewell::Quarantined && self.damaged.len() < DAMAGED {
            self.damaged.insert(file);
        }
        self.forget(id, farewell);
        self.leaving.insert(file, bytes);
        Some(file)
    }

    pub(super) fn is_leaving(&self, family: ShortKey, name: Name) -> bool {
        self.leaving.contains_key(&(family, name))
    }

    /// A file is off the disk, or has another name.
    pub(super) fn left(&mut self, family: ShortKey, name: Name) {
        self.leaving.remove(&(family, name));
    }

    /// Makes files, given in the order of their chain, the most recently used: the deepest first,
    /// so that a chain's end is older than its beginning.
    pub(super) fn touch(&mut self, ids: &[FileId]) {
        for id in ids.iter().rev() {
            let now = self.tick();
            if self.entries.get(id).is_some_and(|entry| entry.contents.is_some()) {
                self.reorder(*id, now);
                self.touched.insert(*id);
            }
        }
    }

    /// Files to set the modification time of, and the times.
    pub(super) fn take_touched(&mut self, most: usize) -> Vec<(ShortKey, Name, u64)> {
        let ids: Vec<_> = self.touched.iter().copied().take(most).collect();
        let take = |id: FileId| {
            self.touched.remove(&id);
            let entry = self.entries.get(&id)?;
            Some((entry.family, entry.name, entry.used))
        };
        ids.into_iter().filter_map(take).collect()
    }

    /// Up to `most` files whose header nobody has read yet.
    pub(super) fn unread(&self, most: usize) -> Vec<FileId> {
        self.unread.iter().copied().take(most).collect()
    }

    pub(super) fn unread_count(&self) -> usize {
        self.unread.len()
    }

    /// The system could not read a file: only prompts that need it try again.
    pub(super) fn skip(&mut self, id: FileId) {
        self.unread.remove(&id);
    }

    pub(super) fn set_synced(&mut self, id: FileId) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.synced = true;
        }
    }

    /// A later moment than any before it, in nanoseconds since the epoch.
    pub(super) fn tick(&mut self) -> u64 {
        self.clock = now().max(self.clock + 1);
        self.clock
    }

    pub(super) fn record_bytes(&self) -> u64 {
        self.record_bytes
    }

    /// Everything that counts against the disk budget.
    pub(super) fn bytes(&mut self) -> u64 {
        let bad: u64 = self.bad.values().chain(self.leaving.values()).sum();
        let digested = self.shelves.values().filter(|shelf| shelf.has_fields_file).count();
        let side = bad + (digested * fields::LEN) as u64 + self.sides.named_bytes();
        let side = side + self.pins.file_bytes;
        self.segment_bytes + self.record_bytes + side + self.unlinked_bytes() + self.reserved
    }

    /// Bytes of unlinked files that are still mapped.
    pub(super) fn unlinked_bytes(&mut self) -> u64 {
        self.mappings.count().1 + self.sides.unlinked_bytes()
    }

    /// The least recently used record that no lease holds.
    pub(super) fn oldest_record(&mut self) -> Option<FileId> {
        self.see_pins();
        self.loose_record().map(|(_, id)| *id)
    }

    /// The least recently used file that nothing follows, nobody uses and no lease holds. A chain's
    /// record is always older than its blocks, so it goes before them.
    pub(super) fn oldest(&mut self) -> Option<(u64, FileId)> {
        self.see_pins();
        let segment = self.segments.iter().find(|(_, id)| self.is_evictable(*id));
        self.loose_record().into_iter().chain(segment).min().copied()
    }

    fn loose_record(&self) -> Option<&(u64, FileId)> {
        self.records.iter().find(|(_, id)| !self.pins.hold(*id))
    }

    /// The segments that were mapped the longest ago and that no lease holds.
    pub(super) fn oldest_mapped(&mut self, most: usize) -> Vec<FileId> {
        self.see_pins();
        self.mappings.oldest().filter(|id| !self.pins.hold(*id)).take(most).collect()
    }

    /// Segments that eviction would take next if nobody used them.
    pub(super) fn oldest_in_use(&mut self, most: usize) -> Vec<FileId> {
        self.see_pins();
        let in_use = |id: &FileId| self.mappings.in_use(*id) && !self.pins.hold(*id);
        self.segments.iter().map(|(_, id)| *id).filter(in_use).take(most).collect()
    }

    fn is_evictable(&self, id: FileId) -> bool {
        let Some(entry) = self.entries.get(&id) else { return false };
        let keys = entry.contents.as_ref().map_or(&[][..], Contents::keys);
        let leaf = !self.shelves[&entry.family].has_children(keys);
        leaf && !self.mappings.in_use(id) && !self.pins.hold(id)
    }

    /// Whether other segments hold all blocks of this one: what a crash between publishing a
    /// merged segment and unlinking its sources leaves.
    fn is_superfluous(&self, id: FileId) -> bool {
        let Some(entry) = self.entries.get(&id) else { return false };
        let keys = entry.contents.as_ref().map_or(&[][..], Contents::keys);
        !keys.is_empty() && !self.shelves[&entry.family].uses(id, keys)
    }

    fn reorder(&mut self, id: FileId, used: u64) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let before = std::mem::replace(&mut entry.used, used);
        let order = self.order_mut(id);
        order.remove(&(before, id));
        order.insert((used, id));
    }

    fn order_mut(&mut self, id: FileId) -> &mut BTreeSet<(u64, FileId)> {
        match self.entries.get(&id).map(|entry| entry.name) {
            Some(Name::Record { .. }) => &mut self.records,
            _ => &mut self.segments,
        }
    }

    fn bytes_mut(&mut self, id: FileId) -> &mut u64 {
        match self.entries.get(&id).map(|entry| entry.name) {
            Some(Name::Record { .. }) => &mut self.record_bytes,
            _ => &mut self.segment_bytes,
        }
    }

    fn remember(&mut self, entry: &Entry, farewell: Farewell) {
        let Some(fields) = self.fields(entry.family) else { return };
        let identity = fields.identity;
        for mark in entry.contents.iter().flat_map(Contents::marks) {
            match farewell {
                Farewell::Evicted => self.history.evicted(identity, entry.family, mark),
                Farewell::Removed => self.history.removed(identity, entry.family, mark),
                Farewell::Gone | Farewell::Quarantined => {}
            }
        }
    }
}

impl fmt::Debug for Catalogue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.segment_bytes + self.record_bytes;
        write!(f, "Catalogue({} files of {bytes} bytes)", self.entries.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::key::Digest;

    #[test]
    fn families_that_save_nothing_are_forgotten() {
        let mut catalogue = Catalogue::new(1, 0);
        let fields = |n: u64| Fields {
            namespace: Digest::of("namespace", &n.to_le_bytes()),
            ..Fields::default()
        };
        let first = fields(0).fingerprint();
        catalogue.shelf_mut(first.short()).has_fields_file = true;
        for n in 0..20 * MANY as u64 {
            catalogue.declare(fields(n).fingerprint(), fields(n));
            assert!(catalogue.fields(fields(n).fingerprint().short()).is_some());
        }
        assert!(catalogue.shelves.len() <= 2 * MANY, "{}", catalogue.shelves.len());
        assert!(catalogue.fields(first.short()).is_some());
    }
}
