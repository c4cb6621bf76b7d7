//! `Explain`: what would hit for a prompt, now.

use std::cmp::Reverse;
use std::sync::Arc;

use tinygpt_proto::v1::{ExplainRequest, ExplainResponse, Relative};
use tonic::Request;

use crate::engine::event::Reason as Why;
use crate::engine::handle::Question;
use crate::engine::{divergence, reason_of};
use crate::kv::key::Fields;
use crate::service::Daemon;
use crate::service::clock::Clock;
use crate::service::convert::reply::{self, Reused};
use crate::service::convert::request;
use crate::service::entries::Entry;
use crate::service::inquire::ask;
use crate::service::models::Served;
use crate::service::peer::Peer;
use crate::service::prompt::Prompt;
use crate::service::refusal::Refusal;

/// Relatives that are told.
const RELATIVES: usize = 5;

/// Cached prompts that are compared: the ids of those on disk have to be read.
const COMPARED: usize = 500;

impl Daemon {
    pub(super) async fn explain(
        &self,
        asked: Request<ExplainRequest>,
    ) -> Result<ExplainResponse, Refusal> {
        let (peer, clock) = (Peer::of(&asked)?, Clock::start(asked.metadata()));
        let asked = asked.into_inner();
        let prompt: Prompt = request::prompt(asked.prompt)?;
        let slot = self.models.find(&asked.model)?;
        let served = slot.served(clock.deadline).await?;
        let tokens = prompt.tokens(&served).await?;
        let question = Question {
            tokens: Arc::clone(&tokens.ids),
            text: tokens.text,
            namespace: peer.namespace(request::namespace(&asked.namespace)?),
            codec: request::codec(&asked.kv_dtype, &served.info)?,
            adapter: request::adapter(&asked.adapter, &served.info)?,
        };
        let Question { codec, adapter, namespace, .. } = &question;
        let fields = served.info.fields(*codec, *adapter, namespace);
        let explained = ask(slot.engine(), move |engine| engine.explain(question)).await?;
        let reused = Reused::new(&explained.reuse, &served.tokenizer);
        Ok(ExplainResponse {
            model: served.info.name.clone(),
            prompt_tokens: tokens.count(),
            cached_tokens: explained.reuse.cached(),
            cached: Some(reply::cached(&explained.reuse)),
            verdict: reused.verdict,
            reason: reused.reason,
            divergence: reused.divergence,
            prompt_key: explained.key.to_string(),
            relatives: self.relatives(peer, &tokens.ids, &fields, &served).await?,
        })
    }

    /// The cached prompts that share most tokens with a prompt, from the first token on.
    async fn relatives(
        &self,
        peer: Peer,
        ids: &[u32],
        fields: &Fields,
        served: &Served,
    ) -> Result<Vec<Relative>, Refusal> {
        let mut relatives = Vec::new();
        for mut entry in self.entries(peer).await?.into_iter().take(COMPARED) {
            // The ids of another vocabulary mean something else.
            if entry.fields.tokenizer != fields.tokenizer {
                continue;
            }
            let Some(theirs) = self.tokens(&mut entry).await.map(<[u32]>::to_vec) else { continue };
            let common =
                ids.iter().zip(&theirs).take_while(|(ours, theirs)| ours == theirs).count();
            if common > 0 {
                let reason = why(&entry, fields, ids, &theirs, common);
                relatives.push(relative(&entry, common, reason.as_ref(), served));
            }
        }
        relatives.sort_by_key(|relative| Reverse(relative.common_tokens));
        relatives.truncate(RELATIVES);
        Ok(relatives)
    }
}

/// Why no more of a relative can be reused; `None` when all of it can.
fn why(entry: &Entry, fields: &Fields, ours: &[u32], theirs: &[u32], common: usize) -> Option<Why> {
    if let Some(field) = fields.first_difference(&entry.fields) {
        return Some(reason_of(field));
    }
    match (common == ours.len(), common == theirs.len()) {
        (true, true) if entry.complete() => None,
        (true, _) => Some(Why::NoRecord),
        (_, true) => Some(Why::Extended),
        _ => Some(Why::Diverged(divergence(ours, theirs, common))),
    }
}

fn relative(entry: &Entry, common: usize, reason: Option<&Why>, served: &Served) -> Relative {
    Relative {
        prompt_key: entry.key.to_string(),
        tokens: entry.length,
        common_tokens: reply::count(common),
        reason: reply::reason(reason).into(),
        divergence: reply::divergence(reason, &served.tokenizer),
    }
}
