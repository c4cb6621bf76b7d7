//! Reading: from a prompt to mapped, faulted-in, verified blocks.
//!
//! A loader walks the prompt's keys from segment to segment. Each segment is mapped once per
//! process, and each block of a mapping is checked once: its checksums, which also brings its
//! pages into memory, then its tokens and its sizes against the request's. Only then does anyone
//! see it. Whatever fails a check is set aside and is a miss, and the walk goes on without it.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::time::Instant;

use super::catalogue::FileId;
use super::contents::expect_name;
use super::damage::{Damage, Fault};
use super::glimpse::Glimpse;
use super::mappings::Mapping;
use super::name::Name;
use super::promise::Promise;
use super::room::waits;
use super::segment::{self, Header};
use super::shared::Shared;
use super::shelf::Branches;
use super::{Restore, Restored, record};
use crate::kv::block::{Block, Part};
use crate::kv::key::{BlockKey, RecordKey, common};
use crate::kv::layout::BLOCK;
use crate::kv::record::Record;
use crate::kv::seq::tail_bytes;
use crate::sys::file;
use crate::sys::mmap::Map;

/// Headers read to find the best relative behind the last hit.
const CANDIDATES: usize = 32;
/// Damaged relatives after which no further one is tried.
const ATTEMPTS: usize = 4;
/// Headers that the survey reads before it lets prompts go first.
const SURVEY: usize = 64;

/// What a loader is asked to do.
pub(super) enum Job {
    Restore(Box<Restore>, Promise<Restored>),
    Glimpse(Box<Restore>, Promise<Glimpse>),
    /// Read the headers of a few files, and come back for more.
    Survey,
    Close,
}

/// The way to a loader thread.
#[derive(Debug, Clone)]
pub(super) struct Loader {
    pub(super) jobs: Sender<Job>,
    /// Prompts that wait for it.
    pub(super) waiting: Arc<AtomicUsize>,
}

impl Loader {
    pub(super) fn send(&self, job: Job) {
        // A loader that is gone has no use for a job.
        let _ = self.jobs.send(job);
    }
}

/// A loader's thread: serves prompts, and surveys the disk in between.
pub(super) fn serve(shared: &Shared, itself: &Loader, jobs: &Receiver<Job>) {
    while let Ok(job) = jobs.recv() {
        match job {
            Job::Restore(asked, reply) => {
                itself.waiting.fetch_sub(1, Ordering::Relaxed);
                let late = shared.closing.get().is_some_and(|deadline| Instant::now() > *deadline);
                reply.keep(if late { Restored::default() } else { shared.restore(&asked) });
            }
            Job::Glimpse(asked, reply) => {
                itself.waiting.fetch_sub(1, Ordering::Relaxed);
                reply.keep(shared.glimpse(&asked));
            }
            Job::Survey => {
                if shared.closing.get().is_none() && shared.read_some_headers(SURVEY) {
                    itself.send(Job::Survey);
                }
            }
            Job::Close => break,
        }
    }
}

impl Shared {
    /// Finds everything that helps with a prompt.
    pub(super) fn restore(&self, asked: &Restore) -> Restored {
        let mut walk = Walk::new(self, asked);
        walk.blocks();
        walk.partial();
        walk.record();
        walk.tell_damaged();
        let Walk { used, found, .. } = walk;
        if !used.is_empty() {
            self.tally.hits.add(1);
            let mut catalogue = self.catalogue();
            let before = catalogue.chain(&asked.family.fingerprint, asked.parent(asked.from));
            let before = before.segments.into_iter().map(|(id, _)| id);
            let chain: Vec<_> =
                before.filter(|id| !used.contains(id)).chain(used.clone()).collect();
            catalogue.touch(&chain);
        }
        found
    }

    /// The mapping of a segment; opened, and its header checked, if it is not mapped already.
    pub(super) fn mapping(&self, id: FileId) -> Result<Arc<Mapping>, Fault> {
        if let Some(mapping) = self.catalogue().mappings.find(id) {
            return Ok(mapping);
        }
        let (_, name, path) = self.locate(id).ok_or(Fault::Gone)?;
        let known = self.catalogue().mappings.find_map(id);
        let mapping = match known {
            Some(map) => {
                let header = Header::decode(&map, map.len() as u64)?;
                Mapping::new(map, header)
            }
            None => open(&file::open(&path)?)?,
        };
        expect_name(name, mapping.header.name())?;
        let mapping = Arc::new(mapping);
        let mut asked_back = None;
        loop {
            match self.keep(id, Arc::clone(&mapping)) {
                Err(Fault::Mappings)
                    if waits(*asked_back.get_or_insert_with(|| self.ask_back_mappings())) => {}
                kept => return kept,
            }
        }
    }

    fn keep(&self, id: FileId, mapping: Arc<Mapping>) -> Result<Arc<Mapping>, Fault> {
        let mut catalogue = self.catalogue();
        // Another thread may have mapped it meanwhile: one mapping per process.
        if let Some(mapping) = catalogue.mappings.find(id) {
            return Ok(mapping);
        }
        if catalogue.entry(id).is_none() {
            return Err(Fault::Gone);
        }
        match catalogue.mappings.keep(id, Arc::clone(&mapping)) {
            true => Ok(mapping),
            false => Err(Fault::Mappings),
        }
    }
}

/// Maps a segment and checks its header. The descriptor is closed on return.
pub(super) fn open(file: &File) -> Result<Mapping, Fault> {
    let header = Header::read(file)?;
    let map = Map::open(file, header.file_len as usize)?;
    header.check_padding(&map)?;
    Ok(Mapping::new(Arc::new(map), header))
}

/// Block `index` of a mapping, faulted in and verified.
pub(super) fn verified(mapping: &Mapping, index: usize) -> Result<Arc<Block>, Fault> {
    if !mapping.is_verified(index) {
        for (part, extent) in mapping.header.blocks[index].parts.iter().enumerate() {
            mapping.map.fault_in(extent.range())?;
            mapping.header.check_part(&mapping.map, index, part)?;
        }
        mapping.set_verified(index);
    }
    Ok(Arc::new(mapped(mapping, index)))
}

/// Block `index` of a mapping, whose bytes are known to be right.
pub(super) fn mapped(mapping: &Mapping, index: usize) -> Block {
    let entry = &mapping.header.blocks[index];
    let part =
        |extent: &segment::Extent| Arc::new(Part::Mapped(Arc::clone(&mapping.map), extent.range()));
    let (key, parent, tokens) = (entry.key, entry.parent, entry.tokens);
    Block { key, parent, tokens, parts: entry.parts.iter().map(part).collect() }
}

/// The search for one prompt.
pub(super) struct Walk<'a> {
    shared: &'a Shared,
    asked: &'a Restore,
    /// The next block to find.
    pub(super) at: usize,
    /// Files that helped, in the order of the chain.
    used: Vec<FileId>,
    pub(super) found: Restored,
}

impl<'a> Walk<'a> {
    pub(super) fn new(shared: &'a Shared, asked: &'a Restore) -> Self {
        Self { shared, asked, at: asked.from, used: vec![], found: Restored::default() }
    }

    /// Follows the chain until a block is nowhere.
    fn blocks(&mut self) {
        while self.at < self.asked.keys.len() {
            let Some(id) = self.find(self.asked.keys[self.at]) else { return };
            let before = self.at;
            let taken = self.take_run(id);
            if self.at > before {
                self.used.push(id);
            }
            if taken.is_err_and(|fault| self.note(id, &fault)) {
                return;
            }
        }
    }

    /// The segment with `key`, from headers already read or from those that its name promises.
    pub(super) fn find(&mut self, key: BlockKey) -> Option<FileId> {
        self.look(key).or_else(|| {
            self.found.io_error |= !self.shared.read_headers(&self.promising());
            self.look(key)
        })
    }

    fn look(&self, key: BlockKey) -> Option<FileId> {
        let place = self.shared.catalogue().place(&self.asked.family.fingerprint, &key);
        place.map(|place| place.file)
    }

    fn promising(&self) -> Vec<FileId> {
        let catalogue = self.shared.catalogue();
        let shelf = catalogue.shelf(&self.asked.family.fingerprint);
        shelf.map_or_else(Vec::new, |shelf| catalogue.promising(shelf, &self.asked.keys, self.at))
    }

    /// Takes blocks from one segment for as long as they are the prompt's.
    fn take_run(&mut self, id: FileId) -> Result<(), Fault> {
        let mapping = self.shared.mapping(id)?;
        self.expect_family(&mapping)?;
        let entries = &mapping.header.blocks;
        let start = entries.iter().position(|entry| entry.key == self.asked.keys[self.at]);
        for (index, entry) in entries.iter().enumerate().skip(start.ok_or(Fault::Gone)?) {
            if self.asked.keys.get(self.at) != Some(&entry.key) {
                break;
            }
            if !self.asked.rest(self.at).starts_with(&entry.tokens) {
                return Err(Damage::Tokens(index).into());
            }
            self.found.blocks.push(verified(&mapping, index)?);
            self.at += 1;
        }
        Ok(())
    }

    /// Finds the block behind the last hit that goes on most like the prompt.
    fn partial(&mut self) {
        for _ in 0..ATTEMPTS {
            let Some((id, index)) = self.nearest_block() else { return };
            match self.load_partial(id, index) {
                Ok(block) => {
                    self.found.partial = Some(block);
                    return self.used.push(id);
                }
                Err(fault) if self.note(id, &fault) => return,
                Err(_) => {}
            }
        }
    }

    pub(super) fn nearest_block(&mut self) -> Option<(FileId, usize)> {
        let asked = self.asked;
        let (parent, rest) = (asked.parent(self.at), asked.rest(self.at));
        let in_run = self.next_in_run(parent, rest);
        self.read_candidates(parent);
        let catalogue = self.shared.catalogue();
        let shelf = catalogue.shelf(&self.asked.family.fingerprint)?;
        let nearest =
            shelf.branches(parent.short()).and_then(|branches| branches.nearest_block(rest));
        let branch = nearest.map(|(common, id)| (common, id, 0));
        let best = in_run.into_iter().chain(branch).max_by_key(|(common, ..)| *common)?;
        Some((best.1, best.2))
    }

    /// The block after `parent` in the same segment, if it begins like `rest`.
    fn next_in_run(&mut self, parent: BlockKey, rest: &[u32]) -> Option<(usize, FileId, usize)> {
        let (id, index) = self.behind(parent)?;
        let head = self.shared.head(id, index).inspect_err(|fault| _ = self.note(id, fault));
        let (_, tokens) = head.ok()??;
        let common = common(&tokens, rest);
        (common > 0).then_some((common, id, index))
    }

    /// The place after `parent` in the same segment, which may be its end.
    pub(super) fn behind(&self, parent: BlockKey) -> Option<(FileId, usize)> {
        let place = self.shared.catalogue().place(&self.asked.family.fingerprint, &parent)?;
        Some((place.file, place.index as usize + 1))
    }

    fn read_candidates(&self, parent: BlockKey) {
        let unread: Vec<_> = {
            let catalogue = self.shared.catalogue();
            let shelf = catalogue.shelf(&self.asked.family.fingerprint);
            let branches = shelf.and_then(|shelf| shelf.branches(parent.short()));
            branches.into_iter().flat_map(Branches::unread).take(CANDIDATES).collect()
        };
        self.shared.read_headers(&unread);
    }

    fn load_partial(&self, id: FileId, index: usize) -> Result<Arc<Block>, Fault> {
        let mapping = self.shared.mapping(id)?;
        self.expect_family(&mapping)?;
        verified(&mapping, index)
    }

    /// Finds the record of the whole prompt, else the one behind the last hit that goes on most
    /// like the prompt.
    fn record(&mut self) {
        for _ in 0..ATTEMPTS {
            let Some(id) = self.nearest_record() else { return };
            match self.load_record(id) {
                Ok(record) => {
                    self.found.record = Some(Arc::new(record));
                    return self.used.push(id);
                }
                Err(fault) if self.note(id, &fault) => return,
                Err(_) => {}
            }
        }
    }

    pub(super) fn nearest_record(&self) -> Option<FileId> {
        let parent = self.asked.parent(self.at);
        let rest = self.asked.rest(self.at);
        self.read_candidates(parent);
        let catalogue = self.shared.catalogue();
        let shelf = catalogue.shelf(&self.asked.family.fingerprint)?;
        let exact = (rest.len() < BLOCK).then(|| {
            let key = RecordKey::new(&self.asked.family.fingerprint, &parent, rest).short();
            shelf.by_name(&Name::Record { last: parent.short(), key })
        });
        exact.flatten().or_else(|| {
            let (_, id) = shelf.branches(parent.short())?.nearest_tail(rest)?;
            Some(id)
        })
    }

    /// Takes the blame for files that were set aside before this prompt came.
    fn tell_damaged(&mut self) {
        let mut catalogue = self.shared.catalogue();
        let Restore { family, keys, .. } = self.asked;
        let damaged = catalogue.damaged_at(&family.fingerprint, keys, self.at);
        self.found.corrupt |= catalogue.tell_damaged(&damaged);
    }

    fn load_record(&self, id: FileId) -> Result<Record, Fault> {
        let (_, name, path) = self.shared.locate(id).ok_or(Fault::Gone)?;
        let (head, record) = record::read(&file::open(&path)?)?;
        expect_name(name, head.name())?;
        let family = &self.asked.family;
        let parent = self.asked.parent(self.at);
        if (head.fingerprint, head.last) != (family.fingerprint, parent) {
            return Err(Fault::Gone);
        }
        let rows = tail_bytes(&family.layout, record.tail.len());
        let wide = |hidden: &Vec<f32>| hidden.len() == family.width;
        let fits = record.rows.len() == rows && record.hidden.as_ref().is_none_or(wide);
        if head.layout != family.layout.digest() || !fits {
            return Err(Damage::Layout.into());
        }
        if record.length as usize != self.at * BLOCK + record.tail.len() {
            return Err(Damage::Field("tokens").into());
        }
        Ok(record)
    }

    /// Keys of one short name may belong to two families: the other one's file is simply not ours.
    fn expect_family(&self, mapping: &Mapping) -> Result<(), Fault> {
        let family = &self.asked.family;
        if mapping.header.fingerprint != family.fingerprint {
            return Err(Fault::Gone);
        }
        Ok(mapping.header.expect_layout(&family.layout)?)
    }

    /// Takes note of what went wrong. Whether it would go wrong again at once.
    fn note(&mut self, id: FileId, fault: &Fault) -> bool {
        self.found.corrupt |= matches!(fault, Fault::Damaged(_));
        self.found.io_error |= matches!(fault, Fault::Io(_));
        self.shared.report(id, fault);
        matches!(fault, Fault::Io(_) | Fault::Mappings)
    }
}
