//! Directories that somebody removed while the lock stayed: they are made again for the next save,
//! and what was in them is forgotten, lest a save be skipped for what the disk does not hold.

use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;

use super::catalogue::{Catalogue, Farewell};
use super::publish::{Unwritten, sync_dir};
use super::shared::Shared;
use super::shelf::Shelf;
use crate::kv::key::ShortKey;

impl Shared {
    /// Makes the directory of this format version again when it is gone.
    pub(super) fn expect_root(&self) -> Result<(), Unwritten> {
        let permit = self.home.permit()?;
        if !is_gone(self.root()) {
            return Ok(());
        }
        tracing::warn!(path = %self.root().display(), "the cache's files were removed");
        permit.make_dir(self.root())?;
        sync_dir(&self.settings.dir)?;
        self.catalogue().forget_all();
        Ok(())
    }

    /// Forgets a family's files when their directory is gone.
    pub(super) fn expect_family(&self, family: ShortKey) {
        if is_gone(&self.dir(family)) {
            self.catalogue().forget_family(family);
        }
    }

    /// Creates a temporary file, with the directories that it needs.
    pub(super) fn create(&self, path: &Path, sync: bool) -> Result<File, Unwritten> {
        match self.home.permit()?.create(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.expect_root()?;
                self.home.permit()?.make_dir(path.parent().unwrap_or(self.root()))?;
                if sync {
                    sync_dir(self.root())?;
                }
                Ok(self.home.permit()?.create(path)?)
            }
            created => Ok(created?),
        }
    }
}

impl Catalogue {
    fn forget_all(&mut self) {
        let families: Vec<_> = self.shelves().map(|(family, _)| family).collect();
        for family in families {
            self.forget_family(family);
            self.shelf_mut(family).has_fields_file = false;
        }
        self.sides.remove_all();
        self.bad.clear();
    }

    fn forget_family(&mut self, family: ShortKey) {
        let files: Vec<_> = Shelf::files(self.shelf_mut(family)).collect();
        files.into_iter().for_each(|id| self.forget(id, Farewell::Gone));
    }
}

fn is_gone(dir: &Path) -> bool {
    dir.try_exists().is_ok_and(|there| !there)
}
