//! The Llama family: RMSNorm, rotary positions, grouped-query attention, SiLU-gated MLP.

use tinygpt_kernels::{Convention, Matrix, Rope};

use super::host::{Buffer, Host, positions};
use super::load::{Linear, LlamaBlock, LlamaWeights, Norm, RopeLayout};
use super::{Batch, Model};
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
        host: &Host,
        layer: usize,
        block: &LlamaBlock,
        x: &mut [f32],
        batch: &Batch,
        kv: &mut [&mut KvSeq],
    ) {
        let config = &self.weights.config;
        let (width, attention) = (config.width, config.heads * config.head_dim);
        let normed = host.norm(x, &block.norm1, config.eps);
        let input = host.input(&normed, width);
        let [mut q, mut k, v] = [&block.q, &block.k, &block.v].map(|w| input.linear(w));
        let positions = positions(batch, kv);
        host.rotate(&self.rope, &mut q, config.head_dim, &positions);
        host.rotate(&self.rope, &mut k, config.head_dim, &positions);
        let attended = host.attend(layer, batch, kv, config.heads, [&q, &k, &v]);
        host.add(x, &host.input(&attended, attention).linear(&block.o), width);

        let normed = host.norm(x, &block.norm2, config.eps);
        let input = host.input(&normed, width);
        let [gate, up] = [&block.gate, &block.up].map(|w| input.linear(w));
        let inner = block.gate.weight.n();
        let gated = host.silu_mul(&gate, &up, inner);
        host.add(x, &host.input(&gated, inner).linear(&block.down), width);
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

    fn forward<'h>(&self, host: &'h Host, batch: &Batch, kv: &mut [&mut KvSeq]) -> Buffer<'h> {
        let mut x = host.embed(&batch.tokens, &self.weights.token_embedding);
        for (layer, block) in self.weights.blocks.iter().enumerate() {
            self.block(host, layer, block, &mut x, batch, kv);
        }
        let wanted = host.gather(&x, self.width(), &batch.wanted);
        host.norm(&wanted, &self.weights.final_norm, self.weights.config.eps)
    }

    fn head<'h>(&self, host: &'h Host, hidden: &[f32]) -> Buffer<'h> {
        let head = self.weights.head.as_ref().unwrap_or(&self.weights.token_embedding);
        host.input(hidden, self.width()).product(head, None)
    }
}
