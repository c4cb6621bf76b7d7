//! The Llama family: RMSNorm, rotary positions, grouped-query attention, SiLU-gated MLP.

use tinygpt_kernels::{Matrix, Rope};

use super::executor::{Executor, positions};
use super::host::Buffer;
use super::load::{Linear, LlamaBlock, LlamaConfig, LlamaWeights, Norm};
use super::{Batch, Dimensions, Model};
use crate::kv::device::{DeviceError, Tier};
use crate::kv::layout::{LayerShape, Window};
use crate::kv::seq::KvSeq;

/// A Llama model.
#[derive(Debug)]
pub struct Llama<E: Executor> {
    executor: E,
    weights: LlamaWeights<E::Matrix, E::Vector>,
    rope: Rope,
}

impl<E: Executor> Llama<E> {
    /// The model over `weights`, which `executor` runs.
    ///
    /// # Errors
    /// When the executor has no room for the weights.
    pub fn new(weights: LlamaWeights, executor: E) -> Result<Self, DeviceError> {
        let config = &weights.config;
        let (base, factors) = (f64::from(config.rope_base), config.rope_factors.as_deref());
        let rope = Rope::new(config.rope, config.head_dim, base, factors, config.context);
        Ok(Self { weights: weights.place(&executor)?, executor, rope })
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
        let attention = &block.attention;
        let input = e.normed(x, &attention.norm, config.eps);
        let [mut q, mut k, v] = e.linears(&input, [&attention.q, &attention.k, &attention.v]);
        e.rotate(angles, &mut q, config.head_dim);
        e.rotate(angles, &mut k, config.head_dim);
        let attended = e.attend(layer, batch, kv, config.heads, [&q, &k, &v]);
        e.add_linear(x, &e.input(attended), &attention.o);

        let input = e.normed(x, &block.norm, config.eps);
        let gated = e.input(e.gated(&input, &block.gate, &block.up));
        e.add_linear(x, &gated, &block.down);
    }
}

impl LlamaWeights {
    /// The same weights, where `executor` keeps them.
    fn place<E: Executor>(
        self,
        executor: &E,
    ) -> Result<LlamaWeights<E::Matrix, E::Vector>, DeviceError> {
        Ok(LlamaWeights {
            config: self.config,
            token_embedding: executor.matrix(self.token_embedding)?,
            final_norm: self.final_norm.place(executor)?,
            head: self.head.map(|head| executor.matrix(head)).transpose()?,
            blocks: self
                .blocks
                .into_iter()
                .map(|block| block.place(executor))
                .collect::<Result<_, _>>()?,
        })
    }

    pub(super) fn dimensions(&self) -> Dimensions {
        let LlamaConfig { width, heads, vocab, context, kv_heads, head_dim: dim, .. } = self.config;
        let shape = LayerShape { kv_heads, k_dim: dim, v_dim: dim };
        let layers = vec![(shape, Window::Full); self.config.layers];
        Dimensions { width, heads, vocab, context, layers }
    }

    pub(super) fn matrices(&self) -> Vec<&Matrix> {
        let linears = self.blocks.iter().flat_map(LlamaBlock::linears);
        let blocks = linears.map(|linear| &linear.weight);
        std::iter::once(&self.token_embedding).chain(&self.head).chain(blocks).collect()
    }

    pub(super) fn vectors(&self) -> Vec<&[f32]> {
        let norms = self.blocks.iter().flat_map(|block| [&block.attention.norm, &block.norm]);
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
}

impl<E: Executor> Model for Llama<E> {
    fn prepare(&self, kv: &mut KvSeq, rows: usize) -> Result<(), DeviceError> {
        self.executor.prepare(kv, rows)
    }

    fn forward(&self, batch: &Batch, kv: &mut [&mut KvSeq]) -> Result<Buffer<'_>, DeviceError> {
        let (e, weights) = (&self.executor, &self.weights);
        let angles = e.angles(&self.rope, positions(batch, kv));
        let mut x = e.embed(&batch.tokens, &weights.token_embedding);
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
