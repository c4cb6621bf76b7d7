//! Starting and tidying up: what is in the directory, and what should not be.

use std::ffi::OsStr;
use std::fs::{self, DirEntry};
use std::io::ErrorKind;
use std::path::Path;
use std::time::SystemTime;

use super::clock::nanoseconds;
use super::name::{
    Name, PINS, QUARANTINED, TEMPORARY, VERSION_DIR, parse_fields_name, parse_key, parse_side_name,
};
use super::shared::Shared;
use super::{OpenError, fields};
use crate::kv::key::ShortKey;

/// Digest files kept for families that have no files left; the youngest stay.
const ORPHANS: usize = 256;

/// What collecting took away.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Collected {
    /// Files: temporary, quarantined, superfluous, evicted.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Files that could not be removed.
    pub kept: u64,
}

impl Collected {
    fn take(&mut self, shared: &Shared, path: &Path) {
        let bytes = fs::metadata(path).map_or(0, |metadata| metadata.len());
        match shared.unlink(path) {
            true => (self.files, self.bytes) = (self.files + 1, self.bytes + bytes),
            false => self.kept += 1,
        }
    }
}

impl Shared {
    /// Reads every directory once and enters what is there by name. Temporary files go: only a
    /// writer that is gone can have left them.
    ///
    /// # Errors
    /// When a directory cannot be listed, or is none: what it holds would be unknown, and be
    /// written over.
    pub(super) fn enter_names(&self) -> Result<(), OpenError> {
        for entry in list(self.root())? {
            let name = entry.file_name();
            let text = name.to_str().unwrap_or_default();
            if let Some(family) = parse_key(text) {
                self.enter_family(family, &entry.path())?;
            } else if let Some(family) = parse_fields_name(text) {
                self.catalogue().shelf_mut(family).has_fields_file = true;
            } else if let Some(key) = parse_side_name(text) {
                self.enter_side(key, &entry);
            } else if text == PINS {
                self.recall_pins();
            } else if text.ends_with(TEMPORARY) {
                self.sweep(&entry.path());
            }
        }
        Ok(())
    }

    fn enter_side(&self, key: ShortKey, entry: &DirEntry) {
        // One that went meanwhile is none.
        let Ok(metadata) = entry.metadata() else { return };
        if metadata.is_dir() {
            return self.clear(&entry.path());
        }
        let used = metadata.modified().map_or(0, nanoseconds);
        self.tally.writes.born(metadata.created().ok().map(nanoseconds), metadata.len());
        self.catalogue().sides.add(key, metadata.len(), used);
    }

    /// Takes a directory out of the way of the file whose name it has: it goes if nothing is in it,
    /// and gets another name otherwise.
    fn clear(&self, dir: &Path) {
        self.sweep_dir(dir);
        let aside = dir.with_added_extension(&QUARANTINED[1..]);
        let path = dir.display();
        match self.home.permit().map(|permit| permit.rename(dir, &aside)) {
            Ok(Ok(())) => {
                tracing::warn!(%path, "a directory with the name of a cache file is set aside");
            }
            Ok(Err(error)) if error.kind() != ErrorKind::NotFound => {
                tracing::warn!(%path, %error, "a directory has the name of a cache file");
            }
            // It was empty, or what lies there is not ours any more.
            _ => {}
        }
    }

    fn enter_family(&self, family: ShortKey, dir: &Path) -> Result<(), OpenError> {
        let mut names = Vec::new();
        for entry in list(dir)? {
            match entry.file_name().to_str().map(str::parse::<Name>) {
                Some(Ok(name)) => names.push(name),
                _ => self.enter_other(&entry),
            }
        }
        if names.is_empty() {
            self.sweep_dir(dir);
        }
        let mut catalogue = self.catalogue();
        names.into_iter().for_each(|name| _ = catalogue.add(family, name));
        Ok(())
    }

    fn enter_other(&self, entry: &DirEntry) {
        let name = entry.file_name();
        if ends_with(&name, TEMPORARY) {
            self.sweep(&entry.path());
        } else if ends_with(&name, QUARANTINED) {
            let bytes = entry.metadata().map_or(0, |metadata| metadata.len());
            self.catalogue().bad.insert(entry.path(), bytes);
        }
    }

    /// Reads the digest files, for the reasons of misses; keeps a bounded number without family.
    pub(super) fn read_fields(&self) {
        let families = self.catalogue().digested();
        let mut orphans = Vec::new();
        for family in families {
            let path = self.fields_path(family);
            let read = fs::read(&path).ok().and_then(|bytes| fields::decode(&bytes).ok());
            match read.filter(|(fingerprint, _)| fingerprint.short() == family) {
                Some((fingerprint, fields)) => self.catalogue().declare(fingerprint, fields),
                None => self.drop_fields(family),
            }
            if self.catalogue().shelf_mut(family).is_empty() {
                let modified = fs::metadata(&path).and_then(|metadata| metadata.modified());
                orphans.push((modified.unwrap_or(SystemTime::UNIX_EPOCH), family));
            }
        }
        orphans.sort_unstable();
        let surplus = orphans.len().saturating_sub(ORPHANS);
        orphans[..surplus].iter().for_each(|(_, family)| self.drop_fields(*family));
    }

    /// Removes a digest file. The family's next save writes it again.
    pub(super) fn drop_fields(&self, family: ShortKey) {
        // One that cannot be removed tells no more than hashes, and is tried again at the next
        // start.
        self.sweep(&self.fields_path(family));
        self.catalogue().shelf_mut(family).has_fields_file = false;
    }

    /// Removes the directories of other format versions.
    pub(super) fn drop_other_versions(&self) {
        let Ok(entries) = fs::read_dir(&self.settings.dir) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let version = name.to_str().and_then(|name| name.strip_prefix('v'));
            let other = version.is_some_and(|version| version.parse::<u32>().is_ok());
            if other && name != VERSION_DIR {
                tracing::info!(path = %entry.path().display(), "removing another format version");
                // Whatever stays is tried again at the next start.
                let _ = self.home.permit().map(|permit| permit.remove_tree(&entry.path()));
            }
        }
    }

    /// Enforces the budgets and removes what serves nobody; runs on the writer's thread.
    pub(super) fn collect(&self) -> Collected {
        if self.expect_home().is_err() {
            return Collected::default();
        }
        self.read_all_headers();
        let before = self.catalogue().bytes();
        let evicted = self.tally.evictions.count();
        // Whatever cannot be evicted now is in use, and stays until the next time.
        let _ = self.keep_record_quota(0);
        let _ = self.make_room(0);
        self.drop_other_versions();
        let mut collected = self.clean(false);
        let sides = self.collect_sides();
        collected.kept += sides.kept;
        collected.files += sides.files;
        collected.files += self.tally.evictions.count() - evicted;
        collected.bytes = before.saturating_sub(self.catalogue().bytes()).max(collected.bytes);
        collected
    }

    /// Removes temporary and quarantined files and empty directories; with `all`, every file of
    /// families that have none in the catalogue.
    pub(super) fn clean(&self, all: bool) -> Collected {
        let families: Vec<_> = self.catalogue().shelves().map(|(family, _)| family).collect();
        let mut collected = Collected::default();
        for family in families {
            let one = self.clean_dir(family, all);
            collected.files += one.files;
            collected.bytes += one.bytes;
            collected.kept += one.kept;
        }
        self.forget_bad();
        collected
    }

    /// Forgets quarantined files that are not there any more.
    fn forget_bad(&self) {
        let mut gone: Vec<_> = self.catalogue().bad.keys().cloned().collect();
        gone.retain(|path| !path.exists());
        let mut catalogue = self.catalogue();
        gone.iter().for_each(|path| _ = catalogue.bad.remove(path));
    }

    fn clean_dir(&self, family: ShortKey, all: bool) -> Collected {
        let dir = self.dir(family);
        let mut collected = Collected::default();
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let useless = ends_with(&name, TEMPORARY) || ends_with(&name, QUARANTINED);
            if useless || (all && self.is_unknown(family, &name)) {
                collected.take(self, &entry.path());
            }
        }
        self.sweep_dir(&dir);
        collected
    }

    /// Whether a file is one of ours by its name and not in the catalogue.
    fn is_unknown(&self, family: ShortKey, name: &OsStr) -> bool {
        let name = name.to_str().and_then(|name| name.parse().ok());
        name.is_some_and(|name| self.catalogue().shelf_mut(family).by_name(&name).is_none())
    }
}

/// Everything in a directory.
fn list(dir: &Path) -> Result<Vec<DirEntry>, OpenError> {
    let entries = fs::read_dir(dir).and_then(Iterator::collect);
    entries.map_err(|error| OpenError::List { path: dir.to_owned(), error })
}

fn ends_with(name: &OsStr, suffix: &str) -> bool {
    name.as_encoded_bytes().ends_with(suffix.as_bytes())
}
