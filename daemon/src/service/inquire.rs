//! What the service asks of the engines and of the store, beside orders.
//!
//! An engine answers between two steps, and the store when the disk has: both are waited for off
//! the runtime's threads. An engine that loads its model answers nobody, so it is not asked.

use std::time::Duration;

use tinygpt_proto::v1::Budget;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::Daemon;
use super::models::Slot;
use super::refusal::Refusal;
use crate::engine::EngineHandle;
use crate::engine::handle::{Refused, Removal, Report};
use crate::store::StoreHandle;

/// How long a report waits for an engine: one that does not answer is news, too.
const PATIENCE: Duration = Duration::from_secs(5);

/// Asks an engine something that it answers between two steps, off the runtime.
pub(super) async fn ask<T: Send + 'static>(
    engine: &EngineHandle,
    question: impl FnOnce(&EngineHandle) -> Result<T, Refused> + Send + 'static,
) -> Result<T, Refusal> {
    let asked = engine.clone();
    let answer = spawn_blocking(move || question(&asked)).await;
    match answer {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(refused)) => Err(Refusal::from_engine(refused, engine.name())),
        Err(_) => Err(Refusal::Stopped { name: engine.name().to_owned() }),
    }
}

/// What engines forgot.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Forgotten {
    /// Blocks of all engines.
    pub(super) blocks: u64,
    /// Pins, which every engine knows.
    pub(super) pins: u64,
}

impl Daemon {
    /// What all engines report, added up. Engines that do not answer are left out.
    pub(super) async fn report(&self) -> Report {
        let mut sum = Report::default();
        for engine in self.answering() {
            let answer = timeout(PATIENCE, ask(&engine, |engine| engine.report())).await;
            let Ok(Ok(report)) = answer else { continue };
            sum.running += report.running;
            sum.waiting += report.waiting;
            sum.blocks += report.blocks;
            sum.records += report.records;
            sum.heap_bytes += report.heap_bytes;
            sum.active_bytes += report.active_bytes;
            let devices = sum.device.into_iter().chain(report.device);
            sum.device = devices.reduce(|sum, more| sum.plus(more));
        }
        sum
    }

    /// The engines that hold anything and answer questions now.
    pub(super) fn answering(&self) -> Vec<EngineHandle> {
        let slots = self.models.all();
        slots.iter().map(Slot::engine).filter(|engine| engine.is_ready()).cloned().collect()
    }

    /// Forgets in the memory of all engines, and says how much. What an engine holds while
    /// it loads its model again is not counted.
    pub(super) async fn forget(&self, what: Removal) -> Result<Forgotten, Refusal> {
        let mut forgotten = Forgotten::default();
        for slot in &*self.models.all() {
            let engine = slot.engine();
            let what = what.clone();
            if engine.is_ready() {
                let removed = ask(engine, move |engine| engine.remove(what)).await?;
                forgotten.blocks += removed.blocks;
                forgotten.pins = forgotten.pins.max(removed.pins);
            } else {
                engine.remove_behind(what);
            }
        }
        Ok(forgotten)
    }

    /// Does something in the store that waits for the disk. `None` without a store.
    pub(super) async fn in_store<T: Send + 'static>(
        &self,
        work: impl FnOnce(&StoreHandle) -> T + Send + 'static,
    ) -> Option<T> {
        let store = self.store.clone()?;
        spawn_blocking(move || work(&store)).await.ok()
    }

    /// Every engine has a heap and an active budget of its own.
    pub(super) fn memory_budget(&self, report: &Report) -> Budget {
        self.budget(report.heap_bytes, self.facts.engine.cache_budget.heap)
    }

    pub(super) fn active_budget(&self, report: &Report) -> Budget {
        self.budget(report.active_bytes, self.facts.engine.active_budget)
    }

    pub(super) fn queue_budget(&self) -> Budget {
        let waiting: usize = self.models.all().iter().map(|slot| slot.engine().waiting()).sum();
        self.budget(waiting as u64, self.facts.engine.queue)
    }

    fn budget(&self, used: u64, each: usize) -> Budget {
        Budget { used, limit: Some((each * self.models.all().len()) as u64) }
    }

    pub(super) fn disk_budget(&self) -> Budget {
        match &self.store {
            None => Budget { used: 0, limit: Some(0) },
            Some(store) => {
                let stats = store.stats();
                Budget { used: stats.bytes, limit: Some(stats.budget) }
            }
        }
    }
}
