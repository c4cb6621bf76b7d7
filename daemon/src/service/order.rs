//! A request on its way through an engine.
//!
//! An [`Order`] is everything a client asked for, before a model is involved. [`Order::place`]
//! waits for the model, turns text into ids and submits; what comes back is [`Running`].
//!
//! A model may be loaded anew between tokenising and admission, because its file was changed. The
//! engine then answers `Reloaded`, and the order is placed again: nobody but the order knows.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use tinygpt_proto::v1 as wire;
use tokio::sync::mpsc;

use super::clock::Clock;
use super::convert::{reply, request};
use super::models::{Lease, Served, Slot};
use super::prompt::{Prompt, Tokens};
use super::refusal::{Count, Refusal};
use crate::engine::event::{Admitted, Failure};
use crate::engine::job::{Caller, EVENTS, Namespace, Persist, Policy, Task};
use crate::engine::{Event, Job};

/// How often an order is placed again because its model changed meanwhile.
const RELOADS: u32 = 5;

/// A request, read and not yet placed.
#[derive(Debug)]
pub struct Order {
    /// The prompt.
    pub prompt: Prompt,
    /// What to do with it.
    pub wish: Wish,
    /// Whose turn it is.
    pub caller: Caller,
    /// Whose blocks may be used.
    pub namespace: Namespace,
    /// Name of the codec; empty for the model's default.
    pub kv_dtype: String,
    /// Name of the adapter; empty for none.
    pub adapter: String,
    /// What to do with cached blocks.
    pub policy: Policy,
    /// What to do with new blocks.
    pub persist: Persist,
    /// For how long to pin it.
    pub pin: Option<Duration>,
    /// When it came, and when the client gives up.
    pub clock: Clock,
}

/// What a request wants done with its prompt.
#[derive(Debug)]
pub enum Wish {
    /// Generate.
    Sample {
        /// How.
        sampling: Box<wire::Sampling>,
    },
    /// Tell the log-probabilities of the prompt's own tokens.
    Score {
        /// Alternatives per token.
        top: usize,
    },
}

impl Wish {
    /// Generating, with a seed whether the client named one or not.
    pub fn sample(mut sampling: wire::Sampling) -> Self {
        // JSON's numbers are exact below 2^53 everywhere; a seed is told to be given back.
        sampling.seed.get_or_insert_with(|| RandomState::new().build_hasher().finish() >> 11);
        Self::Sample { sampling: Box::new(sampling) }
    }

    /// Generating nothing.
    pub fn prefill() -> Self {
        Self::sample(wire::Sampling { max_tokens: Some(0), ..wire::Sampling::default() })
    }
}

/// An order that an engine works on. Dropping it cancels the work.
#[derive(Debug)]
pub struct Running {
    order: Order,
    slot: Slot,
    placed: Placed,
    events: mpsc::Receiver<Event>,
    reloads: u32,
}

/// What an order came to mean for the model that it was placed with.
#[derive(Debug)]
pub struct Placed {
    /// The model.
    pub served: Lease,
    /// The prompt.
    pub tokens: Tokens,
    /// Most tokens to generate.
    pub max_tokens: u32,
}

impl Order {
    /// Submits the order to the engine behind `slot`.
    ///
    /// # Errors
    /// When the model cannot serve, the order makes no sense for it, or its queue is full.
    pub async fn place(self, slot: &Slot) -> Result<Running, Refusal> {
        let (placed, events) = self.submit(slot).await?;
        Ok(Running { order: self, slot: slot.clone(), placed, events, reloads: 0 })
    }

    async fn submit(&self, slot: &Slot) -> Result<(Placed, mpsc::Receiver<Event>), Refusal> {
        let served = slot.served(self.clock.deadline).await?;
        let mut tokens = self.prompt.tokens(&served).await?;
        let (task, max_tokens) = self.task(&served, tokens.ids.len())?;
        tokens.warnings.extend(self.cut(max_tokens, served.info.context));
        let (sender, events) = mpsc::channel(EVENTS);
        let job = Job {
            task,
            tokens: Arc::clone(&tokens.ids),
            text: tokens.text,
            caller: self.caller,
            namespace: self.namespace,
            codec: request::codec(&self.kv_dtype, &served.info)?,
            adapter: request::adapter(&self.adapter, &served.info)?,
            policy: self.policy,
            persist: self.persist,
            pin: self.pin,
            deadline: self.clock.deadline,
            received: self.clock.received,
            generation: served.info.generation,
            events: sender,
        };
        let name = &served.info.name;
        slot.engine().submit(job).map_err(|refused| Refusal::from_engine(refused, name))?;
        Ok((Placed { served, tokens, max_tokens }, events))
    }

    fn task(&self, served: &Served, prompt: usize) -> Result<(Task, u32), Refusal> {
        match &self.wish {
            Wish::Score { top } => Ok((Task::Score { top: *top }, 0)),
            Wish::Sample { sampling } => {
                let sampling = request::sampling(sampling, served, prompt)?;
                let max_tokens = sampling.max_tokens;
                Ok((Task::Sample(sampling), max_tokens))
            }
        }
    }

    /// What to say when fewer tokens can be generated than were asked for.
    fn cut(&self, max_tokens: u32, context: usize) -> Option<String> {
        let asked = self.sampling()?.max_tokens.filter(|asked| *asked > max_tokens)?;
        Some(format!(
            "max_tokens is {}, the prompt leaves {} of the context's {}",
            Count::from(asked),
            Count::from(max_tokens),
            Count::from(context)
        ))
    }

    /// How tokens are chosen; nothing when none are.
    pub fn sampling(&self) -> Option<&wire::Sampling> {
        match &self.wish {
            Wish::Sample { sampling } => Some(sampling),
            Wish::Score { .. } => None,
        }
    }
}

impl Running {
    /// What was asked for.
    pub fn order(&self) -> &Order {
        &self.order
    }

    /// What it came to mean. Changes only while no event has come.
    pub fn placed(&self) -> &Placed {
        &self.placed
    }

    /// Counts what an admission says.
    fn measure(&self, event: &Event) {
        let Event::Admitted(Admitted { queued, reuse }) = event else { return };
        let meter = self.slot.engine().meter();
        meter.queue_time.record_time(*queued);
        meter.verdicts.add(reply::verdict(reuse.verdict) as usize);
        meter.reasons.add(reply::reason(reuse.reason.as_ref()) as usize);
    }

    /// The next event; none behind the `Done` of every choice.
    ///
    /// Dropping the future loses nothing but, while the order is being placed again, the order.
    ///
    /// # Errors
    /// When the engine could not serve the request, or has died.
    pub async fn next(&mut self) -> Result<Event, Refusal> {
        loop {
            match self.events.recv().await {
                Some(Event::Failed(Failure::Reloaded)) if self.reloads < RELOADS => {
                    self.reloads += 1;
                    (self.placed, self.events) = self.order.submit(&self.slot).await?;
                }
                Some(Event::Failed(failure)) => return Err(Refusal::Engine(failure)),
                Some(event) => {
                    self.measure(&event);
                    return Ok(event);
                }
                None => {
                    let name = self.slot.engine().name().to_owned();
                    return Err(Refusal::Stopped { name });
                }
            }
        }
    }
}
