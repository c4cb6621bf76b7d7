//! `Sample`: generate from a raw prompt.

use tinygpt_proto::v1::sample_response::Event;
use tinygpt_proto::v1::{SampleRequest, SampleResponse};
use tonic::Request;

use crate::service::Daemon;
use crate::service::clock::Clock;
use crate::service::convert::request;
use crate::service::order::{Order, Wish};
use crate::service::peer::Peer;
use crate::service::refusal::Refusal;
use crate::service::stream::{Message, Responses, respond};

impl Daemon {
    pub(super) async fn sample(
        &self,
        asked: Request<SampleRequest>,
    ) -> Result<Responses<SampleResponse>, Refusal> {
        let (peer, clock) = (Peer::of(&asked)?, Clock::start(asked.metadata()));
        let asked = asked.into_inner();
        let order = Order {
            prompt: request::prompt(asked.prompt)?,
            wish: Wish::sample(asked.sampling.unwrap_or_default()),
            caller: peer.caller(request::priority(asked.priority)?),
            namespace: peer.namespace(request::namespace(&asked.namespace)?),
            kv_dtype: asked.kv_dtype,
            adapter: asked.adapter,
            policy: request::policy(asked.cache_policy)?,
            persist: request::persist(asked.persist)?,
            pin: None,
            clock,
        };
        let (running, flight) = self.place(order, &asked.model).await?;
        Ok(respond(running, asked.echo_prompt_ids, flight, response))
    }
}

fn response(choice: u32, message: Message) -> SampleResponse {
    let event = match message {
        Message::Admitted(admitted) => Event::Admitted(admitted),
        Message::Progress(progress) => Event::PrefillProgress(progress),
        Message::Delta(delta) => Event::Delta(delta),
        Message::Done(done) => Event::Done(done),
    };
    SampleResponse { choice, event: Some(event) }
}
