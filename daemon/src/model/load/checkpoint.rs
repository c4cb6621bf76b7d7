//! What a model file amounts to once read: plain data, no file format left in it.
//!
//! Shapes use one alphabet: L layers, H heads, G KV heads, D head size, C width, M MLP width,
//! T context, V vocabulary. Matrices are `[out, in]`, one row per output, whatever the file stored.
//!
//! Weights are `Matrix` and `Vec<f32>` as they come from a file, and whatever an executor makes of
//! them later: `M` and `V` where a type is both.

use tinygpt_kernels::Matrix;

use super::config::{GemmaConfig, GptConfig, LlamaConfig};
use crate::kv::key::Digest;
use crate::model::AdapterId;

/// A model read from a file, and what its fingerprint needs.
#[derive(Debug)]
pub struct Checkpoint {
    /// Numbers and weights.
    pub weights: Weights,
    /// What a tokenizer is built from.
    pub vocabulary: Vocabulary,
    /// Name of the file format: `gguf`, `safetensors` or `tinygpt`.
    pub format: &'static str,
    /// Name of the architecture, as the file has it: `gpt` (TinyGPT), `llama`, `qwen3`.
    pub architecture: String,
    /// The element type that most weights are stored in, as the format names it (`fp16`, `Q4_1`).
    pub quantisation: String,
    /// Of everything that changes text into token ids.
    pub tokenizer: Digest,
    /// The chat template in the file (Jinja source), if there is one.
    pub chat_template: Option<String>,
}

/// The weights of one of the architectures that can run.
#[derive(Debug)]
pub enum Weights {
    /// TinyGPT's from-scratch architecture and GPT-2.
    Gpt(GptWeights),
    /// The Llama family: Llama, Mistral, Qwen, SmolLM, Phi.
    Llama(LlamaWeights),
    /// Gemma.
    Gemma(GemmaWeights),
}

impl Weights {
    /// Settles what goes by the longest sequence that there will be, `context` tokens, where that is
    /// less than the model's own.
    pub fn limit(&mut self, context: usize) {
        match self {
            Self::Gpt(_) => {}
            Self::Llama(weights) => weights.config.limit(context),
            Self::Gemma(weights) => weights.config.llama.limit(context),
        }
    }

    /// Canonical bytes of every number that changes the arithmetic.
    pub fn config_digest_input(&self) -> Vec<u8> {
        match self {
            Self::Gpt(weights) => weights.config.canonical(),
            Self::Llama(weights) => weights.config.canonical(),
            Self::Gemma(weights) => weights.config.canonical(),
        }
    }
}

/// `y = weight x + bias`, and what adapters add to it.
#[derive(Debug)]
pub struct Linear<M = Matrix, V = Vec<f32>> {
    /// `[out, in]`
    pub weight: M,
    /// `[out]`
    pub bias: Option<V>,
    /// One for each adapter that changes the layer.
    pub deltas: Vec<(AdapterId, Delta<M>)>,
}

impl Linear {
    /// A layer that no adapter changes.
    pub fn new(weight: Matrix, bias: Option<Vec<f32>>) -> Self {
        Self { weight, bias, deltas: Vec::new() }
    }
}

/// What an adapter of rank r adds to the outputs of a layer: `y += up (down x)`.
#[derive(Debug)]
pub struct Delta<M = Matrix> {
    /// `[r, in]`
    pub down: M,
    /// `[out, r]`, multiplied with the adapter's scale.
    pub up: M,
}

/// Gain and, for a LayerNorm, bias of a normalisation.
#[derive(Clone, Debug, PartialEq)]
pub struct Norm<V = Vec<f32>> {
    /// `[C]`
    pub weight: V,
    /// `[C]`; present for LayerNorm, absent for RMSNorm.
    pub bias: Option<V>,
}

impl Norm {
    /// Its weights.
    pub(in crate::model) fn vectors(&self) -> impl Iterator<Item = &[f32]> {
        std::iter::once(&*self.weight).chain(self.bias.as_deref())
    }
}

/// Weights of a GPT model.
#[derive(Debug)]
pub struct GptWeights<M = Matrix, V = Vec<f32>> {
    /// Its dimensions.
    pub config: GptConfig,
    /// `[V, C]`
    pub token_embedding: M,
    /// `[T, C]`, row-major.
    pub position_embedding: V,
    /// Before the head.
    pub final_norm: Norm<V>,
    /// `[V, C]`; `None` means the token embedding is the head.
    pub head: Option<M>,
    /// L of them.
    pub blocks: Vec<GptBlock<M, V>>,
}

/// What every block begins with: `o(attend(q, k, v of norm x))`.
#[derive(Debug)]
pub struct Attention<M = Matrix, V = Vec<f32>> {
    /// Before it.
    pub norm: Norm<V>,
    /// `[H D, C]`
    pub q: Linear<M, V>,
    /// `[G D, C]`
    pub k: Linear<M, V>,
    /// `[G D, C]`
    pub v: Linear<M, V>,
    /// `[C, H D]`
    pub o: Linear<M, V>,
    /// `[D]`: normalises each head of the queries before it turns.
    pub q_norm: Option<Norm<V>>,
    /// `[D]`: the same for the keys.
    pub k_norm: Option<Norm<V>>,
}

/// One pre-norm block: its attention, then `x += mlp(norm x)`.
#[derive(Debug)]
pub struct GptBlock<M = Matrix, V = Vec<f32>> {
    /// The first half.
    pub attention: Attention<M, V>,
    /// Before the MLP.
    pub norm: Norm<V>,
    /// The second half.
    pub mlp: Mlp<M, V>,
}

/// The second half of a [`GptBlock`].
#[derive(Debug)]
pub enum Mlp<M = Matrix, V = Vec<f32>> {
    /// The same for all rows.
    Dense(Dense<M, V>),
    /// Each row has its own of several.
    Experts(Experts<M, V>),
}

/// `fc_out(gelu(fc_in x))`
#[derive(Debug)]
pub struct Dense<M = Matrix, V = Vec<f32>> {
    /// `[M, C]`
    pub fc_in: Linear<M, V>,
    /// `[C, M]`
    pub fc_out: Linear<M, V>,
}

/// E MLPs, and what chooses among them: a softmax over the router's scores.
#[derive(Debug)]
pub struct Experts<M = Matrix, V = Vec<f32>> {
    /// `[E, C]`
    pub router: Linear<M, V>,
    /// E of them.
    pub experts: Vec<Dense<M, V>>,
}

/// Weights of a Llama model.
#[derive(Debug)]
pub struct LlamaWeights<M = Matrix, V = Vec<f32>> {
    /// Its dimensions.
    pub config: LlamaConfig,
    /// `[V, C]`
    pub token_embedding: M,
    /// Before the head.
    pub final_norm: Norm<V>,
    /// `[V, C]`; `None` means the token embedding is the head.
    pub head: Option<M>,
    /// L of them.
    pub blocks: Vec<LlamaBlock<M, V>>,
}

/// One block: its attention, then `x += down(silu(gate(x')) * up(x'))` with `x' = norm x`.
#[derive(Debug)]
pub struct LlamaBlock<M = Matrix, V = Vec<f32>> {
    /// The first half.
    pub attention: Attention<M, V>,
    /// Before the MLP.
    pub norm: Norm<V>,
    /// `[M, C]`
    pub gate: Linear<M, V>,
    /// `[M, C]`
    pub up: Linear<M, V>,
    /// `[C, M]`
    pub down: Linear<M, V>,
}

/// Weights of a Gemma model. The gains of its norms are `1 + w` of the file's `w`.
#[derive(Debug)]
pub struct GemmaWeights<M = Matrix, V = Vec<f32>> {
    /// Its dimensions.
    pub config: GemmaConfig,
    /// `[V, C]`
    pub token_embedding: M,
    /// Before the head.
    pub final_norm: Norm<V>,
    /// `[V, C]`; `None` means the token embedding is the head.
    pub head: Option<M>,
    /// L of them.
    pub blocks: Vec<GemmaBlock<M, V>>,
}

/// One block: `x += post_attention_norm(attention)`, then
/// `x += post_mlp_norm(down(gelu(gate(x')) * up(x')))` with `x' = norm x`, all norms RMS.
#[derive(Debug)]
pub struct GemmaBlock<M = Matrix, V = Vec<f32>> {
    /// The first half.
    pub attention: Attention<M, V>,
    /// After it.
    pub post_attention_norm: Norm<V>,
    /// Before the MLP.
    pub norm: Norm<V>,
    /// `[M, C]`
    pub gate: Linear<M, V>,
    /// `[M, C]`
    pub up: Linear<M, V>,
    /// `[C, M]`
    pub down: Linear<M, V>,
    /// After the MLP.
    pub post_mlp_norm: Norm<V>,
}

/// Plain data from which a tokenizer is built.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(clippy::large_enum_variant, reason = "there is one for each model")]
pub enum Vocabulary {
    /// A token id is a byte of UTF-8; there are no special tokens.
    #[default]
    Bytes,
    /// The vocabulary inside a GGUF file.
    Gguf(GgufVocabulary),
    /// A `tokenizer.json`.
    HuggingFace(HfVocabulary),
}

impl Vocabulary {
    /// The kind of tokenizer, in words.
    pub fn name(&self) -> String {
        match self {
            Self::Bytes => "bytes".to_owned(),
            Self::Gguf(gguf) => {
                format!("{}/{}", gguf.model, gguf.pre.as_deref().unwrap_or("default"))
            }
            Self::HuggingFace(_) => "tokenizer.json".to_owned(),
        }
    }
}

/// What a directory says about its tokenizer, not yet interpreted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HfVocabulary {
    /// `tokenizer.json`
    pub json: Box<[u8]>,
    /// V: how many ids the model knows, whatever the tokenizer does.
    pub vocab: usize,
    /// Beginning-of-sequence token.
    pub bos: Option<String>,
    /// The same where only its id is known.
    pub bos_id: Option<u32>,
    /// Whether prompts begin with it; `None` leaves it to the tokenizer.
    pub adds_bos: Option<bool>,
    /// End-of-sequence token.
    pub eos: Option<String>,
    /// Tokens that end a generation.
    pub eos_ids: Vec<u32>,
    /// Tokens that another file than the tokenizer's names, by id.
    pub added: Vec<(u32, String)>,
}

/// What a GGUF file says about its tokenizer, checked for consistency and not yet interpreted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GgufVocabulary {
    /// `tokenizer.ggml.model`
    pub model: String,
    /// `tokenizer.ggml.pre`
    pub pre: Option<String>,
    /// Token texts by id.
    pub tokens: Vec<String>,
    /// ggml token types by id (1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte);
    /// empty or one per token.
    pub token_types: Vec<i32>,
    /// Scores by id; empty or one per token.
    pub scores: Vec<f32>,
    /// Merge rules, best first, as "left right".
    pub merges: Vec<String>,
    /// Beginning-of-sequence token.
    pub bos: Option<u32>,
    /// End-of-sequence token.
    pub eos: Option<u32>,
    /// Stands for what the vocabulary cannot spell.
    pub unknown: Option<u32>,
    /// Whether prompts begin with `bos`; `None` leaves it to the kind of tokenizer.
    pub add_bos: Option<bool>,
    /// Whether ordinary text is read as if a space were before it; `None` leaves it to the kind.
    pub add_space_prefix: Option<bool>,
    /// Tokens that swallow the white space behind them, ascending.
    pub swallow: Vec<u32>,
    /// Every token that ends a generation: end of sequence, of turn, of message.
    pub eos_ids: Vec<u32>,
}
