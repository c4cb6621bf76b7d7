//! `InferenceService`: which RPC is answered where.

use tinygpt_proto::v1::inference_service_server::InferenceService;
use tinygpt_proto::v1::{
    ChatRequest, ChatResponse, DetokenizeRequest, DetokenizeResponse, EmbedRequest, EmbedResponse,
    RenderChatRequest, RenderChatResponse, SampleRequest, SampleResponse, ScoreRequest,
    ScoreResponse, TokenizeRequest, TokenizeResponse, WarmRequest, WarmResponse,
};
use tonic::{Request, Response, Status, async_trait};

use super::Inference;
use crate::service::refusal::Refusal;
use crate::service::stream::Responses;

#[async_trait]
impl InferenceService for Inference {
    type SampleStream = Responses<SampleResponse>;
    type ChatStream = Responses<ChatResponse>;
    type WarmStream = Responses<WarmResponse>;

    async fn sample(
        &self,
        request: Request<SampleRequest>,
    ) -> Result<Response<Self::SampleStream>, Status> {
        Ok(Response::new(self.0.sample(request).await?))
    }

    async fn chat(&self, _: Request<ChatRequest>) -> Result<Response<Self::ChatStream>, Status> {
        Err(Refusal::NotImplemented("Chat").into())
    }

    async fn warm(
        &self,
        request: Request<WarmRequest>,
    ) -> Result<Response<Self::WarmStream>, Status> {
        Ok(Response::new(self.0.warm(request).await?))
    }

    async fn score(
        &self,
        request: Request<ScoreRequest>,
    ) -> Result<Response<ScoreResponse>, Status> {
        Ok(Response::new(self.0.score(request).await?))
    }

    async fn embed(&self, _: Request<EmbedRequest>) -> Result<Response<EmbedResponse>, Status> {
        Err(Refusal::NotImplemented("Embed").into())
    }

    async fn tokenize(
        &self,
        request: Request<TokenizeRequest>,
    ) -> Result<Response<TokenizeResponse>, Status> {
        Ok(Response::new(self.0.tokenize(request).await?))
    }

    async fn detokenize(
        &self,
        request: Request<DetokenizeRequest>,
    ) -> Result<Response<DetokenizeResponse>, Status> {
        Ok(Response::new(self.0.detokenize(request).await?))
    }

    async fn render_chat(
        &self,
        _: Request<RenderChatRequest>,
    ) -> Result<Response<RenderChatResponse>, Status> {
        Err(Refusal::NotImplemented("RenderChat").into())
    }
}
