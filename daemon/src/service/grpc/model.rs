//! `ModelService`.

use tinygpt_proto::v1 as wire;
use tinygpt_proto::v1::model_service_server::ModelService;
use tinygpt_proto::v1::{
    FindRequest, FindResponse, LoadRequest, LoadResponse, ModelServiceGetRequest,
    ModelServiceGetResponse, ModelServiceListRequest, ModelServiceListResponse, UnloadRequest,
    UnloadResponse,
};
use tonic::{Request, Response, Status, async_trait};

use super::Models;
use crate::engine::{AdapterInfo, ModelInfo};
use crate::kv::codec::Codec;
use crate::service::clock::Clock;
use crate::service::convert::reply::{count, milliseconds};
use crate::service::models::{Readiness, Slot};
use crate::service::stream::Responses;
use crate::service::{Daemon, display};

#[async_trait]
impl ModelService for Models {
    type FindStream = Responses<FindResponse>;

    async fn list(
        &self,
        _: Request<ModelServiceListRequest>,
    ) -> Result<Response<ModelServiceListResponse>, Status> {
        Ok(Response::new(ModelServiceListResponse { models: self.0.describe_models() }))
    }

    async fn get(
        &self,
        request: Request<ModelServiceGetRequest>,
    ) -> Result<Response<ModelServiceGetResponse>, Status> {
        let slot = self.0.models.find(&request.get_ref().name)?;
        let wanted = slot.engine().name();
        let model = self.0.describe_models().into_iter().find(|model| model.name == wanted);
        Ok(Response::new(ModelServiceGetResponse { model }))
    }

    async fn find(&self, _: Request<FindRequest>) -> Result<Response<Self::FindStream>, Status> {
        Ok(Response::new(self.0.find().await?))
    }

    async fn load(&self, request: Request<LoadRequest>) -> Result<Response<LoadResponse>, Status> {
        let clock = Clock::start(request.metadata());
        let LoadRequest { name, path } = request.into_inner();
        let daemon = &self.0;
        daemon.refuse_if_draining()?;
        let places = &daemon.facts.places;
        let slot = daemon.models.load(&name, &path, places, clock.deadline).await?;
        let loaded = slot.engine().name();
        let model = daemon.describe_models().into_iter().find(|model| model.name == loaded);
        Ok(Response::new(LoadResponse { model }))
    }

    async fn unload(
        &self,
        request: Request<UnloadRequest>,
    ) -> Result<Response<UnloadResponse>, Status> {
        let clock = Clock::start(request.metadata());
        let slot = self.0.models.find(&request.get_ref().name)?;
        slot.unload(clock.deadline).await?;
        Ok(Response::new(UnloadResponse {}))
    }
}

impl Daemon {
    /// All models, the default one first.
    pub(super) fn describe_models(&self) -> Vec<wire::Model> {
        let mut models: Vec<_> = self.models.all().iter().map(describe).collect();
        models.iter_mut().take(1).for_each(|model| model.default = true);
        models
    }
}

pub(super) fn describe(slot: &Slot) -> wire::Model {
    let (state, error) = match slot.readiness() {
        Readiness::Unloaded(_) => (wire::ModelState::Unloaded, String::new()),
        Readiness::Loading => (wire::ModelState::Loading, String::new()),
        Readiness::Ready(_) => (wire::ModelState::Ready, String::new()),
        Readiness::Unloading => (wire::ModelState::Unloading, String::new()),
        Readiness::Failed(why) => (wire::ModelState::Failed, why),
        Readiness::Stopped => (wire::ModelState::Failed, "its engine has stopped".to_owned()),
    };
    let numbers = slot.info().as_deref().map(numbers).unwrap_or_default();
    let weight_bytes = if state == wire::ModelState::Ready { numbers.weight_bytes } else { 0 };
    wire::Model {
        name: slot.engine().name().to_owned(),
        path: display(slot.engine().path()),
        state: state.into(),
        error,
        weight_bytes,
        ..numbers
    }
}

/// What is known about a model that is loaded, or was.
fn numbers(info: &ModelInfo) -> wire::Model {
    let layout = info.layout(info.default_codec);
    let shape = layout.shape(0);
    let per_token = layout.token_bytes() as u64;
    wire::Model {
        architecture: info.architecture.clone(),
        format: info.format.to_owned(),
        weight_type: info.quantisation.clone(),
        file_bytes: info.file_bytes,
        weight_bytes: info.weight_bytes,
        parameters: info.parameters,
        weights_id: info.fields.weights.to_string(),
        load_ms: milliseconds(info.load),
        layers: count(layout.layers()),
        heads: count(info.heads),
        kv_heads: count(shape.kv_heads),
        head_dim: count(shape.k_dim),
        hidden: count(info.width),
        vocab: count(info.vocab),
        context: count(info.context),
        kv_dtype: info.default_codec.name().to_owned(),
        kv_dtypes: Codec::ALL.map(|codec| codec.name().to_owned()).to_vec(),
        kv_bytes_per_token: per_token,
        kv_bytes_per_token_mha: info.mha_token_bytes() as u64,
        numerics: info.numerics.to_owned(),
        tokenizer: info.tokenizer.clone(),
        adapters: info.adapters.iter().map(adapter).collect(),
        ..wire::Model::default()
    }
}

fn adapter(info: &AdapterInfo) -> wire::Adapter {
    wire::Adapter {
        name: info.name.clone(),
        path: info.path.display().to_string(),
        rank: count(info.rank),
        bytes: info.bytes,
        adapter_id: info.digest.to_string(),
    }
}
