//! `Score`: the log-probabilities of given tokens.

use tinygpt_proto::v1::{ScoreRequest, ScoreResponse, TokenLogprobs};
use tonic::Request;

use crate::engine::Event;
use crate::engine::event::{Done, Failure, Finish};
use crate::engine::job::Persist;
use crate::service::Daemon;
use crate::service::clock::Clock;
use crate::service::convert::reply::{self, Reused};
use crate::service::convert::request;
use crate::service::order::{Order, Placed, Wish};
use crate::service::peer::Peer;
use crate::service::refusal::Refusal;

impl Daemon {
    pub(super) async fn score(
        &self,
        asked: Request<ScoreRequest>,
    ) -> Result<ScoreResponse, Refusal> {
        let (peer, clock) = (Peer::of(&asked)?, Clock::start(asked.metadata()));
        let asked = asked.into_inner();
        let order = Order {
            prompt: request::prompt(asked.input)?,
            wish: Wish::Score { top: request::logprobs(asked.logprobs)? },
            caller: peer.caller(request::priority(asked.priority)?),
            namespace: peer.namespace(request::namespace(&asked.namespace)?),
            kv_dtype: asked.kv_dtype,
            adapter: asked.adapter,
            policy: request::policy(asked.cache_policy)?,
            persist: Persist::No,
            pin: None,
            clock,
        };
        let (mut running, mut flight) = self.place(order, &asked.model).await?;
        let mut scored = Vec::new();
        loop {
            match running.next().await.inspect_err(|_| flight.failed())? {
                Event::Scored(token) => scored.push(reply::logprobs(token)),
                // Half of the scores would look like all of them.
                Event::Done(done) if done.finish == Finish::Cancelled => {
                    flight.failed();
                    return Err(Refusal::Engine(Failure::Draining));
                }
                Event::Done(done) => {
                    flight.finished(running.placed().tokens.ids.len(), &done);
                    return Ok(response(running.placed(), &done, scored));
                }
                _ => {}
            }
        }
    }
}

/// Nothing precedes the first token, so nothing could be thought of it.
fn response(placed: &Placed, done: &Done, scored: Vec<TokenLogprobs>) -> ScoreResponse {
    let reused = Reused::new(&done.reuse, &placed.served.tokenizer);
    let first = placed.tokens.ids.first().map(|id| TokenLogprobs { id: *id, ..Default::default() });
    ScoreResponse {
        model: placed.served.info.name.clone(),
        tokens: first.into_iter().chain(scored).collect(),
        verdict: reused.verdict,
        reason: reused.reason,
        usage: Some(reply::usage(placed.tokens.count(), &done.reuse, done.completion)),
        timings: Some(reply::timings(&done.times)),
        numerics: placed.served.info.numerics.to_owned(),
    }
}
