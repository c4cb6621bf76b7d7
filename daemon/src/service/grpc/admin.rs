//! `AdminService`.

use std::collections::BTreeMap;
use std::sync::Arc;

use tinygpt_proto::v1::admin_service_server::AdminService;
use tinygpt_proto::v1::{
    DaemonState, DrainRequest, DrainResponse, SetLogLevelRequest, SetLogLevelResponse,
    StatusRequest, StatusResponse, WatchRequest, WatchResponse,
};
use tonic::{Request, Response, Status, async_trait};

use super::{Admin, watch};
use crate::engine::handle::Report;
use crate::metrics::table;
use crate::service::convert::reply::count;
use crate::service::models::{Readiness, Slot};
use crate::service::refusal::Refusal;
use crate::service::stream::Responses;
use crate::service::{Daemon, LogFilter, log_filter};
use crate::store::StoreHandle;

#[async_trait]
impl AdminService for Admin {
    type WatchStream = Responses<WatchResponse>;

    async fn status(&self, _: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        Ok(Response::new(self.0.status().await))
    }

    async fn watch(
        &self,
        request: Request<WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        Ok(Response::new(watch::watch(Arc::clone(&self.0), request.get_ref())))
    }

    async fn drain(&self, _: Request<DrainRequest>) -> Result<Response<DrainResponse>, Status> {
        // First: whoever asked may be gone before the report is there.
        self.0.drain.cancel();
        let report = self.0.report().await;
        Ok(Response::new(DrainResponse { running: report.running, queued: report.waiting }))
    }

    async fn set_log_level(
        &self,
        request: Request<SetLogLevelRequest>,
    ) -> Result<Response<SetLogLevelResponse>, Status> {
        let logs = self.0.logs.as_ref().ok_or(Refusal::NotImplemented("SetLogLevel"))?;
        let previous = set_filter(logs, request.into_inner().filter)?;
        Ok(Response::new(SetLogLevelResponse { previous }))
    }
}

impl Daemon {
    async fn status(&self) -> StatusResponse {
        let report = self.report().await;
        StatusResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            socket: self.facts.socket(),
            started: Some(self.facts.started.into()),
            state: self.state().into(),
            models: self.describe_models(),
            cache_dir: self.facts.cache_dir(),
            memory: Some(self.memory_budget(&report)),
            disk: Some(self.disk_budget()),
            active: Some(self.active_budget(&report)),
            queue: Some(self.queue_budget()),
            running: report.running,
            counters: self.counters_of(&report),
            threads: count(self.facts.threads),
            warnings: self.warnings(),
        }
    }

    pub(in crate::service) fn state(&self) -> DaemonState {
        if self.drain.is_cancelled() {
            return DaemonState::Draining;
        }
        worst(self.models.all().iter().map(Slot::readiness))
    }

    /// Those of the table, and what devices did, which only their engines know.
    fn counters_of(&self, report: &Report) -> BTreeMap<String, u64> {
        let mut counters = self.counters();
        if let Some(device) = &report.device {
            let told = [
                (table::DEVICE_BYTES, device.bytes),
                (table::DOWNLOADED, device.downloaded),
                (table::UPLOADED, device.uploaded),
            ];
            counters.extend(told.map(|(metric, value)| (metric.name.to_owned(), value)));
        }
        counters
    }

    pub(super) fn warnings(&self) -> Vec<String> {
        let Some(stats) = self.store.as_ref().map(StoreHandle::stats) else { return Vec::new() };
        let full = stats.paused.map(|left| {
            format!(
                "the disk is full, {} bytes were free and {} are to stay free: nothing is written \
                 for another {} s",
                stats.free,
                stats.free_floor,
                left.as_secs() + 1
            )
        });
        let lost = stats.lost.then(|| {
            let dir = self.facts.cache_dir();
            format!("the cache directory {dir} was moved, removed or replaced: nothing is written")
        });
        full.into_iter().chain(lost).collect()
    }
}

/// One failed model is worse than any number that are still loading. One that comes when it is
/// asked is as good as loaded.
fn worst(models: impl Iterator<Item = Readiness>) -> DaemonState {
    models.fold(DaemonState::Serving, |worst, readiness| match readiness {
        Readiness::Failed(_) | Readiness::Stopped => DaemonState::Failed,
        Readiness::Loading if worst != DaemonState::Failed => DaemonState::Loading,
        Readiness::Loading
        | Readiness::Ready(_)
        | Readiness::Unloading
        | Readiness::Unloaded(_) => worst,
    })
}

/// Puts a new filter in force and returns the old one.
fn set_filter(logs: &LogFilter, filter: String) -> Result<String, Refusal> {
    let refuse = |why: String| Refusal::LogFilter { filter: filter.clone(), why };
    let parsed = log_filter(&filter).map_err(|error| refuse(error.to_string()))?;
    let previous = logs.with_current(ToString::to_string);
    let previous = previous.map_err(|error| refuse(error.to_string()))?;
    logs.reload(parsed).map_err(|error| refuse(error.to_string()))?;
    tracing::warn!(previous, filter, "log filter changed");
    Ok(previous)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_model_is_told_before_one_that_is_loading() {
        let failed = || Readiness::Failed("broken".to_owned());
        assert_eq!(worst([Readiness::Loading, failed()].into_iter()), DaemonState::Failed);
        assert_eq!(worst([failed(), Readiness::Loading].into_iter()), DaemonState::Failed);
        let loading = [Readiness::Unloaded(None), Readiness::Loading, Readiness::Unloading];
        assert_eq!(worst(loading.into_iter()), DaemonState::Loading);
        assert_eq!(worst([Readiness::Unloaded(None)].into_iter()), DaemonState::Serving);
    }
}
