//! The Llama family: RMSNorm, rotary positions, grouped-query attention, SiLU-gated MLP.

use tinygpt_kernels::{Convention, Matrix, Pool, Rope, act};

use super::load::{Linear, LlamaBlock, LlamaWeights, Norm, RopeLayout};
use super::{Batch, Model, ops};
use crate::kv::layout::{LayerShape, Window};
use crate::kv::seq::KvSeq;

/// A Llama model.
#[derive(Debug)]
pub struct Llama {
    weights: LlamaWeights,
    rope: Rope,
}

impl Llama {
    /// The model over `weights`.
    pub fn new(weights: LlamaWeights) -> Self {
        let config = &weights.config;
        let convention = match config.rope_layout {
            RopeLayout::Interleaved => Convention::Interleaved,
            RopeLayout::HalfSplit => Convention::HalfSplit,
        };
        let (base, factors) = (f64::from(config.rope_base), config.rope_factors.as_deref());
        let rope = Rope::new(convention, config.head_dim, base, factors, config.context);
        Self { weights, rope }
    }

    fn block(
        &self,
        pool: &Pool,
        layer: usize,
        block: &LlamaBlock,
        x: &mut [f32],
        batch: &Batch,
        kv: &mut [&mut KvSeq],
    ) {
        let config = &self.weights.config;
        let normed = ops::norm(x, &block.norm1, config.eps);
        let [mut q, mut k, v] =
            [&block.q, &block.k, &block.v].map(|w| ops::linear(pool, &normed, w));
        let positions = ops::positions(batch, kv);
        self.rope.apply(&mut q, config.heads, config.head_dim, &positions);
        self.rope.apply(&mut k, config.kv_heads, config.head_dim, &positions);
        let attended = ops::attend(pool, layer, batch, kv, config.heads, [&q, &k, &v]);
        ops::add(x, &ops::linear(pool, &attended, &block.o));

        let normed = ops::norm(x, &block.norm2, config.eps);
        let [gate, up] = [&block.gate, &block.up].map(|w| ops::linear(pool, &normed, w));
        let mut inner = vec![0.0; gate.len()];
        act::silu_mul(&gate, &up, &mut inner);
        ops::add(x, &ops::linear(pool, &inner, &block.down));
    }
}

fn linears(block: &LlamaBlock) -> [&Linear; 7] {
    [&block.q, &block.k, &block.v, &block.o, &block.gate, &block.up, &block.down]
}

impl Model for Llama {
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
        let head = self.weights.head.iter();
        std::iter::once(&self.weights.token_embedding).chain(head).chain(blocks).collect()
    }

    fn vectors(&self) -> Vec<&[f32]> {
        let LlamaWeights { final_norm, blocks, .. } = &self.weights;
        let norms =
            blocks.iter().flat_map(|block| [&block.norm1, &block.norm2]).chain([final_norm]);
        let biases = blocks.iter().flat_map(linears).filter_map(|linear| linear.bias.as_deref());
        norms.flat_map(Norm::vectors).chain(biases).collect()
    }

    fn layers(&self) -> Vec<(LayerShape, Window)> {
        let config = &self.weights.config;
        let (kv_heads, dim) = (config.kv_heads, config.head_dim);
        vec![(LayerShape { kv_heads, k_dim: dim, v_dim: dim }, Window::Full); config.layers]
    }

    fn forward(&self, pool: &Pool, batch: &Batch, kv: &mut [&mut KvSeq]) -> Vec<f32> {
        let mut x = ops::embed(&batch.tokens, &self.weights.token_embedding);
        for (layer, block) in self.weights.blocks.iter().enumerate() {
            self.block(pool, layer, block, &mut x, batch, kv);
        }
        let wanted = ops::gather(&x, self.width(), &batch.wanted);
        ops::norm(&wanted, &self.weights.final_norm, self.weights.config.eps)
    }

    fn head(&self, pool: &Pool, hidden: &[f32]) -> Vec<f32> {
        let head = self.weights.head.as_ref().unwrap_or(&self.weights.token_embedding);
        ops::product(pool, hidden, head, None)
    }
}
