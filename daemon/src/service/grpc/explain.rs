//! `Explain`: what would hit for a prompt, now.

use std::sync::Arc;

use tinygpt_proto::v1::{CachedTokens, ExplainRequest, ExplainResponse, Reason, Verdict};
use tonic::Request;

use super::ask;
use crate::engine::handle::{Explanation, Question};
use crate::service::Daemon;
use crate::service::convert::{reply, request};
use crate::service::order::Clock;
use crate::service::peer::Peer;
use crate::service::prompt::Prompt;
use crate::service::refusal::Refusal;

impl Daemon {
    pub(super) async fn explain(
        &self,
        asked: Request<ExplainRequest>,
    ) -> Result<ExplainResponse, Refusal> {
        let (peer, clock) = (Peer::of(&asked)?, Clock::start(asked.metadata()));
        let asked = asked.into_inner();
        request::adapter(&asked.adapter)?;
        let prompt: Prompt = request::prompt(asked.prompt)?;
        let slot = self.models.find(&asked.model)?;
        let served = slot.served(clock.deadline).await?;
        let tokens = prompt.tokens(&served).await?;
        let question = Question {
            tokens: Arc::clone(&tokens.ids),
            text: tokens.text,
            namespace: peer.namespace(request::namespace(&asked.namespace)?),
            codec: request::codec(&asked.kv_dtype, &served.info)?,
        };
        let explained = ask(slot.engine(), move |engine| engine.explain(question)).await?;
        let parting = explained.divergence.as_ref();
        Ok(ExplainResponse {
            model: served.info.name.clone(),
            prompt_tokens: tokens.count(),
            cached_tokens: explained.memory,
            cached: Some(CachedTokens { memory: explained.memory, ..Default::default() }),
            verdict: verdict(&explained).into(),
            reason: explained.reason.as_ref().map_or(Reason::Unspecified, reply::reason).into(),
            divergence: parting.map(|parting| reply::divergence(parting, &served.tokenizer)),
            prompt_key: explained.key.map(|key| key.to_string()).unwrap_or_default(),
            disk_may_have_more: explained.disk,
            relatives: Vec::new(),
        })
    }
}

/// The verdict on what memory holds. What the disk holds is known when it has been read.
fn verdict(explained: &Explanation) -> Verdict {
    match explained {
        Explanation { record: true, .. } => Verdict::FullMemory,
        Explanation { disk: true, .. } => Verdict::PartialDisk,
        Explanation { memory: 0, .. } => Verdict::Cold,
        _ => Verdict::PartialMemory,
    }
}
