//! The numbers of each architecture, and the bytes that stand for them in a fingerprint.
//!
//! Everything here changes the arithmetic, or bounds it; nothing here names a file format.

use tinygpt_kernels::{Convention, Gelu, Rope};

use super::canon::Canon;
use crate::kv::layout::{LayerShape, Window};
use crate::model::Dimensions;

/// Dimensions of a GPT model: learned positions, LayerNorm, biases.
#[derive(Clone, Debug, PartialEq)]
pub struct GptConfig {
    /// L
    pub layers: usize,
    /// H; the head size is `width / heads`.
    pub heads: usize,
    /// G
    pub kv_heads: usize,
    /// C
    pub width: usize,
    /// M
    pub mlp: usize,
    /// T, the number of learned positions.
    pub context: usize,
    /// V
    pub vocab: usize,
    /// Added to the variance in every LayerNorm.
    pub eps: f32,
    /// What a query of any layer sees.
    pub window: Window,
    /// Inside the MLP.
    pub activation: Gelu,
    /// The MLPs that rows of a layer choose among, if there is more than one.
    pub experts: Option<ExpertsConfig>,
}

/// How rows choose among MLPs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertsConfig {
    /// E, at least 2.
    pub count: usize,
    /// How many of them compute each row, `1..=count`.
    pub top: usize,
}

/// Dimensions of a model of the Llama family.
#[derive(Clone, Debug, PartialEq)]
pub struct LlamaConfig {
    /// L
    pub layers: usize,
    /// H
    pub heads: usize,
    /// G
    pub kv_heads: usize,
    /// C
    pub width: usize,
    /// M
    pub mlp: usize,
    /// D
    pub head_dim: usize,
    /// T, the longest sequence the model was made for.
    pub context: usize,
    /// V
    pub vocab: usize,
    /// Added to the mean square in every RMSNorm.
    pub eps: f32,
    /// The turns that layers use.
    pub ropes: Vec<RopeConfig>,
    /// One for each layer.
    pub plan: Vec<LayerPlan>,
}

/// How heads turn with the position.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// Of the frequencies: pair `i` turns by `base^(-2i / dims)` in each position.
    pub base: f64,
    /// Which elements turn together.
    pub convention: Convention,
    /// Elements of a head that turn, even; the first ones.
    pub dims: usize,
    /// `[dims / 2]`: each frequency is divided by its factor.
    pub factors: Option<Vec<f32>>,
    /// Cosines and sines are multiplied by it (longrope, yarn), otherwise 1.
    pub attention_factor: f32,
    /// Other factors for a context that is limited (longrope).
    pub shorter: Option<Shorter>,
}

/// Factors for contexts that are no longer than the one a model was first trained with.
#[derive(Clone, Debug, PartialEq)]
pub struct Shorter {
    /// The longest of them.
    pub context: usize,
    /// `[dims / 2]`
    pub factors: Vec<f32>,
}

/// What distinguishes one layer from the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerPlan {
    /// Index into the ropes; `None`: positions are not told.
    pub rope: Option<usize>,
    /// What a query sees.
    pub window: Window,
}

impl LayerPlan {
    /// The first rope, and every earlier token.
    pub const PLAIN: Self = Self { rope: Some(0), window: Window::Full };
}

/// Dimensions of a Gemma model: a Llama's, and more.
#[derive(Clone, Debug, PartialEq)]
pub struct GemmaConfig {
    /// What it has in common with a Llama.
    pub llama: LlamaConfig,
    /// What the scores of attention are multiplied with.
    pub query_scale: f32,
    /// What the rows of the embedding are multiplied with.
    pub embedding_scale: f32,
    /// Scores of attention become `cap * tanh(score / cap)`.
    pub attention_softcap: Option<f32>,
    /// The same for logits.
    pub final_softcap: Option<f32>,
}

impl RopeConfig {
    /// For sequences of at most `context` tokens.
    fn limit(&mut self, context: usize) {
        if let Some(shorter) = self.shorter.take_if(|shorter| context <= shorter.context) {
            self.factors = Some(shorter.factors);
        }
    }

    /// The turns of positions `0..positions`.
    pub(in crate::model) fn table(&self, positions: usize) -> Rope {
        let Self { base, convention, dims, factors, attention_factor, .. } = self;
        Rope::new(*convention, *dims, *base, factors.as_deref(), positions)
            .scaled(*attention_factor)
    }

    fn canonical(&self, canon: Canon) -> Canon {
        let convention = match self.convention {
            Convention::Interleaved => "interleaved",
            Convention::HalfSplit => "half-split",
        };
        canon
            .bytes("base", &self.base.to_le_bytes())
            .text("convention", convention)
            .number("dims", self.dims)
            .option("factors", self.factors.as_deref(), |canon, factors| canon.floats("", factors))
            .float("attention_factor", self.attention_factor)
    }
}

impl LayerPlan {
    fn canonical(&self, canon: Canon) -> Canon {
        let canon = canon.option("rope", self.rope, |canon, rope| canon.number("", rope));
        seen(canon, self.window)
    }
}

fn seen(canon: Canon, window: Window) -> Canon {
    match window {
        Window::Full => canon.text("window", "full"),
        Window::Sliding(n) => canon.text("window", "sliding").number("tokens", n),
    }
}

impl GptConfig {
    pub(in crate::model) fn dimensions(&self) -> Dimensions {
        let Self { width, heads, kv_heads, vocab, context, window, .. } = *self;
        let dim = width / heads;
        let shape = LayerShape { kv_heads, k_dim: dim, v_dim: dim };
        let layers = vec![(shape, window); self.layers];
        Dimensions { width, heads, vocab, context, layers }
    }

    /// Every number that the arithmetic depends on.
    pub(super) fn canonical(&self) -> Vec<u8> {
        let activation = match self.activation {
            Gelu::Erf => "erf",
            Gelu::Tanh => "tanh",
        };
        seen(Canon::default().text("architecture", "gpt"), self.window)
            .number("layers", self.layers)
            .number("heads", self.heads)
            .number("kv_heads", self.kv_heads)
            .number("width", self.width)
            .number("mlp", self.mlp)
            .number("context", self.context)
            .number("vocab", self.vocab)
            .float("eps", self.eps)
            .text("activation", activation)
            .option("experts", self.experts, |canon, experts| {
                canon.number("count", experts.count).number("top", experts.top)
            })
            .finish()
    }
}

impl LlamaConfig {
    pub(in crate::model) fn dimensions(&self) -> Dimensions {
        let Self { width, heads, vocab, context, kv_heads, head_dim: dim, .. } = *self;
        let shape = LayerShape { kv_heads, k_dim: dim, v_dim: dim };
        let layers = self.plan.iter().map(|plan| (shape, plan.window)).collect();
        Dimensions { width, heads, vocab, context, layers }
    }

    /// Settles what goes by the longest sequence that there will be, `context` tokens. Of what was
    /// cached only that is no longer found, since only that computes otherwise.
    pub(super) fn limit(&mut self, context: usize) {
        self.ropes.iter_mut().for_each(|rope| rope.limit(context));
    }

    /// The turns of every position of the context.
    pub(in crate::model) fn tables(&self) -> Vec<Rope> {
        self.ropes.iter().map(|rope| rope.table(self.context)).collect()
    }

    /// Every number that the arithmetic depends on.
    pub(super) fn canonical(&self) -> Vec<u8> {
        self.numbers(Canon::default().text("architecture", "llama")).finish()
    }

    fn numbers(&self, canon: Canon) -> Canon {
        let canon = canon
            .number("layers", self.layers)
            .number("heads", self.heads)
            .number("kv_heads", self.kv_heads)
            .number("width", self.width)
            .number("mlp", self.mlp)
            .number("head_dim", self.head_dim)
            .number("context", self.context)
            .number("vocab", self.vocab)
            .float("eps", self.eps)
            .number("ropes", self.ropes.len());
        let canon = self.ropes.iter().fold(canon, |canon, rope| rope.canonical(canon));
        self.plan.iter().fold(canon, |canon, plan| plan.canonical(canon))
    }
}

impl GemmaConfig {
    /// Every number that the arithmetic depends on.
    pub(super) fn canonical(&self) -> Vec<u8> {
        self.llama
            .numbers(Canon::default().text("architecture", "gemma"))
            .float("query_scale", self.query_scale)
            .float("embedding_scale", self.embedding_scale)
            .option("attention_softcap", self.attention_softcap, |canon, cap| canon.float("", cap))
            .option("final_softcap", self.final_softcap, |canon, cap| canon.float("", cap))
            .finish()
    }
}
