//! `Pin` and `Unpin`: prompts kept from eviction for a time, in memory and on disk.
//!
//! The disk comes first: what was saved is mapped by then, and takes no memory of its own. What
//! one tier refuses, the other does not keep either.

use std::time::{Duration, SystemTime};

use tinygpt_proto::v1::{PinRequest, PinResponse, UnpinResponse};

use crate::kv::key::RecordKey;
use crate::service::Daemon;
use crate::service::convert::request;
use crate::service::inquire::ask;
use crate::service::models::Slot;
use crate::service::peer::Peer;
use crate::service::refusal::{Count, Refusal};
use crate::store::{Lease, NoRoom, Pinned};

/// How long a prompt is pinned when nobody says.
const LEASE: Duration = Duration::from_hours(1);

impl Daemon {
    pub(super) async fn pin_on_request(
        &self,
        peer: Peer,
        asked: PinRequest,
    ) -> Result<PinResponse, Refusal> {
        let lasts = asked.lease.map_or(Ok(LEASE), |lease| request::lease("lease", lease))?;
        self.pin(peer, &asked.key, lasts).await
    }

    /// Pins the one cached prompt of `peer` whose key begins with `key`, or renews its lease.
    pub(in crate::service) async fn pin(
        &self,
        peer: Peer,
        key: &str,
        lasts: Duration,
    ) -> Result<PinResponse, Refusal> {
        let entry = self.entry(peer, key).await?;
        let lease = Lease::new(entry.fingerprint, entry.end, lasts);
        let on_disk = self.pin_on_disk(lease.clone()).await?;
        let in_memory = match self.pin_in_memory(&lease).await {
            Ok(in_memory) => in_memory,
            Err(refusal) => {
                if on_disk.is_none_or(|pinned| pinned.fresh) {
                    self.let_go(lease.key()).await;
                }
                return Err(refusal);
            }
        };
        if on_disk.is_none() && in_memory.bytes == 0 {
            // It was evicted since it was found.
            self.let_go(lease.key()).await;
            return Err(Refusal::UnknownKey { key: key.to_owned() });
        }
        let until = on_disk.map_or(in_memory.until, |on_disk| on_disk.until.max(in_memory.until));
        let bytes = on_disk.map_or(0, |on_disk| on_disk.bytes).max(in_memory.bytes);
        Ok(PinResponse { expires: Some(moment(until)), bytes, durable: on_disk.is_some() })
    }

    pub(super) async fn unpin(&self, peer: Peer, key: &str) -> Result<UnpinResponse, Refusal> {
        let entry = self.entry(peer, key).await?;
        self.let_go(entry.key).await;
        Ok(UnpinResponse {})
    }

    async fn pin_on_disk(&self, lease: Lease) -> Result<Option<Pinned>, Refusal> {
        let pinned = self.in_store(move |store| store.pin(lease)).await;
        Ok(pinned.unwrap_or(Ok(None))?)
    }

    /// Whichever engine holds the prompt, or will, keeps it.
    async fn pin_in_memory(&self, lease: &Lease) -> Result<Pinned, Refusal> {
        let mut all = Pinned { bytes: 0, until: lease.until, fresh: true };
        for engine in self.models.all().iter().map(Slot::engine) {
            let lease = lease.clone();
            if !engine.is_ready() {
                engine.pin_behind(lease);
                continue;
            }
            let pinned = ask(engine, move |engine| engine.pin(lease)).await??;
            all.bytes = all.bytes.max(pinned.bytes);
            all.until = all.until.max(pinned.until);
        }
        Ok(all)
    }

    async fn let_go(&self, key: RecordKey) {
        self.in_store(move |store| store.unpin(key)).await;
        self.models.all().iter().for_each(|slot| slot.engine().unpin_behind(key));
    }
}

impl From<NoRoom> for Refusal {
    fn from(NoRoom { what, needed, held, limit }: NoRoom) -> Self {
        let [needed, held, limit] = [needed, held, limit].map(Count);
        Self::PinBudget { what, needed, held, limit }
    }
}

/// A moment in milliseconds since the epoch.
pub(super) fn moment(since: u64) -> prost_types::Timestamp {
    (SystemTime::UNIX_EPOCH + Duration::from_millis(since)).into()
}
