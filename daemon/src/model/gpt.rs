//! TinyGPT's from-scratch architecture: pre-LayerNorm blocks, learned absolute positions, biases
//! everywhere, exact-erf GELU, tied head.

use tinygpt_kernels::Matrix;

use super::executor::{Executor, positions};
use super::host::Buffer;
use super::load::{GptBlock, GptConfig, GptWeights, Linear, Norm};
use super::{Batch, Dimensions, Model};
use crate::kv::device::{DeviceError, Tier};
use crate::kv::layout::{LayerShape, Window};
use crate::kv::seq::KvSeq;

/// A TinyGPT model.
#[derive(Debug)]
pub struct Gpt<E: Executor> {
    executor: E,
    weights: GptWeights<E::Matrix, E::Vector>,
}

impl<E: Executor> Gpt<E> {
    /// The model over `weights`, which `executor` runs.
    ///
    /// # Errors
    /// When the executor has no room for the weights.
    pub fn new(weights: GptWeights, executor: E) -> Result<Self, DeviceError> {
        Ok(Self { weights: weights.place(&executor)?, executor })
    }

    fn block<'e>(
        &'e self,
        layer: usize,
        x: &mut E::Rows<'e>,
        batch: &Batch,
        kv: &mut [&mut KvSeq],
    ) {
        let (e, config, block) =
            (&self.executor, &self.weights.config, &self.weights.blocks[layer]);
        let attention = &block.attention;
        let input = e.normed(x, &attention.norm, config.eps);
        let [q, k, v] = e.linears(&input, [&attention.q, &attention.k, &attention.v]);
        let attended = e.attend(layer, batch, kv, config.heads, [&q, &k, &v]);
        e.add_linear(x, &e.input(attended), &attention.o);

        let input = e.normed(x, &block.norm, config.eps);
        let mut inner = e.linear(&input, &block.fc_in);
        e.gelu(&mut inner);
        e.add_linear(x, &e.input(inner), &block.fc_out);
    }
}

impl GptWeights {
    /// The same weights, where `executor` keeps them.
    fn place<E: Executor>(
        self,
        executor: &E,
    ) -> Result<GptWeights<E::Matrix, E::Vector>, DeviceError> {
        Ok(GptWeights {
            config: self.config,
            token_embedding: executor.matrix(self.token_embedding)?,
            position_embedding: executor.vector(self.position_embedding)?,
            final_norm: self.final_norm.place(executor)?,
            blocks: self
                .blocks
                .into_iter()
                .map(|block| block.place(executor))
                .collect::<Result<_, _>>()?,
        })
    }

    pub(super) fn dimensions(&self) -> Dimensions {
        let GptConfig { width, heads, vocab, context, .. } = self.config;
        let dim = width / heads;
        let shape = LayerShape { kv_heads: heads, k_dim: dim, v_dim: dim };
        let layers = vec![(shape, Window::Full); self.config.layers];
        Dimensions { width, heads, vocab, context, layers }
    }

    pub(super) fn matrices(&self) -> Vec<&Matrix> {
        let linears = self.blocks.iter().flat_map(GptBlock::linears);
        let blocks = linears.map(|linear| &linear.weight);
        std::iter::once(&self.token_embedding).chain(blocks).collect()
    }

    pub(super) fn vectors(&self) -> Vec<&[f32]> {
        let norms = self.blocks.iter().flat_map(|block| [&block.attention.norm, &block.norm]);
        let linears = self.blocks.iter().flat_map(GptBlock::linears);
        let biases = linears.filter_map(|linear| linear.bias.as_deref());
        let norms = norms.chain([&self.final_norm]).flat_map(Norm::vectors);
        norms.chain(biases).chain([&*self.position_embedding]).collect()
    }
}

impl GptBlock {
    fn place<E: Executor>(
        self,
        executor: &E,
    ) -> Result<GptBlock<E::Matrix, E::Vector>, DeviceError> {
        Ok(GptBlock {
            attention: self.attention.place(executor)?,
            norm: self.norm.place(executor)?,
            fc_in: self.fc_in.place(executor)?,
            fc_out: self.fc_out.place(executor)?,
        })
    }

    fn linears(&self) -> impl Iterator<Item = &Linear> {
        self.attention.linears().into_iter().chain([&self.fc_in, &self.fc_out])
    }
}

impl<E: Executor> Model for Gpt<E> {
    fn prepare(&self, kv: &mut KvSeq, rows: usize) -> Result<(), DeviceError> {
        self.executor.prepare(kv, rows)
    }

    fn forward(&self, batch: &Batch, kv: &mut [&mut KvSeq]) -> Result<Buffer<'_>, DeviceError> {
        let (e, weights) = (&self.executor, &self.weights);
        let mut x = e.embed(&batch.tokens, &weights.token_embedding);
        e.add_learned(&mut x, &weights.position_embedding, positions(batch, kv));
        for layer in 0..weights.blocks.len() {
            self.block(layer, &mut x, batch, kv);
        }
        let wanted = e.gather(&x, &batch.wanted);
        e.finish(e.norm(&wanted, &weights.final_norm, weights.config.eps), batch, kv)
    }

    fn head(&self, hidden: &[f32]) -> Result<Buffer<'_>, DeviceError> {
        let (e, weights) = (&self.executor, &self.weights);
        e.logits(hidden, weights.config.width, &weights.token_embedding)
    }

    fn tier(&self) -> Option<&Tier> {
        self.executor.tier()
    }
}
