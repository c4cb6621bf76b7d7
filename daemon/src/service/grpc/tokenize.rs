//! `Tokenize` and `Detokenize`.

use std::sync::Arc;

use tinygpt_proto::v1::{DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse};
use tonic::Request;

use crate::service::Daemon;
use crate::service::clock::Clock;
use crate::service::prompt::{encode, known};
use crate::service::refusal::Refusal;

impl Daemon {
    pub(super) async fn tokenize(
        &self,
        asked: Request<TokenizeRequest>,
    ) -> Result<TokenizeResponse, Refusal> {
        let clock = Clock::start(asked.metadata());
        let asked = asked.into_inner();
        let served = self.models.find(&asked.model)?.served(clock.deadline).await?;
        let token_ids = encode(Arc::from(asked.text), asked.bare, &served).await?;
        Ok(TokenizeResponse { token_ids })
    }

    pub(super) async fn detokenize(
        &self,
        asked: Request<DetokenizeRequest>,
    ) -> Result<DetokenizeResponse, Refusal> {
        let clock = Clock::start(asked.metadata());
        let asked = asked.into_inner();
        let served = self.models.find(&asked.model)?.served(clock.deadline).await?;
        known(&asked.token_ids, served.info.vocab, "token_ids")?;
        Ok(DetokenizeResponse { text: served.tokenizer.decode(&asked.token_ids) })
    }
}
