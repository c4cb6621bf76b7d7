//! The gRPC services.
//!
//! A file for each service implements the trait that the protocol generates and does the small
//! RPCs at once; the larger ones have a file of their own, named after the RPC.

mod admin;
mod cache;
mod explain;
mod find;
mod inference;
mod model;
mod pin;
mod sample;
mod score;
mod tokenize;
mod warm;
mod watch;

use std::sync::Arc;

use super::Daemon;
use super::order::{Order, Running};
use super::refusal::Refusal;
use super::tally::Flight;
use crate::engine::event::Failure;

/// `InferenceService`.
#[derive(Debug, Clone)]
pub struct Inference(pub Arc<Daemon>);

/// `CacheService`.
#[derive(Debug, Clone)]
pub struct Cache(pub Arc<Daemon>);

/// `ModelService`.
#[derive(Debug, Clone)]
pub struct Models(pub Arc<Daemon>);

/// `AdminService`.
#[derive(Debug, Clone)]
pub struct Admin(pub Arc<Daemon>);

impl Daemon {
    /// A daemon that is about to end begins nothing.
    fn refuse_if_draining(&self) -> Result<(), Refusal> {
        match self.drain.is_cancelled() {
            true => Err(Refusal::Engine(Failure::Draining)),
            false => Ok(()),
        }
    }

    /// Places an order with the model called `model`, unless the daemon is about to end.
    pub(super) async fn place(
        &self,
        order: Order,
        model: &str,
    ) -> Result<(Running, Flight), Refusal> {
        self.refuse_if_draining()?;
        let slot = self.models.find(model)?;
        let mut flight = self.tally.begin();
        let placed = order.place(&slot).await;
        let running = placed.inspect_err(|_| flight.failed())?;
        Ok((running, flight))
    }
}
