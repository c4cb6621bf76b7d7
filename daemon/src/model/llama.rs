//! The Llama family: RMSNorm, rotary positions, grouped-query attention, SiLU-gated MLP.
//!
//! Its members differ in what is there: biases of projections, norms of heads, layers that are not
//! told positions or see a window only.

use tinygpt_kernels::{Gate, Matrix, Rope};

use super::attention::Attending;
use super::executor::{Executor, Scores, positions};
use super::host::Buffer;
use super::load::{Linear, LlamaBlock, LlamaWeights, Norm};
use super::{Batch, Model};
use crate::kv::device::{DeviceError, Tier};
use crate::kv::seq::KvSeq;

/// A Llama model.
#[derive(Debug)]
pub struct Llama<E: Executor> {
    executor: E,
    weights: LlamaWeights<E::Matrix, E::Vector>,
    ropes: Vec<Rope>,
}

impl<E: Executor> Llama<E> {
    /// The model over `weights`, which `executor` runs.
    ///
    /// # Errors
    /// When the executor has no room for the weights.
    pub fn new(weights: LlamaWeights, executor: E) -> Result<Self, DeviceError> {
        let ropes = weights.config.tables();
        Ok(Self { weights: weights.place(&executor)?, executor, ropes })
    }

    fn block<'e>(
        &'e self,
        layer: usize,
        x: &mut E::Rows<'e>,
        angles: &E::Angles<'e>,
        batch: &Batch,
        kv: &mut [&mut KvSeq],
    ) {
        let (e, config, block) =
            (&self.executor, &self.weights.config, &self.weights.blocks[layer]);
        let attending = Attending::<E> {
            layer,
            scores: Scores::of(config.heads, config.head_dim),
            head_dim: config.head_dim,
            eps: config.eps,
            turn: config.plan[layer].rope.map(|rope| (angles, rope)),
        };
        let attended = attending.run(e, &block.attention, x, batch, kv);
        e.add_linear(x, &e.input(attended), &block.attention.o);

        let input = e.normed(x, &block.norm, config.eps);
        let gated = e.input(e.gated(&input, Gate::Silu, &block.gate, &block.up));
        e.add_linear(x, &gated, &block.down);
    }
}

impl LlamaWeights {
    /// The same weights, where `executor` keeps them.
    fn place<E: Executor>(
        self,
        executor: &E,
    ) -> Result<LlamaWeights<E::Matrix, E::Vector>, DeviceError> {
        let blocks = self.blocks.into_iter().map(|block| block.place(executor));
        Ok(LlamaWeights {
            config: self.config,
            token_embedding: executor.matrix(self.token_embedding)?,
            final_norm: self.final_norm.place(executor)?,
            head: self.head.map(|head| executor.matrix(head)).transpose()?,
            blocks: blocks.collect::<Result<_, _>>()?,
        })
    }

    pub(super) fn matrices(&self) -> Vec<&Matrix> {
        let linears = self.blocks.iter().flat_map(LlamaBlock::linears);
        let blocks = linears.map(|linear| &linear.weight);
        std::iter::once(&self.token_embedding).chain(&self.head).chain(blocks).collect()
    }

    pub(super) fn vectors(&self) -> Vec<&[f32]> {
        let norms = self.blocks.iter().flat_map(LlamaBlock::norms);
        let linears = self.blocks.iter().flat_map(LlamaBlock::linears);
        let biases = linears.filter_map(|linear| linear.bias.as_deref());
        norms.chain([&self.final_norm]).flat_map(Norm::vectors).chain(biases).collect()
    }
}

impl LlamaBlock {
    fn place<E: Executor>(
        self,
        executor: &E,
    ) -> Result<LlamaBlock<E::Matrix, E::Vector>, DeviceError> {
        Ok(LlamaBlock {
            attention: self.attention.place(executor)?,
            norm: self.norm.place(executor)?,
            gate: self.gate.place(executor)?,
            up: self.up.place(executor)?,
            down: self.down.place(executor)?,
        })
    }

    fn linears(&self) -> impl Iterator<Item = &Linear> {
        self.attention.linears().into_iter().chain([&self.gate, &self.up, &self.down])
    }

    fn norms(&self) -> impl Iterator<Item = &Norm> {
        self.attention.norms().chain([&self.norm])
    }
}

impl<E: Executor> Model for Llama<E> {
    fn prepare(&self, kv: &mut KvSeq, rows: usize) -> Result<(), DeviceError> {
        self.executor.prepare(kv, rows)
    }

    fn forward(&self, batch: &Batch, kv: &mut [&mut KvSeq]) -> Result<Buffer<'_>, DeviceError> {
        let (e, weights) = (&self.executor, &self.weights);
        let angles = e.angles(&self.ropes, positions(batch, kv));
        let mut x = e.embed(batch, &weights.token_embedding);
        for layer in 0..weights.blocks.len() {
            self.block(layer, &mut x, &angles, batch, kv);
        }
        let wanted = e.gather(&x, &batch.wanted);
        e.finish(e.norm(&wanted, &weights.final_norm, weights.config.eps), batch, kv)
    }

    fn head(&self, hidden: &[f32]) -> Result<Buffer<'_>, DeviceError> {
        let (e, weights) = (&self.executor, &self.weights);
        let head = weights.head.as_ref().unwrap_or(&weights.token_embedding);
        e.logits(hidden, weights.config.width, head)
    }

    fn tier(&self) -> Option<&Tier> {
        self.executor.tier()
    }
}
