//! TinyGPT's from-scratch architecture: pre-LayerNorm blocks, learned absolute positions, biases
//! everywhere, exact-erf GELU, tied head.

use tinygpt_kernels::Matrix;

use super::host::{Buffer, Host, positions};
use super::load::{GptBlock, GptWeights, Linear, Norm};
use super::{Batch, Model};
use crate::kv::layout::{LayerShape, Window};
use crate::kv::seq::KvSeq;

/// A TinyGPT model.
#[derive(Debug)]
pub struct Gpt {
    weights: GptWeights,
}

impl Gpt {
    /// The model over `weights`.
    pub fn new(weights: GptWeights) -> Self {
        Self { weights }
    }

    /// Token embedding plus position embedding: `[T][C]`.
    fn embed<'h>(&self, host: &'h Host, batch: &Batch, kv: &[&mut KvSeq]) -> Buffer<'h> {
        let width = self.width();
        let mut x = host.embed(&batch.tokens, &self.weights.token_embedding);
        for (row, position) in x.chunks_exact_mut(width).zip(positions(batch, kv)) {
            let learned = &self.weights.position_embedding[position as usize * width..][..width];
            host.add(row, learned, width);
        }
        x
    }

    fn block(
        &self,
        host: &Host,
        layer: usize,
        block: &GptBlock,
        x: &mut [f32],
        batch: &Batch,
        kv: &mut [&mut KvSeq],
    ) {
        let config = &self.weights.config;
        let width = config.width;
        let normed = host.norm(x, &block.norm1, config.eps);
        let input = host.input(&normed, width);
        let [q, k, v] = [&block.q, &block.k, &block.v].map(|w| input.linear(w));
        let attended = host.attend(layer, batch, kv, config.heads, [&q, &k, &v]);
        host.add(x, &host.input(&attended, width).linear(&block.o), width);

        let normed = host.norm(x, &block.norm2, config.eps);
        let mut inner = host.input(&normed, width).linear(&block.fc_in);
        let hidden = block.fc_in.weight.n();
        host.gelu(&mut inner, hidden);
        host.add(x, &host.input(&inner, hidden).linear(&block.fc_out), width);
    }
}

fn linears(block: &GptBlock) -> [&Linear; 6] {
    [&block.q, &block.k, &block.v, &block.o, &block.fc_in, &block.fc_out]
}

impl Model for Gpt {
    fn width(&self) -> usize {
        self.weights.config.width
    }

    fn heads(&self) -> usize {
        self.weights.config.heads
    }

    fn vocab(&self) -> usize {
        self.weights.config.vocab
    }

    fn context(&self) -> usize {
        self.weights.config.context
    }

    fn matrices(&self) -> Vec<&Matrix> {
        let linears = self.weights.blocks.iter().flat_map(linears);
        let blocks = linears.map(|linear| &linear.weight);
        std::iter::once(&self.weights.token_embedding).chain(blocks).collect()
    }

    fn vectors(&self) -> Vec<&[f32]> {
        let GptWeights { position_embedding, final_norm, blocks, .. } = &self.weights;
        let norms =
            blocks.iter().flat_map(|block| [&block.norm1, &block.norm2]).chain([final_norm]);
        let biases = blocks.iter().flat_map(linears).filter_map(|linear| linear.bias.as_deref());
        norms.flat_map(Norm::vectors).chain(biases).chain([&**position_embedding]).collect()
    }

    fn layers(&self) -> Vec<(LayerShape, Window)> {
        let config = &self.weights.config;
        let dim = config.width / config.heads;
        let shape = LayerShape { kv_heads: config.heads, k_dim: dim, v_dim: dim };
        vec![(shape, Window::Full); config.layers]
    }

    fn forward<'h>(&self, host: &'h Host, batch: &Batch, kv: &mut [&mut KvSeq]) -> Buffer<'h> {
        let mut x = self.embed(host, batch, kv);
        for (layer, block) in self.weights.blocks.iter().enumerate() {
            self.block(host, layer, block, &mut x, batch, kv);
        }
        let wanted = host.gather(&x, self.width(), &batch.wanted);
        host.norm(&wanted, &self.weights.final_norm, self.weights.config.eps)
    }

    fn head<'h>(&self, host: &'h Host, hidden: &[f32]) -> Buffer<'h> {
        host.input(hidden, self.width()).product(&self.weights.token_embedding, None)
    }
}
