//! One agent of a bench: the command that nobody types.

use std::pin::pin;

use tinygpt_client::connect::Connection;
use tinygpt_client::exit::Exit;
use tinygpt_proto::v1::sample_response::Event;
use tokio::io::{self, AsyncBufReadExt, BufReader, Lines, Stdin};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::talk::{Call, Delivery, Order, Reply, Word};
use crate::failure::{Failure, Outcome};
use crate::generation::{Generation, Viewer};
use crate::render;
use crate::sample::generate;
use crate::session::Session;

/// Its name.
pub(super) const COMMAND: &str = "bench-agent";

/// An agent. What goes wrong is told on stdout, to whom it concerns.
pub(crate) async fn run(session: &Session) -> Outcome {
    let failure = match serve(session).await {
        Ok(exit) => return Ok(exit),
        Err(failure) => failure,
    };
    let exit = failure.exit();
    say(&Word::Failed { exit: exit.code(), words: failure.to_string() })?;
    Ok(exit)
}

async fn serve(session: &Session) -> Outcome {
    let connection = session.connect().await?;
    let calls = BufReader::new(io::stdin()).lines();
    let mut agent = Agent { session, connection, calls };
    let mut orders = None;
    while let Some(call) = agent.hear().await? {
        match call {
            Call::Ready(order) => {
                orders = Some(order);
                say(&Word::Ready)?;
            }
            Call::Go => match orders.take() {
                Some(order) => say(&Word::Told(agent.ask(&order).await?))?,
                None => return Err(Failure::Usage("told to go, and not where".into())),
            },
            // Too late: it has ended already.
            Call::Mark | Call::Stop => {}
        }
    }
    Ok(Exit::Done)
}

fn say(word: &Word) -> Result<(), Failure> {
    render::json(word)
}

/// A process among others that ask the daemon.
#[derive(Debug)]
struct Agent<'a> {
    session: &'a Session,
    connection: Connection,
    calls: Lines<BufReader<Stdin>>,
}

impl Agent<'_> {
    async fn hear(&mut self) -> Result<Option<Call>, Failure> {
        let line = self.calls.next_line().await?;
        let call = line.map(|line| serde_json::from_str(&line)).transpose();
        Ok(call.map_err(io::Error::from)?)
    }

    async fn ask(&mut self, order: &Order) -> Result<Vec<Reply>, Failure> {
        let go = Instant::now();
        let mut record = Record::default();
        loop {
            record.replies.push(Reply::default());
            let ended = self.follow(order, go, &mut record).await?;
            if ended || !order.endless {
                return Ok(record.replies);
            }
        }
    }

    /// Follows one reply to its end; whether it was stopped before.
    async fn follow(
        &mut self,
        order: &Order,
        go: Instant,
        record: &mut Record,
    ) -> Result<bool, Failure> {
        let connection = self.connection.clone();
        let (mut viewer, mut deliveries) = Deliveries::new(go);
        let mut reply = pin!(generate(&connection, order.request(), self.session, &mut viewer));
        loop {
            tokio::select! {
                biased;
                Some(delivery) = deliveries.recv() => {
                    record.add(delivery, order.endless)?;
                    if record.stopping {
                        return Ok(true);
                    }
                }
                call = self.hear() => record.heed(&call?.ok_or(Failure::Interrupted)?),
                ended = &mut reply => {
                    let texts = ended?;
                    while let Ok(delivery) = deliveries.try_recv() {
                        record.add(delivery, order.endless)?;
                    }
                    record.end(&texts);
                    return Ok(false);
                }
            }
        }
    }
}

/// What an agent has had so far.
#[derive(Debug, Default)]
struct Record {
    /// The last one is not whole yet.
    replies: Vec<Reply>,
    /// Whether the first token was told of.
    begun: bool,
    /// Whether the next delivery is the last.
    stopping: bool,
}

impl Record {
    /// Adds what came; says so when it is the first, and `told` of.
    fn add(&mut self, delivery: Delivery, told: bool) -> Result<(), Failure> {
        if let Some(reply) = self.replies.last_mut() {
            reply.deliveries.push(delivery);
        }
        match told && !std::mem::replace(&mut self.begun, true) {
            true => say(&Word::First),
            false => Ok(()),
        }
    }

    fn end(&mut self, texts: &[Generation]) {
        if let Some(reply) = self.replies.last_mut() {
            reply.spent = texts.first().map(|text| (&text.done).into());
        }
    }

    fn heed(&mut self, call: &Call) {
        match call {
            Call::Mark => self.forget(),
            Call::Stop => self.stopping = true,
            Call::Ready(_) | Call::Go => {}
        }
    }

    /// All but the last delivery, if the reply that it belongs to goes on.
    fn forget(&mut self) {
        let last = self.replies.len().saturating_sub(1);
        self.replies.drain(..last);
        for reply in &mut self.replies {
            let last = reply.deliveries.len().saturating_sub(1);
            reply.deliveries.drain(..last);
        }
    }
}

/// Passes tokens on with the time at which they came.
#[derive(Debug)]
struct Deliveries {
    go: Instant,
    sender: mpsc::UnboundedSender<Delivery>,
}

impl Deliveries {
    fn new(go: Instant) -> (Self, mpsc::UnboundedReceiver<Delivery>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self { go, sender }, receiver)
    }
}

impl Viewer for Deliveries {
    async fn show(&mut self, _: u32, event: &Event) -> Result<(), Failure> {
        if let Event::Delta(delta) = event
            && !delta.token_ids.is_empty()
        {
            let at = self.go.elapsed().as_secs_f64() * 1e3;
            let delivery = Delivery { at, tokens: delta.token_ids.len() };
            // Whoever stopped listening has heard enough.
            let _ = self.sender.send(delivery);
        }
        Ok(())
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn delivery(at: f64) -> Delivery {
        Delivery { at, tokens: 1 }
    }

    #[test]
    fn a_gap_that_is_open_at_the_mark_counts_and_those_before_do_not() {
        let mut record = Record::default();
        for at in [1.0, 2.0, 3.0] {
            record.replies.push(Reply::default());
            record.add(delivery(at), false).unwrap();
            record.add(delivery(at + 0.5), false).unwrap();
        }
        record.heed(&Call::Mark);
        record.add(delivery(9.0), false).unwrap();
        let [reply] = &record.replies[..] else { panic!("{record:?}") };
        assert_eq!(reply.deliveries.iter().map(|d| d.at).collect::<Vec<_>>(), [3.5, 9.0]);
    }
}
