//! Gemma: a Llama whose embedding is scaled, whose MLP is gated with GELU, and whose halves are
//! normalised once more before they are added.

use tinygpt_kernels::{Gate, Matrix, Rope, act};

use super::attention::Attending;
use super::executor::{Executor, Scores, positions};
use super::host::Buffer;
use super::load::{GemmaBlock, GemmaWeights, Linear, Norm};
use super::{Batch, Model};
use crate::kv::device::{DeviceError, Tier};
use crate::kv::seq::KvSeq;

/// A Gemma model.
#[derive(Debug)]
pub struct Gemma<E: Executor> {
    executor: E,
    weights: GemmaWeights<E::Matrix, E::Vector>,
    ropes: Vec<Rope>,
}

impl<E: Executor> Gemma<E> {
    /// The model over `weights`, which `executor` runs.
    ///
    /// # Errors
    /// When the executor has no room for the weights.
    pub fn new(weights: GemmaWeights, executor: E) -> Result<Self, DeviceError> {
        let ropes = weights.config.llama.tables();
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
        let llama = &config.llama;
        let attending = Attending::<E> {
            layer,
            scores: Scores {
                heads: llama.heads,
                scale: config.query_scale,
                softcap: config.attention_softcap,
            },
            head_dim: llama.head_dim,
            eps: llama.eps,
            turn: llama.plan[layer].rope.map(|rope| (angles, rope)),
        };
        let attended = attending.run(e, &block.attention, x, batch, kv);
        let attended = e.linear(&e.input(attended), &block.attention.o);
        e.add(x, &e.norm(&attended, &block.post_attention_norm, llama.eps));

        let input = e.normed(x, &block.norm, llama.eps);
        let gated = e.input(e.gated(&input, Gate::GeluTanh, &block.gate, &block.up));
        e.add(x, &e.norm(&e.linear(&gated, &block.down), &block.post_mlp_norm, llama.eps));
    }
}

impl GemmaWeights {
    /// The same weights, where `executor` keeps them.
    fn place<E: Executor>(
        self,
        executor: &E,
    ) -> Result<GemmaWeights<E::Matrix, E::Vector>, DeviceError> {
        let blocks = self.blocks.into_iter().map(|block| block.place(executor));
        Ok(GemmaWeights {
            config: self.config,
            token_embedding: executor.matrix(self.token_embedding)?,
            final_norm: self.final_norm.place(executor)?,
            head: self.head.map(|head| executor.matrix(head)).transpose()?,
            blocks: blocks.collect::<Result<_, _>>()?,
        })
    }

    pub(super) fn matrices(&self) -> Vec<&Matrix> {
        let linears = self.blocks.iter().flat_map(GemmaBlock::linears);
        let blocks = linears.map(|linear| &linear.weight);
        std::iter::once(&self.token_embedding).chain(&self.head).chain(blocks).collect()
    }

    pub(super) fn vectors(&self) -> Vec<&[f32]> {
        let norms = self.blocks.iter().flat_map(GemmaBlock::norms);
        let linears = self.blocks.iter().flat_map(GemmaBlock::linears);
        let biases = linears.filter_map(|linear| linear.bias.as_deref());
        norms.chain([&self.final_norm]).flat_map(Norm::vectors).chain(biases).collect()
    }
}

impl GemmaBlock {
    fn place<E: Executor>(
        self,
        executor: &E,
    ) -> Result<GemmaBlock<E::Matrix, E::Vector>, DeviceError> {
        Ok(GemmaBlock {
            attention: self.attention.place(executor)?,
            post_attention_norm: self.post_attention_norm.place(executor)?,
            norm: self.norm.place(executor)?,
            gate: self.gate.place(executor)?,
            up: self.up.place(executor)?,
            down: self.down.place(executor)?,
            post_mlp_norm: self.post_mlp_norm.place(executor)?,
        })
    }

    fn linears(&self) -> impl Iterator<Item = &Linear> {
        self.attention.linears().into_iter().chain([&self.gate, &self.up, &self.down])
    }

    fn norms(&self) -> impl Iterator<Item = &Norm> {
        let own = [&self.post_attention_norm, &self.norm, &self.post_mlp_norm];
        self.attention.norms().chain(own)
    }
}

impl<E: Executor> Model for Gemma<E> {
    fn prepare(&self, kv: &mut KvSeq, rows: usize) -> Result<(), DeviceError> {
        self.executor.prepare(kv, rows)
    }

    fn forward(&self, batch: &Batch, kv: &mut [&mut KvSeq]) -> Result<Buffer<'_>, DeviceError> {
        let (e, weights) = (&self.executor, &self.weights);
        let angles = e.angles(&self.ropes, positions(batch, kv));
        let mut x = e.embed(batch, &weights.token_embedding);
        e.scale(&mut x, weights.config.embedding_scale);
        for layer in 0..weights.blocks.len() {
            self.block(layer, &mut x, &angles, batch, kv);
        }
        let wanted = e.gather(&x, &batch.wanted);
        e.finish(e.norm(&wanted, &weights.final_norm, weights.config.llama.eps), batch, kv)
    }

    fn head(&self, hidden: &[f32]) -> Result<Buffer<'_>, DeviceError> {
        let (e, weights) = (&self.executor, &self.weights);
        let head = weights.head.as_ref().unwrap_or(&weights.token_embedding);
        let mut logits = e.logits(hidden, weights.config.llama.width, head)?;
        if let Some(cap) = weights.config.final_softcap {
            act::softcap(&mut logits, cap);
        }
        Ok(logits)
    }

    fn tier(&self) -> Option<&Tier> {
        self.executor.tier()
    }
}
