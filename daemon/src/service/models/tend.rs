//! Loads the models that are asked for, and unloads those that are not: the one place that decides
//! about either.
//!
//! It goes by what is there, not by what was said: a model that is out of memory and has a request
//! waiting for it is wanted, however that came about. So nothing is lost when a request gives up,
//! and nothing is forgotten when a model goes while one comes.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::room::{Room, Tenant, overdue, room};
use super::{Models, Rules, Shortage, Slot};
use crate::engine::State;

/// How often it is looked for room that nobody tells of: requests end without a word here.
const GLANCE: Duration = Duration::from_millis(100);

/// What is known of models between two looks.
#[derive(Debug, Default)]
pub(super) struct Tending {
    /// The names of the wanted ones, in the order in which they came to be wanted.
    wanted: VecDeque<String>,
    /// Since when each has been in memory.
    since: HashMap<String, Instant>,
}

impl Tending {
    /// Tends `models` for ever.
    pub(super) async fn of(mut self, models: Models) {
        let mut changes = models.changes();
        for slot in models.all().iter().filter(|slot| slot.is_loading()) {
            slot.survey().await;
        }
        loop {
            let slots = models.all();
            let next = self.look(&slots, &models.rules);
            tokio::select! {
                Ok(()) = changes.changed() => {}
                () = models.wake.notified() => {}
                () = sleep(next) => {}
            }
        }
    }

    /// Does what is to be done now, and says when to look again although nothing was told.
    fn look(&mut self, slots: &[Slot], rules: &Rules) -> Duration {
        let tenants = self.tenants(slots);
        self.queue(slots);
        if let Some(limit) = rules.unload_after {
            overdue(limit, &tenants).into_iter().for_each(|at| slots[at].engine().unload());
        }
        let waits = self.let_in(slots, tenants, rules.memory);
        let soonest = rules.unload_after.map(|limit| (limit / 8).clamp(GLANCE, SELDOM));
        if waits { GLANCE } else { soonest.unwrap_or(FOREVER) }
    }

    fn tenants(&mut self, slots: &[Slot]) -> Vec<Tenant> {
        self.since.retain(|name, _| slots.iter().any(|slot| slot.is_called(name) && slot.is_in()));
        let arrivals = slots.iter().map(|slot| {
            let name = slot.engine().name().to_owned();
            slot.is_in().then(|| *self.since.entry(name).or_insert_with(Instant::now))
        });
        let arrivals: Vec<_> = arrivals.collect();
        slots.iter().zip(arrivals).map(|(slot, arrived)| slot.tenant(arrived)).collect()
    }

    fn queue(&mut self, slots: &[Slot]) {
        let is_wanted =
            |name: &String| slots.iter().any(|slot| slot.is_called(name) && slot.is_wanted());
        self.wanted.retain(is_wanted);
        for slot in slots.iter().filter(|slot| slot.is_wanted()) {
            if !self.wanted.iter().any(|name| slot.is_called(name)) {
                self.wanted.push_back(slot.engine().name().to_owned());
            }
        }
    }

    /// Loads the wanted models for which there is room, the first first; has others go for it. One
    /// that has to wait holds up those behind it, or it would wait for ever. Whether anything waits.
    fn let_in(&mut self, slots: &[Slot], mut tenants: Vec<Tenant>, limit: Option<u64>) -> bool {
        let limit = limit.unwrap_or(u64::MAX);
        let first = |wanted: &VecDeque<String>| {
            slots.iter().position(|slot| wanted.front().is_some_and(|name| slot.is_called(name)))
        };
        while let Some(at) = first(&self.wanted) {
            let bytes = slots[at].expected();
            match room(bytes, limit, &tenants) {
                Room::Free => {
                    slots[at].tell_shortage(None);
                    slots[at].engine().load();
                    tenants[at] = Tenant::Moving(bytes);
                    self.wanted.pop_front();
                    continue;
                }
                Room::After(go) => go.into_iter().for_each(|at| slots[at].engine().unload()),
                Room::Full(taken) => {
                    slots[at].tell_shortage(Some(Shortage { bytes, taken, limit }));
                }
            }
            return true;
        }
        // Weights may take more than their file said.
        match room(0, limit, &tenants) {
            Room::Free => false,
            Room::After(go) => {
                go.into_iter().for_each(|at| slots[at].engine().unload());
                true
            }
            Room::Full(_) => true,
        }
    }
}

impl Slot {
    fn is_called(&self, name: &str) -> bool {
        self.engine().name() == name
    }

    /// Whether its model is in memory and stays there for now.
    fn is_in(&self) -> bool {
        self.engine().is_ready() && !self.engine().is_ordered()
    }

    /// What it takes of memory now.
    fn tenant(&self, arrived: Option<Instant>) -> Tenant {
        let state = self.engine().state().borrow().clone();
        match (state, arrived) {
            (State::Ready(info), Some(arrived)) => Tenant::In {
                bytes: info.weight_bytes,
                idle: (!self.presence.is_attended()).then(|| self.presence.idle()),
                age: arrived.elapsed(),
            },
            (State::Ready(_) | State::Loading | State::Unloading, _) => {
                Tenant::Moving(self.expected())
            }
            (State::Unloaded, _) if self.engine().is_ordered() => Tenant::Moving(self.expected()),
            (State::Unloaded | State::Failed(_) | State::Poisoned, _) => Tenant::Out,
        }
    }
}

/// A model without requests is found out about an eighth of its time late at most, and no later
/// than this.
const SELDOM: Duration = Duration::from_secs(30);

/// Until something is told.
const FOREVER: Duration = Duration::from_secs(24 * 3600);
