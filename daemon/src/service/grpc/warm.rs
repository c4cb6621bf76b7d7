//! `Warm`: compute a prompt and keep it.

use std::sync::Arc;
use std::time::Duration;

use tinygpt_proto::v1::warm_response::Event;
use tinygpt_proto::v1::{FinishReason, PinResponse, WarmRequest, WarmResponse};
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status};

use crate::service::Daemon;
use crate::service::clock::Clock;
use crate::service::convert::request;
use crate::service::order::{Order, Wish};
use crate::service::peer::Peer;
use crate::service::refusal::Refusal;
use crate::service::stream::{Message, Responses, respond};

impl Daemon {
    pub(super) async fn warm(
        self: &Arc<Self>,
        asked: Request<WarmRequest>,
    ) -> Result<Responses<WarmResponse>, Refusal> {
        let (peer, clock) = (Peer::of(&asked)?, Clock::start(asked.metadata()));
        let asked = asked.into_inner();
        let pin = asked.pin.map(|pin| request::lease("pin", pin)).transpose()?;
        let order = Order {
            prompt: request::prompt(asked.prompt)?,
            wish: Wish::prefill(),
            caller: peer.caller(request::priority(asked.priority)?),
            namespace: peer.namespace(request::namespace(&asked.namespace)?),
            kv_dtype: asked.kv_dtype,
            adapter: asked.adapter,
            policy: request::keeping_policy(asked.cache_policy)?,
            persist: request::persist(asked.persist)?,
            pin,
            clock,
        };
        let (running, flight) = self.place(order, &asked.model).await?;
        let warmed = respond(running, false, flight, response);
        Ok(match pin {
            None => warmed,
            Some(lasts) => self.pin_when_warm(peer, warmed, lasts),
        })
    }

    /// The same responses, with the pin before the end.
    fn pin_when_warm(
        self: &Arc<Self>,
        peer: Peer,
        mut warmed: Responses<WarmResponse>,
        lasts: Duration,
    ) -> Responses<WarmResponse> {
        let (client, responses) = mpsc::channel(1);
        let daemon = Arc::clone(self);
        tokio::spawn(async move {
            loop {
                let response = tokio::select! {
                    () = client.closed() => return,
                    response = warmed.next() => response,
                };
                let Some(response) = response else { return };
                if let Some(key) = response.as_ref().ok().and_then(prompt_to_pin) {
                    let pinned = daemon.pin(peer, key, lasts).await.map(pinned);
                    let refused = pinned.is_err();
                    if client.send(pinned.map_err(Status::from)).await.is_err() || refused {
                        return;
                    }
                }
                if client.send(response).await.is_err() {
                    return;
                }
            }
        });
        ReceiverStream::new(responses)
    }
}

/// The key of the prompt that a response says is computed.
fn prompt_to_pin(response: &WarmResponse) -> Option<&str> {
    let Some(Event::Done(done)) = &response.event else { return None };
    let whole = done.finish_reason() != FinishReason::Cancelled && !done.prompt_key.is_empty();
    whole.then_some(&*done.prompt_key)
}

fn pinned(pinned: PinResponse) -> WarmResponse {
    WarmResponse { event: Some(Event::Pinned(pinned)) }
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
