//! `CacheService`.

use std::collections::BTreeMap;
use std::pin::Pin;

use tinygpt_proto::v1::cache_service_server::CacheService;
use tinygpt_proto::v1::remove_request::Target;
use tinygpt_proto::v1::{
    Budget, CacheEntry, CacheServiceGetRequest, CacheServiceGetResponse, CacheServiceListRequest,
    CacheServiceListResponse, ExplainRequest, ExplainResponse, ExportRequest, ExportResponse,
    GcRequest, GcResponse, ImportRequest, ImportResponse, PinRequest, PinResponse, RemoveRequest,
    RemoveResponse, StatsRequest, StatsResponse, UnpinRequest, UnpinResponse, VerifyRequest,
    VerifyResponse,
};
use tokio_stream::Stream;
use tonic::{Request, Response, Status, Streaming, async_trait};

use super::Cache;
use super::pin::moment;
use crate::engine::handle::Removal;
use crate::kv::layout::BLOCK;
use crate::service::Daemon;
use crate::service::convert::reply::count;
use crate::service::entries::Entry;
use crate::service::inquire::Forgotten;
use crate::service::peer::Peer;
use crate::service::refusal::{Count, Refusal};
use crate::service::stream::Responses;
use crate::service::tally::Counter;
use crate::store::{self, StoreHandle};

/// Entries whose text `List` shows the beginning of: reading it from disk takes a moment each.
const PREVIEWS: usize = 200;

#[async_trait]
impl CacheService for Cache {
    type ListStream = Pin<Box<dyn Stream<Item = Result<CacheServiceListResponse, Status>> + Send>>;
    type ExportStream = Responses<ExportResponse>;

    async fn list(
        &self,
        request: Request<CacheServiceListRequest>,
    ) -> Result<Response<Self::ListStream>, Status> {
        let peer = Peer::of(&request)?;
        let entries = self.0.list(peer, &request.get_ref().model).await?;
        let responses =
            entries.into_iter().map(|entry| Ok(CacheServiceListResponse { entry: Some(entry) }));
        Ok(Response::new(Box::pin(tokio_stream::iter(responses))))
    }

    async fn get(
        &self,
        request: Request<CacheServiceGetRequest>,
    ) -> Result<Response<CacheServiceGetResponse>, Status> {
        let peer = Peer::of(&request)?;
        Ok(Response::new(self.0.get(peer, &request.get_ref().key).await?))
    }

    async fn explain(
        &self,
        request: Request<ExplainRequest>,
    ) -> Result<Response<ExplainResponse>, Status> {
        Ok(Response::new(self.0.explain(request).await?))
    }

    async fn pin(&self, request: Request<PinRequest>) -> Result<Response<PinResponse>, Status> {
        let peer = Peer::of(&request)?;
        Ok(Response::new(self.0.pin_on_request(peer, request.into_inner()).await?))
    }

    async fn unpin(
        &self,
        request: Request<UnpinRequest>,
    ) -> Result<Response<UnpinResponse>, Status> {
        let peer = Peer::of(&request)?;
        Ok(Response::new(self.0.unpin(peer, &request.get_ref().key).await?))
    }

    async fn remove(
        &self,
        request: Request<RemoveRequest>,
    ) -> Result<Response<RemoveResponse>, Status> {
        let peer = Peer::of(&request)?;
        Ok(Response::new(self.0.remove(peer, request.into_inner().target).await?))
    }

    async fn verify(
        &self,
        request: Request<VerifyRequest>,
    ) -> Result<Response<VerifyResponse>, Status> {
        if !request.get_ref().keys.is_empty() {
            return Err(Refusal::NotImplemented("keys in Verify").into());
        }
        Ok(Response::new(self.0.verify().await?))
    }

    async fn gc(&self, request: Request<GcRequest>) -> Result<Response<GcResponse>, Status> {
        if request.get_ref().disk_bytes.is_some() {
            return Err(Refusal::NotImplemented("disk_bytes in Gc").into());
        }
        let collected = self.0.in_store(|store| store.gc()).await.unwrap_or_default();
        let (files, disk_bytes) = (count(collected.files), collected.bytes);
        Ok(Response::new(GcResponse { files, memory_bytes: 0, disk_bytes }))
    }

    async fn export(
        &self,
        _: Request<ExportRequest>,
    ) -> Result<Response<Self::ExportStream>, Status> {
        Err(Refusal::NotImplemented("Export").into())
    }

    async fn import(
        &self,
        _: Request<Streaming<ImportRequest>>,
    ) -> Result<Response<ImportResponse>, Status> {
        Err(Refusal::NotImplemented("Import").into())
    }

    async fn stats(
        &self,
        request: Request<StatsRequest>,
    ) -> Result<Response<StatsResponse>, Status> {
        Ok(Response::new(self.0.stats(Peer::of(&request)?).await?))
    }
}

impl Daemon {
    async fn list(&self, peer: Peer, model: &str) -> Result<Vec<CacheEntry>, Refusal> {
        if !model.is_empty() {
            self.models.find(model)?;
        }
        let mut entries = self.entries(peer).await?;
        entries.retain(|entry| model.is_empty() || entry.model() == model);
        let previews = entries.len().min(PREVIEWS);
        let (shown, bare) = entries.split_at_mut(previews);
        let mut listed = Vec::with_capacity(shown.len() + bare.len());
        for entry in shown {
            let preview = self.text(entry).await.map(|text| beginning(&text)).unwrap_or_default();
            listed.push(CacheEntry { preview, ..wire(entry) });
        }
        listed.extend(bare.iter().map(wire));
        Ok(listed)
    }

    async fn get(&self, peer: Peer, key: &str) -> Result<CacheServiceGetResponse, Refusal> {
        let mut entry = self.entry(peer, key).await?;
        let text = self.text(&mut entry).await.unwrap_or_default();
        let blocks = self.blocks(&entry).await?;
        let listed = CacheEntry { preview: beginning(&text), ..wire(&entry) };
        let token_ids = entry.tokens.clone().unwrap_or_default();
        Ok(CacheServiceGetResponse { entry: Some(listed), token_ids, text, blocks })
    }

    async fn remove(&self, peer: Peer, target: Option<Target>) -> Result<RemoveResponse, Refusal> {
        let before = self.report().await;
        let mut removed = RemoveResponse::default();
        match target {
            Some(Target::All(true)) => {
                removed.entries = count(self.entries(peer).await?.len());
                let gone = self.in_store(|store| store.remove_all()).await.unwrap_or_default();
                let Forgotten { blocks, pins } = self.forget(Removal::All).await?;
                removed.pins = count(pins.max(gone.pins));
                self.expect_gone(gone)?;
                removed.blocks = count(blocks.max(gone.blocks));
                removed.disk_bytes = gone.bytes;
            }
            Some(Target::Keys(keys)) => {
                let mut doomed = BTreeMap::new();
                for key in &keys.keys {
                    let entry = self.entry(peer, key).await?;
                    doomed.insert(entry.key.to_string(), entry);
                }
                let mut gone = Ok(());
                for entry in doomed.values() {
                    gone = gone.and(self.remove_entry(entry, &mut removed).await);
                }
                gone?;
            }
            Some(Target::All(false)) | None => {
                return Err(Refusal::OutOfRange {
                    field: "target",
                    value: "empty".to_owned(),
                    allowed: "keys, or all = true".to_owned(),
                });
            }
        }
        let after = self.report().await;
        removed.memory_bytes = before.heap_bytes.saturating_sub(after.heap_bytes);
        Ok(removed)
    }

    async fn remove_entry(
        &self,
        entry: &Entry,
        removed: &mut RemoveResponse,
    ) -> Result<(), Refusal> {
        let (fingerprint, end) = (entry.fingerprint, entry.end.clone());
        let gone = self.in_store(move |store| store.remove(&fingerprint, &end)).await;
        let gone = gone.unwrap_or_default();
        let forgotten = self.forget(Removal::Prompt(entry.end.clone())).await?;
        self.expect_gone(gone)?;
        removed.entries += 1;
        // Blocks in both tiers are the same blocks, and so are pins.
        removed.blocks += count(forgotten.blocks.max(gone.blocks));
        removed.pins += count(forgotten.pins.max(gone.pins));
        removed.disk_bytes += gone.bytes;
        Ok(())
    }

    /// Whoever asks for prompts to be removed must be told when some are not.
    fn expect_gone(&self, removed: store::Removed) -> Result<(), Refusal> {
        match removed {
            store::Removed { moved: true, .. } => {
                Err(Refusal::CacheMoved { dir: self.facts.cache_dir() })
            }
            store::Removed { kept: 0, .. } => Ok(()),
            store::Removed { kept, .. } => Err(Refusal::NotRemoved { files: Count(kept) }),
        }
    }

    async fn verify(&self) -> Result<VerifyResponse, Refusal> {
        let verified = self.in_store(|store| store.verify(true)).await.unwrap_or_default();
        if !verified.bad.is_empty() {
            let name = |path: &std::path::Path| {
                path.file_name().map(|name| name.to_string_lossy().into_owned())
            };
            let names: Vec<_> = verified.bad.iter().filter_map(|(path, _)| name(path)).collect();
            return Err(Refusal::Damaged {
                damaged: verified.bad.len().into(),
                checked: Count(verified.files),
                names: names.join(", "),
            });
        }
        Ok(VerifyResponse {
            segments: count(verified.segments),
            records: count(verified.records),
            bytes: verified.bytes,
        })
    }

    async fn stats(&self, peer: Peer) -> Result<StatsResponse, Refusal> {
        let entries = self.entries(peer).await?;
        let report = self.report().await;
        let store = self.store.as_ref().map(StoreHandle::stats).unwrap_or_default();
        let cached = [Counter::MemoryTokens, Counter::DiskTokens, Counter::JoinedTokens];
        Ok(StatsResponse {
            entries: entries.len() as u64,
            records: entries.iter().filter(|entry| entry.complete()).count() as u64,
            blocks: report.blocks,
            segments: store.segments,
            memory: Some(self.memory_budget(&report)),
            disk: Some(self.disk_budget()),
            mappings: Some(Budget {
                used: store.mapped_segments,
                limit: Some(self.facts.engine.cache_budget.mappings as u64),
            }),
            active: Some(self.active_budget(&report)),
            write_queue: Some(Budget { used: store.queue_bytes, limit: Some(store.queue_limit) }),
            quarantined: store.quarantined,
            prompt_tokens: self.tally.count(Counter::PromptTokens),
            cached_tokens: cached.into_iter().map(|counter| self.tally.count(counter)).sum(),
            cache_dir: self.facts.cache_dir(),
            packed_bytes: store.side_bytes,
        })
    }
}

fn wire(entry: &Entry) -> CacheEntry {
    let (memory, disk) = (entry.memory.as_ref(), entry.disk.as_ref());
    CacheEntry {
        prompt_key: entry.key.to_string(),
        model: entry.model().to_owned(),
        fingerprint: entry.fingerprint.to_string(),
        tokens: entry.length,
        blocks: entry.length / count(BLOCK),
        memory_bytes: memory.map_or(0, |memory| memory.heap_bytes),
        mapped_bytes: memory.map_or(0, |memory| memory.mapped_bytes),
        disk_bytes: disk.map_or(0, |disk| disk.bytes),
        record: entry.complete(),
        kv_dtype: entry.codec.map(|codec| codec.name().to_owned()).unwrap_or_default(),
        numerics: entry.numerics().to_owned(),
        preview: String::new(),
        created: disk.and_then(|disk| disk.created_ms).map(moment),
        last_used: disk.map(|disk| moment(disk.used_ms)),
        pinned_until: entry.pinned_ms().map(moment),
    }
}

/// The first characters of a text, on one line.
fn beginning(text: &str) -> String {
    text.chars().take(60).map(|c| if c.is_control() { ' ' } else { c }).collect()
}
