//! Models: immutable weights and a forward pass over a flat batch.
//!
//! A [`Model`] is numbers, weights and who computes with them; everything that changes is in the
//! [`Batch`] and in the sequences' caches, which the caller owns.
//! There is a short file for each architecture family, written over the small set of operations of
//! an [`executor`]: the [`host`], or a [`device`]. [`load`] reads their files, whose contents are
//! their [`identity`]; [`found`] are those that nobody has named yet.
//!
//! Invariant: what a row computes depends on the tokens of its own sequence up to that row and on
//! nothing else: not on its companions, not on how the prompt was cut into slices.

mod attention;
mod carried;
pub mod device;
pub mod executor;
pub mod found;
pub mod gemma;
pub mod gpt;
pub mod host;
pub mod identity;
pub mod llama;
pub mod load;

use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;

use tinygpt_kernels::{Matrix, Pool};

use crate::kv::device::{DeviceError, Tier};
use crate::kv::layout::{LayerShape, Window};
use crate::kv::seq::KvSeq;

use self::device::{Device, Target};
use self::executor::Executor;
use self::host::{Buffer, Host};
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
    /// The adapter of each slice; slices beyond the end have none.
    pub adapters: Vec<Option<AdapterId>>,
}

impl Batch {
    /// Makes it empty; its memory stays.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.slices.clear();
        self.wanted.clear();
        self.adapters.clear();
    }
}

/// Names an adapter of a model: its place among those that were loaded with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdapterId(pub usize);

/// Which reference arithmetic a model runs in; each has the same bits on every CPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Numerics {
    /// f32 activations over weights of every kind.
    Exact,
    /// 8-bit activations over quantised weights, f32 ones over plain numbers.
    #[default]
    Fast,
}

impl Numerics {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Numerics::Exact => "exact",
            Numerics::Fast => "fast",
        }
    }

    /// The name and the version: part of every fingerprint.
    pub fn label(self) -> &'static str {
        match self {
            Numerics::Exact => "exact-1",
            Numerics::Fast => "fast-1",
        }
    }
}

/// The name of no arithmetic.
#[derive(Debug, thiserror::Error)]
#[error("unknown numerics {0:?}; known are exact, fast")]
pub struct UnknownNumerics(String);

impl FromStr for Numerics {
    type Err = UnknownNumerics;

    fn from_str(name: &str) -> Result<Self, UnknownNumerics> {
        let known = [Numerics::Exact, Numerics::Fast].into_iter().find(|n| n.name() == name);
        known.ok_or_else(|| UnknownNumerics(name.to_owned()))
    }
}

/// How large a model is.
#[derive(Debug, Clone)]
pub struct Dimensions {
    /// C, the width of the residual stream.
    pub width: usize,
    /// H, the number of query heads.
    pub heads: usize,
    /// V.
    pub vocab: usize,
    /// Most tokens of one sequence.
    pub context: usize,
    /// The cache rows of each layer and what its queries may see.
    pub layers: Vec<(LayerShape, Window)>,
}

/// A model that can run.
pub trait Model {
    /// Makes ready to compute `rows` more rows of a sequence.
    ///
    /// # Errors
    /// When a device has no room for them, or fails.
    fn prepare(&self, kv: &mut KvSeq, rows: usize) -> Result<(), DeviceError>;

    /// Runs all layers over `batch`, writing the rows' keys and values into `kv` (one cache per
    /// slice, with room reserved, prepared, not advanced), and returns the final hidden states
    /// `[wanted][C]`, after the final norm.
    ///
    /// # Errors
    /// When a device fails.
    fn forward(&self, batch: &Batch, kv: &mut [&mut KvSeq]) -> Result<Buffer<'_>, DeviceError>;

    /// The logits `[T][V]` of hidden states `[T][C]`.
    ///
    /// # Errors
    /// When a device fails.
    fn head(&self, hidden: &[f32]) -> Result<Buffer<'_>, DeviceError>;

    /// Where it keeps rows of sequences on a device.
    fn tier(&self) -> Option<&Tier>;
}

/// What models run on.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Loads models, and runs them where there is no device.
    pub pool: Arc<Pool>,
    /// Runs them where there is one.
    pub device: Option<Target>,
}

/// A machine without devices.
impl From<Arc<Pool>> for Machine {
    fn from(pool: Arc<Pool>) -> Self {
        Self { pool, device: None }
    }
}

impl Machine {
    /// The label of the arithmetic of models here, which `numerics` chooses among the processor's.
    pub fn label(&self, numerics: Numerics) -> &'static str {
        self.device.as_ref().map_or(numerics.label(), Target::label)
    }

    /// The model over `weights`, running here.
    ///
    /// # Errors
    /// When a device has no room for the weights.
    pub fn assemble(
        &self,
        weights: Weights,
        numerics: Numerics,
    ) -> Result<Box<dyn Model>, DeviceError> {
        match &self.device {
            Some(target) => assemble(weights, Device::new(target.clone())),
            None => assemble(weights, Host::new(Arc::clone(&self.pool), numerics)),
        }
    }
}

fn assemble<E: Executor + 'static>(
    weights: Weights,
    executor: E,
) -> Result<Box<dyn Model>, DeviceError> {
    Ok(match weights {
        Weights::Gpt(weights) => Box::new(gpt::Gpt::new(weights, executor)?),
        Weights::Llama(weights) => Box::new(llama::Llama::new(weights, executor)?),
        Weights::Gemma(weights) => Box::new(gemma::Gemma::new(weights, executor)?),
    })
}

impl Weights {
    /// How large the model is.
    pub fn dimensions(&self) -> Dimensions {
        match self {
            Weights::Gpt(weights) => weights.config.dimensions(),
            Weights::Llama(weights) => weights.config.dimensions(),
            Weights::Gemma(weights) => weights.config.llama.dimensions(),
        }
    }

    /// Every weight matrix.
    pub fn matrices(&self) -> Vec<&Matrix> {
        match self {
            Weights::Gpt(weights) => weights.matrices(),
            Weights::Llama(weights) => weights.matrices(),
            Weights::Gemma(weights) => weights.matrices(),
        }
    }

    /// How many numbers they are.
    pub fn parameters(&self) -> u64 {
        let matrices: usize = self.matrices().iter().map(|matrix| matrix.n() * matrix.k()).sum();
        let vectors: usize = self.vectors().iter().map(|vector| vector.len()).sum();
        (matrices + vectors) as u64
    }

    /// Every other weight: norms, biases, learned positions.
    pub fn vectors(&self) -> Vec<&[f32]> {
        match self {
            Weights::Gpt(weights) => weights.vectors(),
            Weights::Llama(weights) => weights.vectors(),
            Weights::Gemma(weights) => weights.vectors(),
        }
    }
}
