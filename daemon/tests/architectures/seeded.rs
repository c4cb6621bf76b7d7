//! Tiny models of every architecture, with weights that are the same on every machine.

use tinygpt_kernels::sample::uniform;
use tinygpt_kernels::{Code, Convention, Matrix};
use tinygptd::kv::layout::Window;
use tinygptd::model::load::{
    Attention, Dense, Experts, ExpertsConfig, Gelu, GemmaBlock, GemmaConfig, GemmaWeights,
    GptBlock, GptConfig, GptWeights, LayerPlan, Linear, LlamaBlock, LlamaConfig, LlamaWeights, Mlp,
    Norm, RopeConfig, Weights,
};

const LAYERS: usize = 4;
const HEADS: usize = 4;
const WIDTH: usize = 64;
const MLP: usize = 96;
pub(crate) const CONTEXT: usize = 1024;
pub(crate) const VOCAB: u32 = 80;

/// How the weights of products are kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kept {
    Plain,
    FourBits,
}

/// Every architecture with what its models have and others have not.
pub(crate) fn all(kept: Kept) -> Vec<(&'static str, Weights)> {
    let llama = |config| Weights::Llama(llama(config, kept));
    vec![
        ("gpt", Weights::Gpt(gpt(gpt_config(), kept))),
        ("gpt2", Weights::Gpt(gpt(GptConfig { activation: Gelu::Tanh, ..gpt_config() }, kept))),
        ("experts", Weights::Gpt(gpt(experts_config(), kept))),
        ("llama", llama(llama_config())),
        ("mistral", llama(mistral_config())),
        ("qwen3", Weights::Llama(qwen3(kept))),
        ("smollm3", llama(smollm3_config())),
        ("phi3", llama(phi3_config())),
        ("gemma3", Weights::Gemma(gemma(gemma_config(), kept))),
    ]
}

pub(crate) fn gpt_config() -> GptConfig {
    GptConfig {
        layers: LAYERS,
        heads: HEADS,
        kv_heads: HEADS,
        width: WIDTH,
        mlp: MLP,
        context: CONTEXT,
        vocab: VOCAB as usize,
        eps: 1e-5,
        window: Window::Full,
        activation: Gelu::Erf,
        experts: None,
    }
}

pub(crate) fn experts_config() -> GptConfig {
    GptConfig { kv_heads: 2, experts: Some(ExpertsConfig { count: 4, top: 2 }), ..gpt_config() }
}

pub(crate) fn llama_config() -> LlamaConfig {
    LlamaConfig {
        layers: LAYERS,
        heads: HEADS,
        kv_heads: 2,
        width: WIDTH,
        mlp: MLP,
        head_dim: 32,
        context: CONTEXT,
        vocab: VOCAB as usize,
        eps: 1e-5,
        ropes: vec![rope(10_000.0)],
        plan: vec![LayerPlan::PLAIN; LAYERS],
    }
}

fn rope(base: f64) -> RopeConfig {
    let convention = Convention::HalfSplit;
    RopeConfig { base, convention, dims: 32, factors: None, attention_factor: 1.0, shorter: None }
}

/// Every layer with a window.
pub(crate) fn mistral_config() -> LlamaConfig {
    let plan = LayerPlan { window: Window::Sliding(40), ..LayerPlan::PLAIN };
    LlamaConfig { plan: vec![plan; LAYERS], ..llama_config() }
}

/// Layers that are not told positions.
fn smollm3_config() -> LlamaConfig {
    let plan = |layer| LayerPlan { rope: (layer % 2 == 0).then_some(0), ..LayerPlan::PLAIN };
    LlamaConfig { plan: (0..LAYERS).map(plan).collect(), ..llama_config() }
}

/// Part of each head turns, and grows, with interleaved pairs and factors.
pub(crate) fn phi3_config() -> LlamaConfig {
    let factors = (0..12).map(|i| 1.0 + i as f32 / 4.0).collect();
    let rope = RopeConfig {
        convention: Convention::Interleaved,
        dims: 24,
        factors: Some(factors),
        attention_factor: 1.2,
        ..rope(10_000.0)
    };
    LlamaConfig { ropes: vec![rope], ..llama_config() }
}

/// Two ropes, two windows, caps, one head of keys and values.
pub(crate) fn gemma_config() -> GemmaConfig {
    let plan = |layer| match layer % 3 {
        2 => LayerPlan { rope: Some(1), window: Window::Full },
        _ => LayerPlan { rope: Some(0), window: Window::Sliding(33) },
    };
    GemmaConfig {
        llama: LlamaConfig {
            kv_heads: 1,
            ropes: vec![rope(10_000.0), rope(1_000_000.0)],
            plan: (0..LAYERS).map(plan).collect(),
            ..llama_config()
        },
        query_scale: 0.2,
        embedding_scale: 8.0,
        attention_softcap: Some(5.0),
        final_softcap: Some(3.0),
    }
}

pub(crate) fn qwen3(kept: Kept) -> LlamaWeights {
    let mut weights = llama(llama_config(), kept);
    for (layer, block) in (0..).zip(&mut weights.blocks) {
        head_norms(&mut block.attention, 900 + layer);
    }
    weights
}

fn head_norms(attention: &mut Attention, seed: u64) {
    attention.q_norm = Some(norm(seed, 32, false));
    attention.k_norm = Some(norm(seed + 50, 32, false));
}

pub(crate) fn gpt(config: GptConfig, kept: Kept) -> GptWeights {
    let seeded = Seeded { kept, biased: true };
    let (width, dim) = (config.width, config.width / config.heads);
    let block = |layer: usize| {
        let seed = 1_000 * (1 + layer as u64);
        let dense = |seed| Dense {
            fc_in: seeded.linear(seed, config.mlp, width),
            fc_out: seeded.linear(seed + 1, width, config.mlp),
        };
        GptBlock {
            attention: seeded.attention(seed, (config.heads * dim, config.kv_heads * dim), width),
            norm: norm(seed + 8, width, true),
            mlp: match config.experts {
                None => Mlp::Dense(dense(seed + 10)),
                Some(experts) => Mlp::Experts(Experts {
                    router: Seeded { biased: false, ..seeded }.linear(
                        seed + 9,
                        experts.count,
                        width,
                    ),
                    experts: (0..experts.count as u64).map(|i| dense(seed + 10 + 2 * i)).collect(),
                }),
            },
        }
    };
    GptWeights {
        token_embedding: seeded.matrix(1, config.vocab, width),
        position_embedding: noise(2, config.context * width, 0.5),
        final_norm: norm(3, width, true),
        head: None,
        blocks: (0..config.layers).map(block).collect(),
        config,
    }
}

pub(crate) fn llama(config: LlamaConfig, kept: Kept) -> LlamaWeights {
    let seeded = Seeded { kept, biased: false };
    let block = |layer: usize| {
        let seed = 1_000 * (1 + layer as u64);
        LlamaBlock {
            attention: seeded.llama_attention(seed, &config),
            norm: norm(seed + 8, config.width, false),
            gate: seeded.linear(seed + 10, config.mlp, config.width),
            up: seeded.linear(seed + 11, config.mlp, config.width),
            down: seeded.linear(seed + 12, config.width, config.mlp),
        }
    };
    LlamaWeights {
        token_embedding: seeded.matrix(1, config.vocab, config.width),
        final_norm: norm(3, config.width, false),
        head: Some(seeded.matrix(2, config.vocab, config.width)),
        blocks: (0..config.layers).map(block).collect(),
        config,
    }
}

pub(crate) fn gemma(config: GemmaConfig, kept: Kept) -> GemmaWeights {
    let seeded = Seeded { kept, biased: false };
    let llama = &config.llama;
    let block = |layer: usize| {
        let seed = 1_000 * (1 + layer as u64);
        let mut attention = seeded.llama_attention(seed, llama);
        head_norms(&mut attention, seed + 20);
        GemmaBlock {
            attention,
            post_attention_norm: norm(seed + 7, llama.width, false),
            norm: norm(seed + 8, llama.width, false),
            gate: seeded.linear(seed + 10, llama.mlp, llama.width),
            up: seeded.linear(seed + 11, llama.mlp, llama.width),
            down: seeded.linear(seed + 12, llama.width, llama.mlp),
            post_mlp_norm: norm(seed + 9, llama.width, false),
        }
    };
    GemmaWeights {
        token_embedding: seeded.matrix(1, llama.vocab, llama.width),
        final_norm: norm(3, llama.width, false),
        head: None,
        blocks: (0..llama.layers).map(block).collect(),
        config,
    }
}

/// Makes weights.
#[derive(Clone, Copy)]
struct Seeded {
    kept: Kept,
    biased: bool,
}

impl Seeded {
    fn llama_attention(self, seed: u64, config: &LlamaConfig) -> Attention {
        let (queries, keys) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
        self.attention(seed, (queries, keys), config.width)
    }

    fn attention(self, seed: u64, (queries, keys): (usize, usize), width: usize) -> Attention {
        Attention {
            norm: norm(seed, width, self.biased),
            q: self.linear(seed + 1, queries, width),
            k: self.linear(seed + 2, keys, width),
            v: self.linear(seed + 3, keys, width),
            o: self.linear(seed + 4, width, queries),
            q_norm: None,
            k_norm: None,
        }
    }

    fn linear(self, seed: u64, n: usize, k: usize) -> Linear {
        let bias = self.biased.then(|| noise(seed + 500, n, 0.1));
        Linear::new(self.matrix(seed, n, k), bias)
    }

    fn matrix(self, seed: u64, n: usize, k: usize) -> Matrix {
        let size = 3.0 / (k as f32).sqrt();
        let weights = noise(seed, n * k, size);
        match self.kept {
            Kept::Plain => Matrix::from_f32(n, k, &weights),
            Kept::FourBits => {
                let codes: Vec<i8> = weights.iter().map(|x| (x / size * 8.0) as i8).collect();
                let scales: Vec<f32> = noise(seed + 1, n * k / 32, size / 16.0);
                let scales: Vec<f32> = scales.iter().map(|scale| size / 8.0 + scale).collect();
                Matrix::from_affine(n, k, (Code { bits: 4, zero: 8 }, 32), &codes, &scales, None)
            }
        }
    }
}

fn norm(seed: u64, width: usize, biased: bool) -> Norm {
    let weight = noise(seed, width, 0.4).iter().map(|x| 1.0 + x).collect();
    Norm { weight, bias: biased.then(|| noise(seed + 500, width, 0.1)) }
}

/// Numbers between `-size` and `size`.
fn noise(seed: u64, len: usize, size: f32) -> Vec<f32> {
    (0..len as u64).map(|i| (2.0 * uniform(seed, 0, i) - 1.0) * size).collect()
}
