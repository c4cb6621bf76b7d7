//! The states of all files of a model.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Stamp;

/// Tells two states of a model's files apart without reading them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stamps(Vec<(PathBuf, Option<Stamp>)>);

impl Stamps {
    /// Of each file, and `None` of one that is not there and would count if it were.
    pub fn new(files: impl IntoIterator<Item = (PathBuf, Option<Stamp>)>) -> Self {
        Self(files.into_iter().collect())
    }

    /// Of the only file.
    pub fn one(path: &Path, stamp: Stamp) -> Self {
        Self(vec![(path.to_owned(), Some(stamp))])
    }

    /// With those of other files.
    #[must_use]
    pub fn and(mut self, others: Self) -> Self {
        self.0.extend(others.0);
        self
    }

    /// The states of the same files now.
    #[must_use]
    pub fn now(&self) -> Self {
        Self::new(self.0.iter().map(|(path, _)| (path.clone(), Stamp::of(path).ok())))
    }

    /// Whether any file is another than it was. One that is gone has not changed.
    pub fn are_stale(&self) -> bool {
        let stale = |(path, was): &(PathBuf, Option<Stamp>)| {
            Stamp::of(path).is_ok_and(|now| Some(now) != *was)
        };
        self.0.iter().any(stale)
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.there().map(Stamp::size).sum()
    }

    /// How long ago a file last changed.
    pub fn age(&self) -> Duration {
        self.there().map(Stamp::age).min().unwrap_or(Duration::MAX)
    }

    fn there(&self) -> impl Iterator<Item = &Stamp> {
        self.0.iter().filter_map(|(_, stamp)| stamp.as_ref())
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_that_changes_or_appears_makes_them_stale_and_one_that_goes_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let [here, none] = ["here", "none"].map(|name| dir.path().join(name));
        fs::write(&here, "abc").unwrap();
        let paths = [here.clone(), none.clone()];
        let stamps = Stamps::new(paths.map(|path| (path.clone(), Stamp::of(&path).ok())));
        assert!(!stamps.are_stale() && stamps.bytes() == 3);
        fs::write(&none, "").unwrap();
        assert!(stamps.are_stale());
        fs::remove_file(&none).unwrap();
        fs::write(&here, "abcd").unwrap();
        assert!(stamps.are_stale() && stamps.now() != stamps);
        fs::remove_file(&here).unwrap();
        assert!(!stamps.are_stale());
    }
}
