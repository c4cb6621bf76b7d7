//! Models that are named while the daemon runs.
//!
//! They are read with the daemon's rights, which are those of its user, and of everybody who may
//! call it. They are gone when the daemon ends.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use tokio::task::spawn_blocking;

use super::{Models, Slot};
use crate::engine::Source;
use crate::model::found::Places;
use crate::service::refusal::Refusal;

impl Models {
    /// Loads the model called `name`, or the one at `path`, which is then called `name`, or as its
    /// file is when that is empty. A path may also be the name of a model that is found.
    ///
    /// # Errors
    /// When there is no such model, its name is another's, or it cannot be served in time.
    pub async fn load(
        &self,
        name: &str,
        path: &str,
        places: &Places,
        deadline: Option<Instant>,
    ) -> Result<Slot, Refusal> {
        if let (Ok(slot), true) = (self.find(name), path.is_empty()) {
            return slot.served(deadline).await.map(|_| slot);
        }
        let source = self.locate(name, path, places).await?;
        let (slot, added) = self.settle(source)?;
        match slot.served(deadline).await {
            Err(refusal) if added && refusal.is_final() => {
                self.remove(&slot);
                Err(refusal)
            }
            served => served.map(|_| slot),
        }
    }

    /// Where the model lies, and what it will be called.
    async fn locate(&self, name: &str, path: &str, places: &Places) -> Result<Source, Refusal> {
        let said = if path.is_empty() { name } else { path };
        let (words, places) = (said.to_owned(), places.clone());
        let absolute = Path::new(said).is_absolute();
        let look = move || match absolute {
            // Nobody is to wait for what is no file: a pipe, say.
            true => Some(words.into()).filter(|path: &std::path::PathBuf| {
                path.metadata().is_ok_and(|found| found.is_file() || found.is_dir())
            }),
            false => places.find(&words),
        };
        let found = spawn_blocking(look).await.unwrap_or_default();
        let path = found.ok_or_else(|| self.nowhere(said, absolute, path.is_empty()))?;
        let own = if absolute { Source::name_of(&path) } else { Some(said.to_owned()) };
        let name = if name.is_empty() { own.unwrap_or_default() } else { name.to_owned() };
        Ok(Source { name, path: Some(path), adapters: Vec::new(), ..(*self.like).clone() })
    }

    fn nowhere(&self, said: &str, absolute: bool, named: bool) -> Refusal {
        if absolute {
            let why = format!("{said} is no file or directory that can be read");
            return Refusal::ModelFailed { name: said.to_owned(), why };
        }
        if named && let Err(refusal) = self.find(said) {
            return refusal;
        }
        Refusal::OutOfRange {
            field: "path",
            value: format!("{said:?}"),
            allowed: "an absolute path, or the name of a model that is found".to_owned(),
        }
    }

    /// A slot for `source`, and whether it is a new one: the same model under the same name is
    /// there already.
    fn settle(&self, source: Source) -> Result<(Slot, bool), Refusal> {
        let (name, path) = (source.name.clone(), source.path.clone());
        let taken = || Refusal::OutOfRange {
            field: "name",
            value: format!("{name:?}"),
            allowed: "a name that is not another model's".to_owned(),
        };
        if name.is_empty() {
            return Err(taken());
        }
        let refuse = |error: std::io::Error| Refusal::NoThread { why: error.to_string() };
        let slot = self.slot(self.ground.unloaded(source).map_err(refuse)?);
        let mut there = None;
        self.slots.send_if_modified(|slots| {
            there = slots.iter().find(|there| there.engine().name() == name).cloned();
            if there.is_none() {
                *slots = slots.iter().chain([&slot]).cloned().collect();
            }
            there.is_none()
        });
        let Some(there) = there else { return Ok((slot, true)) };
        slot.engine().drain(Instant::now());
        if there.engine().path() == path.as_deref() { Ok((there, false)) } else { Err(taken()) }
    }

    /// Forgets a model that never served.
    fn remove(&self, slot: &Slot) {
        slot.engine().drain(Instant::now());
        let name = slot.engine().name();
        self.slots.send_modify(|slots| {
            let others = slots.iter().filter(|other| other.engine().name() != name);
            *slots = others.cloned().collect::<Arc<[_]>>();
        });
    }
}
