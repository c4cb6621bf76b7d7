//! `Warm`: compute a prompt and keep it.

use tinygpt_proto::v1::warm_response::Event;
use tinygpt_proto::v1::{Sampling, WarmRequest, WarmResponse};
use tonic::Request;

use crate::service::Daemon;
use crate::service::clock::Clock;
use crate::service::convert::request;
use crate::service::order::{Order, Wish};
use crate::service::peer::Peer;
use crate::service::refusal::Refusal;
use crate::service::stream::{Message, Responses, respond};

impl Daemon {
    pub(super) async fn warm(
        &self,
        asked: Request<WarmRequest>,
    ) -> Result<Responses<WarmResponse>, Refusal> {
        let (peer, clock) = (Peer::of(&asked)?, Clock::start(asked.metadata()));
        let asked = asked.into_inner();
        let order = Order {
            prompt: request::prompt(asked.prompt)?,
            wish: Wish::sample(Sampling { max_tokens: Some(0), ..Sampling::default() }),
            caller: peer.caller(request::priority(asked.priority)?),
            namespace: peer.namespace(request::namespace(&asked.namespace)?),
            kv_dtype: asked.kv_dtype,
            adapter: asked.adapter,
            policy: request::keeping_policy(asked.cache_policy)?,
            persist: request::persist(asked.persist)?,
            clock,
        };
        let (running, flight) = self.place(order, &asked.model).await?;
        Ok(respond(running, false, flight, response))
    }
}

/// A request that generates nothing has no deltas.
fn response(_: u32, message: Message) -> WarmResponse {
    let event = match message {
        Message::Admitted(admitted) => Some(Event::Admitted(admitted)),
        Message::Progress(progress) => Some(Event::PrefillProgress(progress)),
        Message::Delta(_) => None,
        Message::Done(done) => Some(Event::Done(done)),
    };
    WarmResponse { event }
}
