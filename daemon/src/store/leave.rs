//! Files that leave: out of the catalogue first, off the disk next, and only then is the name free.
//!
//! Whoever finds a file damaged or superfluous unlinks or renames it by its name, without the lock.
//! Meanwhile the writer may publish a file of the same name, which must not be what goes. So
//! whoever takes a file away takes its entry out under the lock, which only one thread can, and
//! keeps the name until the file is gone; and the writer waits for a name and takes out the entry
//! that has it before it gives the name away.

use std::fs;
use std::path::PathBuf;
use std::sync::PoisonError;

use super::catalogue::{Farewell, FileId};
use super::damage::Damage;
use super::name::{Name, QUARANTINED};
use super::shared::Shared;
use crate::kv::key::ShortKey;

/// A file that nobody finds any more. Its name is free when this is dropped.
#[derive(Debug)]
pub(super) struct Leaving<'a> {
    shared: &'a Shared,
    family: ShortKey,
    name: Name,
}

impl Shared {
    /// Unlinks a file and forgets it; a family's last one takes its directory along.
    pub(super) fn discard(&self, id: FileId, farewell: Farewell) {
        let Some(leaving) = self.leave(id, farewell) else { return };
        self.unlink(&leaving.path());
        let family = leaving.family;
        drop(leaving);
        if self.catalogue().shelf_mut(family).is_empty() {
            self.sweep_dir(&self.dir(family));
        }
    }

    /// Sets a damaged file aside, so that it is never tried again. One in a directory that is not
    /// ours any more is somebody else's.
    pub(super) fn quarantine(&self, id: FileId, damage: &Damage) {
        if self.expect_home().is_err() {
            return self.catalogue().forget(id, Farewell::Gone);
        }
        let Some(leaving) = self.leave(id, Farewell::Quarantined) else { return };
        let path = leaving.path();
        tracing::warn!(path = %path.display(), %damage, "a damaged cache file is set aside");
        leaving.set_aside();
    }

    /// Takes a file's entry out. `None` when somebody else has: the file is theirs to deal with.
    pub(super) fn leave(&self, id: FileId, farewell: Farewell) -> Option<Leaving<'_>> {
        let mut catalogue = self.catalogue();
        let (family, name) = catalogue.leave(id, farewell)?;
        if farewell == Farewell::Quarantined {
            self.tally.quarantined.add(1);
        }
        Some(Leaving { shared: self, family, name })
    }

    /// Waits until nobody is about to take a file of this name away, and takes out the entry of
    /// the one that has it. Whether there was one. Called by the writer, who alone gives names.
    pub(super) fn take_name(&self, family: ShortKey, name: Name) -> bool {
        let catalogue = self.catalogue();
        let taken = self.left.wait_while(catalogue, |catalogue| catalogue.is_leaving(family, name));
        let mut catalogue = taken.unwrap_or_else(PoisonError::into_inner);
        let old = catalogue.shelf_mut(family).by_name(&name);
        old.map(|id| catalogue.forget(id, Farewell::Gone)).is_some()
    }
}

impl Leaving<'_> {
    fn path(&self) -> PathBuf {
        self.shared.path(self.family, self.name)
    }

    pub(super) fn set_aside(self) {
        let path = self.path();
        let aside = path.with_added_extension(&QUARANTINED[1..]);
        let bytes = fs::metadata(&path).map_or(0, |metadata| metadata.len());
        match self.shared.home.permit().map(|permit| permit.rename(&path, &aside)) {
            Ok(Ok(())) => _ = self.shared.catalogue().bad.insert(aside, bytes),
            // It must not be tried again; whether it is kept matters less.
            _ => self.shared.sweep(&path),
        }
    }
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.shared.catalogue().left(self.family, self.name);
        self.shared.left.notify_all();
    }
}
