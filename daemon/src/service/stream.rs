//! From an engine's events to the messages of a response stream.
//!
//! A task per request moves events from the engine's channel to the client's. While the client is
//! not ready for a message, tokens gather in one pending delta, so that a slow reader gets fewer
//! and longer messages and costs nobody anything. Beyond a mebibyte the task stops
//! reading; the engine's channel then fills, and that one sequence pauses.
//!
//! The client's end of its own stream of requests means nothing here. That it has gone is seen by
//! its response stream being dropped; the task then ends, and with it the engine's work.

use std::collections::VecDeque;
use std::sync::Arc;

use tinygpt_proto::v1 as wire;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::convert::reply::{self, Reused};
use super::order::Running;
use super::refusal::Refusal;
use super::tally::Flight;
use crate::engine::Event;
use crate::engine::event::{Admitted, Done, Token};
use crate::engine::job::Persist;
use crate::text::Transcript;

/// Most bytes that wait for one client.
const MOST_PENDING: usize = 1 << 20;

/// A message of a response stream, whichever RPC it belongs to.
#[derive(Debug)]
pub enum Message {
    /// The request runs.
    Admitted(wire::Admitted),
    /// The prompt is being computed.
    Progress(wire::PrefillProgress),
    /// New output.
    Delta(wire::Delta),
    /// The end.
    Done(wire::Done),
}

/// A stream of responses.
pub type Responses<R> = ReceiverStream<Result<R, Status>>;

/// The responses to a running request; `wrap` makes the RPC's own message.
pub fn respond<R: Send + 'static>(
    running: Running,
    echo: bool,
    flight: Flight,
    wrap: fn(u32, Message) -> R,
) -> Responses<R> {
    let (client, stream) = mpsc::channel(1);
    let script = Script::new(&running, echo);
    tokio::spawn(pump(running, script, flight, client, wrap));
    ReceiverStream::new(stream)
}

async fn pump<R>(
    mut running: Running,
    mut script: Script,
    mut flight: Flight,
    client: mpsc::Sender<Result<R, Status>>,
    wrap: fn(u32, Message) -> R,
) {
    let mut pending = Pending::default();
    let mut open = true;
    while open || !pending.is_empty() {
        tokio::select! {
            biased;
            permit = client.reserve(), if !pending.is_empty() => {
                let Ok(permit) = permit else { return };
                if let Some((choice, message)) = pending.pop() {
                    permit.send(Ok(wrap(choice, message)));
                }
            }
            () = client.closed(), if pending.is_empty() => return,
            event = running.next(), if open && pending.has_room() => match event {
                Ok(event) => {
                    open = script.play(&running, event, &mut pending);
                    if let Some(done) = script.ended.take_if(|_| !open) {
                        flight.finished(running.placed().tokens.ids.len(), &done);
                    }
                }
                Err(refusal) => {
                    flight.failed();
                    return fail(refusal, pending, &client, wrap).await;
                }
            },
        }
    }
}

/// Sends what is still pending, then the status that ends the stream.
async fn fail<R>(
    refusal: Refusal,
    mut pending: Pending,
    client: &mpsc::Sender<Result<R, Status>>,
    wrap: fn(u32, Message) -> R,
) {
    while let Some((choice, message)) = pending.pop() {
        if client.send(Ok(wrap(choice, message))).await.is_err() {
            return;
        }
    }
    // A client that has gone needs no status.
    let _ = client.send(Err(refusal.into())).await;
}

/// Turns events into messages.
#[derive(Debug)]
struct Script {
    /// Of each choice.
    transcripts: Vec<Transcript>,
    echo: bool,
    logprobs: bool,
    /// Choices that have not ended.
    open: u32,
    /// The last end, with the tokens of all choices that have ended.
    ended: Option<Done>,
}

impl Script {
    fn new(running: &Running, echo: bool) -> Self {
        let sampling = running.order().sampling();
        let stops = sampling.map(|sampling| sampling.stop.clone()).unwrap_or_default();
        let tokenizer = running.placed().served.tokenizer.clone();
        let open = sampling.map_or(1, |sampling| sampling.n.max(1));
        let transcript = |_| Transcript::new(Arc::clone(&tokenizer), stops.clone());
        Self {
            transcripts: (0..open).map(transcript).collect(),
            echo,
            logprobs: sampling.is_some_and(|sampling| sampling.logprobs.is_some()),
            open,
            ended: None,
        }
    }

    /// Whether more will follow.
    fn play(&mut self, running: &Running, event: Event, pending: &mut Pending) -> bool {
        match event {
            Event::Admitted(admitted) => {
                // The model may have been loaded anew since the order was placed first.
                *self = Self::new(running, self.echo);
                pending.push(0, Message::Admitted(self.admitted(running, &admitted)));
            }
            Event::Progress { done, total } => {
                let progress = wire::PrefillProgress { done_tokens: done, total_tokens: total };
                pending.push(0, Message::Progress(progress));
            }
            Event::Token(token) => pending.push(token.choice, Message::Delta(self.delta(token))),
            Event::Done(done) => {
                self.end(running, &done, pending);
                return self.open > 0;
            }
            // Scores go to Score, failures end `Running::next`.
            Event::Scored(_) | Event::Failed(_) => {}
        }
        true
    }

    fn end(&mut self, running: &Running, done: &Done, pending: &mut Pending) {
        let rest = self.transcripts[done.choice as usize].finish();
        if !rest.is_empty() {
            let delta = wire::Delta { text: rest, ..Default::default() };
            pending.push(done.choice, Message::Delta(delta));
        }
        pending.push(done.choice, Message::Done(finished(running, done)));
        let before = self.ended.take().map_or(0, |ended| ended.completion);
        self.ended = Some(Done { completion: before + done.completion, ..done.clone() });
        self.open -= 1;
    }

    fn admitted(&self, running: &Running, admitted: &Admitted) -> wire::Admitted {
        let placed = running.placed();
        let reused = Reused::new(&admitted.reuse, &placed.served.tokenizer);
        let sampling = running.order().sampling();
        wire::Admitted {
            model: placed.served.info.name.clone(),
            prompt_tokens: placed.tokens.count(),
            max_tokens: placed.max_tokens,
            queue_ms: reply::milliseconds(admitted.queued),
            verdict: reused.verdict,
            reason: reused.reason,
            divergence: reused.divergence,
            warnings: placed.tokens.warnings.clone(),
            prompt_token_ids: if self.echo { placed.tokens.ids.to_vec() } else { Vec::new() },
            seed: sampling.and_then(|sampling| sampling.seed).unwrap_or_default(),
        }
    }

    fn delta(&mut self, token: Token) -> wire::Delta {
        let (id, text) = (token.id, self.transcripts[token.choice as usize].push(token.id));
        let logprobs = self.logprobs.then(|| reply::logprobs(token));
        wire::Delta { text, token_ids: vec![id], logprobs: logprobs.into_iter().collect() }
    }
}

fn finished(running: &Running, done: &Done) -> wire::Done {
    let placed = running.placed();
    let reused = Reused::new(&done.reuse, &placed.served.tokenizer);
    let durable = running.order().persist == Persist::Durable && done.key.is_some();
    wire::Done {
        finish_reason: reply::finish(done.finish).into(),
        verdict: reused.verdict,
        reason: reused.reason,
        divergence: reused.divergence,
        usage: Some(reply::usage(placed.tokens.count(), &done.reuse, done.completion)),
        timings: Some(reply::timings(&done.times)),
        numerics: placed.served.info.numerics.to_owned(),
        prompt_key: done.key.map(|key| key.to_string()).unwrap_or_default(),
        warnings: reply::warnings(done, durable),
    }
}

/// Messages that the client is not ready for yet.
#[derive(Debug, Default)]
struct Pending {
    messages: VecDeque<(u32, Message)>,
    bytes: usize,
}

impl Pending {
    fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    fn has_room(&self) -> bool {
        self.bytes < MOST_PENDING
    }

    /// Takes a message about a choice in; one that continues the choice's last becomes one with
    /// it. The order of messages about different choices means nothing.
    fn push(&mut self, choice: u32, message: Message) {
        self.bytes += size(&message);
        let last = self.messages.iter_mut().rfind(|(of, _)| *of == choice);
        match (last.map(|(_, last)| last), message) {
            (Some(Message::Delta(last)), Message::Delta(next)) => {
                last.text += &next.text;
                last.token_ids.extend(next.token_ids);
                last.logprobs.extend(next.logprobs);
            }
            (Some(Message::Progress(last)), Message::Progress(next)) => *last = next,
            (_, message) => self.messages.push_back((choice, message)),
        }
    }

    fn pop(&mut self) -> Option<(u32, Message)> {
        let (choice, message) = self.messages.pop_front()?;
        self.bytes -= size(&message).min(self.bytes);
        Some((choice, message))
    }
}

/// About how many bytes a message takes. Only deltas grow.
fn size(message: &Message) -> usize {
    match message {
        Message::Delta(delta) => {
            let tops: usize = delta.logprobs.iter().map(|token| 1 + token.top.len()).sum();
            delta.text.len() + 4 * delta.token_ids.len() + 8 * tops
        }
        Message::Admitted(_) | Message::Progress(_) | Message::Done(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delta(text: &str, id: u32) -> Message {
        let text = text.to_owned();
        Message::Delta(wire::Delta { text, token_ids: vec![id], logprobs: Vec::new() })
    }

    #[test]
    fn tokens_that_wait_become_one_delta() {
        let mut pending = Pending::default();
        [delta("a", 1), delta("", 2), delta("b", 3)].into_iter().for_each(|d| pending.push(0, d));
        let Some((0, Message::Delta(all))) = pending.pop() else { panic!("a delta was pushed") };
        assert_eq!((&*all.text, &*all.token_ids), ("ab", &[1, 2, 3][..]));
        assert!(pending.is_empty());
        assert_eq!(pending.bytes, 0);
    }

    #[test]
    fn tokens_of_each_choice_become_one_delta_of_its_own() {
        let mut pending = Pending::default();
        for (choice, text) in [(0, "a"), (1, "x"), (0, "b"), (1, "y")] {
            pending.push(choice, delta(text, 1));
        }
        let texts: Vec<_> = std::iter::from_fn(|| pending.pop())
            .map(|(choice, message)| match message {
                Message::Delta(delta) => (choice, delta.text),
                _ => panic!("only deltas were pushed"),
            })
            .collect();
        assert_eq!(texts, [(0, "ab".to_owned()), (1, "xy".to_owned())]);
    }

    #[test]
    fn of_waiting_progress_only_the_last_is_told() {
        let mut pending = Pending::default();
        for done_tokens in [1, 2] {
            pending
                .push(0, Message::Progress(wire::PrefillProgress { done_tokens, total_tokens: 9 }));
        }
        let Some((0, Message::Progress(progress))) = pending.pop() else { panic!("it was pushed") };
        assert_eq!(progress.done_tokens, 2);
        assert!(pending.is_empty());
    }

    #[test]
    fn messages_of_other_kinds_keep_their_order() {
        let mut pending = Pending::default();
        pending.push(0, Message::Admitted(wire::Admitted::default()));
        pending.push(0, delta("a", 1));
        pending.push(0, Message::Done(wire::Done::default()));
        assert!(matches!(pending.pop(), Some((0, Message::Admitted(_)))));
        assert!(matches!(pending.pop(), Some((0, Message::Delta(_)))));
        assert!(matches!(pending.pop(), Some((0, Message::Done(_)))));
    }

    #[test]
    fn a_mebibyte_that_waits_is_enough() {
        let mut pending = Pending::default();
        pending.push(0, delta(&"x".repeat(MOST_PENDING - 10), 1));
        assert!(pending.has_room());
        pending.push(0, delta("xxxxxx", 2));
        assert!(!pending.has_room());
        pending.pop();
        assert!(pending.has_room());
    }
}
