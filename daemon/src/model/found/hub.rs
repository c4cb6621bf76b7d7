//! A repository in the layout of Hugging Face's cache.
//!
//! ```text
//! models--OWNER--NAME/refs/main            a commit
//! models--OWNER--NAME/snapshots/COMMIT/..  links into blobs
//! models--OWNER--NAME/blobs/..             files; those that are being fetched end in .incomplete
//! ```

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use super::folder::Folder;
use super::search::{Label, Search};
use super::{Unfit, last};
use crate::sys;

/// Digits of a commit that tell it from a repository's others.
const DIGITS: usize = 7;

/// More than a commit has digits.
const COMMIT: u64 = 128;

impl Folder {
    /// Whether it is a repository of a model.
    pub(super) fn is_repository(&self) -> bool {
        last(&self.path).starts_with("models--") && self.folder("snapshots").is_some()
    }
}

impl Search {
    /// Finds everything in a repository, what its main branch means first: that, or the only
    /// snapshot, is called by the repository's name, others with their commit.
    pub(super) fn repository(&mut self, repository: &Folder, depth: usize) {
        let name = last(&repository.path).replacen("models--", "", 1).replace("--", "/");
        let label = Label::repository(name.clone());
        let before = self.count();
        let snapshots = repository.path.join("snapshots");
        if let Some(mut snapshots) = self.list(&snapshots, &label, depth + 1) {
            let main = main(&repository.path).unwrap_or_default();
            snapshots.folders.sort_by_key(|snapshot| snapshot.name != main);
            let only = snapshots.folders.len() == 1;
            for snapshot in &snapshots.folders {
                let commit: String = snapshot.name.chars().take(DIGITS).collect();
                let label = match only || snapshot.name == main {
                    true => label.clone(),
                    false => Label::repository(format!("{name}@{commit}")),
                };
                self.folder(&snapshot.path, &label, depth + 2);
            }
        }
        if self.count() == before && self.is_begun(&repository.path, &label, depth) {
            self.unfit(&repository.path, &label, Unfit::Incomplete);
        }
    }

    /// Whether a file of the repository is being fetched.
    fn is_begun(&mut self, repository: &Path, label: &Label, depth: usize) -> bool {
        let blobs = self.list(&repository.join("blobs"), label, depth + 1);
        let begun = |blobs: Folder| blobs.files.iter().any(|b| b.name.ends_with(".incomplete"));
        blobs.is_some_and(begun)
    }
}

/// The commit that the main branch means.
fn main(repository: &Path) -> io::Result<String> {
    let file: File = sys::file::open(&repository.join("refs/main"))?;
    let mut commit = String::new();
    file.take(COMMIT).read_to_string(&mut commit)?;
    Ok(commit.trim().to_owned())
}
