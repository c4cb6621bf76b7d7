//! A walk through places.
//!
//! Folders are told by what is in them, wherever they lie: a repository in the layout of Hugging
//! Face's cache, a store of Ollama's, a model's directory, or one with models in it.

use std::collections::HashSet;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::folder::{Entry, Folder, Limit, Role};
use super::place::{Kind, Place};
use super::{Candidate, Unfit, last};

/// Most folders above one that is looked into.
pub(super) const DEEPEST: usize = 16;

/// Most files and folders that are looked at in a place.
pub(super) const MOST: usize = 100_000;

/// How long a place is looked at. A folder may be one of the system's own, whose names are slow to
/// read and endless.
pub(super) const LONGEST: Duration = Duration::from_secs(2);

/// What a search has seen so far.
#[derive(Debug)]
pub(super) struct Search {
    /// Folders by device and inode, so that neither links nor places that overlap lead to one twice.
    seen: HashSet<(u64, u64)>,
    /// How many names are read of a place.
    pub(super) most: usize,
    /// For how long they are.
    pub(super) longest: Duration,
    /// How far this place may still be read.
    left: Limit,
    /// Whether more would have been.
    over: bool,
    kind: Kind,
    found: Vec<Candidate>,
}

/// What things in a folder are called.
#[derive(Debug, Clone)]
pub(super) struct Label {
    name: String,
    separator: &'static str,
}

impl Default for Search {
    fn default() -> Self {
        let (seen, found) = (HashSet::new(), Vec::new());
        let left = Limit { names: 0, until: Instant::now() };
        let (most, longest, kind) = (MOST, LONGEST, Kind::Configured);
        Self { seen, most, longest, left, over: false, kind, found }
    }
}

impl Search {
    /// Everything in a place that looks like a model, or that could not be looked at. A place that
    /// nobody named need not be there.
    pub(super) fn place(&mut self, place: &Place) -> Vec<Candidate> {
        // What lies in one place takes nothing from the others.
        (self.kind, self.over) = (place.kind, false);
        self.left = Limit { names: self.most, until: Instant::now() + self.longest };
        let absent =
            |path: &Path| fs::metadata(path).is_err_and(|e| e.kind() == ErrorKind::NotFound);
        if place.kind == Kind::Configured || !absent(&place.path) {
            self.folder(&place.path, &Label::place(), 0);
        }
        std::mem::take(&mut self.found)
    }

    /// Finds everything in a folder below `depth` others.
    pub(super) fn folder(&mut self, path: &Path, label: &Label, depth: usize) {
        let Some(folder) = self.list(path, label, depth) else { return };
        if folder.is_repository() {
            return self.repository(&folder, depth);
        }
        if let Some(store) = folder.store() {
            return self.store(&store, depth);
        }
        self.models(&folder, label);
        for Entry { name, path } in &folder.folders {
            self.folder(path, &label.within(name), depth + 1);
        }
    }

    /// What is in a folder; `None` when it was seen before or cannot be looked at.
    pub(super) fn list(&mut self, path: &Path, label: &Label, depth: usize) -> Option<Folder> {
        if self.over {
            return None;
        }
        match self.read(path, depth) {
            Ok(folder) => {
                let folder = folder?;
                self.left.names -= folder.names;
                self.over = folder.cut;
                if folder.cut {
                    self.unfit(path, label, Unfit::Many);
                }
                Some(folder)
            }
            Err(unfit) => {
                self.unfit(path, label, unfit);
                None
            }
        }
    }

    fn read(&mut self, path: &Path, depth: usize) -> Result<Option<Folder>, Unfit> {
        if depth > DEEPEST {
            return Err(Unfit::Deep);
        }
        let metadata = fs::metadata(path)?;
        if !self.seen.insert((metadata.dev(), metadata.ino())) {
            return Ok(None);
        }
        Ok(Some(Folder::read(path, self.left)?))
    }

    /// The models that are files of a folder, and the one that it is itself.
    fn models(&mut self, folder: &Folder, label: &Label) {
        if folder.is_adapter() {
            self.unfit(&folder.path, label, Unfit::Adapter);
        } else if folder.is_model() {
            self.add(&folder.path, label, None);
        }
        let mut before = None;
        for Entry { name, path } in &folder.files {
            let Some(role) = Role::of(name) else { continue };
            let label = label.within(name);
            match &role {
                Role::Adapter => self.unfit(path, &label, Unfit::Adapter),
                Role::Incomplete => self.unfit(path, &label, Unfit::Incomplete),
                Role::Part(_) if before.as_ref() == Some(&role) => self.part(path),
                Role::Model | Role::Part(_) => self.add(path, &label, None),
            }
            before = Some(role);
        }
    }

    pub(super) fn add(&mut self, path: &Path, label: &Label, unfit: Option<Unfit>) {
        let name = Some(&label.name).filter(|name| !name.is_empty());
        let name = name.cloned().unwrap_or_else(|| last(path));
        let (path, kind, parts) = (path.to_owned(), self.kind, Vec::new());
        self.found.push(Candidate { name, kind, path, parts, unfit });
    }

    pub(super) fn unfit(&mut self, path: &Path, label: &Label, unfit: Unfit) {
        self.add(path, label, Some(unfit));
    }

    /// One more file of the model that was found last.
    fn part(&mut self, path: &Path) {
        let last = self.found.last_mut();
        last.into_iter().for_each(|found| found.parts.push(PathBuf::from(path)));
    }

    /// How much has been found in this place.
    pub(super) fn count(&self) -> usize {
        self.found.len()
    }
}

impl Label {
    /// Of a place: what is in it is called by its path there.
    fn place() -> Self {
        Self { name: String::new(), separator: "/" }
    }

    /// Of a repository, or of one of its snapshots: files stand behind a colon.
    pub(super) fn repository(name: String) -> Self {
        Self { name, separator: ":" }
    }

    fn within(&self, name: &str) -> Self {
        let name = match &*self.name {
            "" => name.to_owned(),
            own => format!("{own}{}{name}", self.separator),
        };
        Self { name, separator: "/" }
    }
}
