//! Models: immutable weights and a forward pass over a flat batch.
//!
//! A [`Model`] is numbers and weights; everything that changes is in the [`Batch`] and in the
//! sequences' caches, which the caller owns.
//! There is a short file for each architecture family, written over the small set of
//! [`ops`], and [`load`] reads their files.
//!
//! Invariant: what a row computes depends on the tokens of its own sequence up to that row and on
//! nothing else: not on its companions, not on how the prompt was cut into slices.

pub mod gpt;
pub mod llama;
pub mod load;
pub mod ops;

use std::ops::Range;

use tinygpt_kernels::{Matrix, Pool};

use crate::kv::layout::{LayerShape, Window};
use crate::kv::seq::KvSeq;

use self::load::Weights;

/// Rows of several sequences, one after another, without padding.
#[derive(Debug, Default, Clone)]
pub struct Batch {
    /// T token ids.
    pub tokens: Vec<u32>,
    /// The rows of each sequence; a decode step is a slice of one.
    /// The first row's position is the length of the sequence's cache.
    pub slices: Vec<Range<usize>>,
    /// The rows whose final hidden state is wanted, ascending.
    pub wanted: Vec<usize>,
}

/// A model that can run.
pub trait Model: Send {
    /// C.
    fn width(&self) -> usize;

    /// H, the number of query heads.
    fn heads(&self) -> usize;

    /// V.
    fn vocab(&self) -> usize;

    /// Most tokens of one sequence.
    fn context(&self) -> usize;

    /// Every weight matrix.
    fn matrices(&self) -> Vec<&Matrix>;

    /// Every other weight: norms, biases, learned positions.
    fn vectors(&self) -> Vec<&[f32]>;

    /// The cache rows of each layer and what its queries may see.
    fn layers(&self) -> Vec<(LayerShape, Window)>;

    /// Runs all layers over `batch`, writing the rows' keys and values into `kv` (one cache per
    /// slice, with room reserved, not advanced), and returns the final hidden states
    /// `[wanted][C]`, after the final norm.
    fn forward(&self, pool: &Pool, batch: &Batch, kv: &mut [&mut KvSeq]) -> Vec<f32>;

    /// The logits `[T][V]` of hidden states `[T][C]`.
    fn head(&self, pool: &Pool, hidden: &[f32]) -> Vec<f32>;
}

/// The model over `weights`.
pub fn assemble(weights: Weights) -> Box<dyn Model> {
    match weights {
        Weights::Gpt(weights) => Box::new(gpt::Gpt::new(weights)),
        Weights::Llama(weights) => Box::new(llama::Llama::new(weights)),
    }
}
