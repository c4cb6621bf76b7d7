//! What the families that grew out of Llama have in common: their numbers and their tensors.

use super::config::Config;
use super::tensors::Tensors;
use crate::model::load::{
    Attention, LayerPlan, Linear, LlamaBlock, LlamaConfig, LlamaWeights, LoadError, Norm,
};
use tinygpt_kernels::Matrix;

/// Longest context that is believed.
pub(super) const CONTEXT: usize = 1 << 20;

/// Largest head that is believed.
const HEAD: usize = 1 << 14;

/// Most layers that are believed.
pub(super) const LAYERS: usize = 1 << 12;

/// Of files that do not say.
const EPS: f64 = 1e-6;

/// Activations of the MLP's gate, by the names that they go by: what a family has.
const SILU: [(&str, ()); 2] = [("silu", ()), ("swish", ())];
const GELU: [(&str, ()); 2] = [("gelu_pytorch_tanh", ()), ("gelu_new", ())];

/// Which tensors a model has.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Parts {
    /// The embedding is the head.
    pub(super) tied: bool,
    pub(super) qkv_bias: bool,
    pub(super) o_bias: bool,
    pub(super) mlp_bias: bool,
    /// Each head of queries and keys is normalised.
    pub(super) head_norms: bool,
    /// Queries, keys and values are one tensor, gate and up another.
    pub(super) fused: bool,
    /// The gain of a norm is 1 more than what is stored.
    pub(super) gains_from_one: bool,
}

/// The numbers, without ropes and windows. The width is divided among the heads if the file does
/// not say otherwise.
pub(super) fn numbers(config: &Config) -> Result<LlamaConfig, LoadError> {
    numbers_with(config, None)
}

/// The same with a size of heads that files which do not say have.
pub(super) fn numbers_with(
    config: &Config,
    head_dim: Option<usize>,
) -> Result<LlamaConfig, LoadError> {
    check_activation(config)?;
    let (width, heads) =
        (config.needed_size("hidden_size")?, config.needed_size("num_attention_heads")?);
    let kv_heads = config.size("num_key_value_heads")?.unwrap_or(heads);
    if !heads.is_multiple_of(kv_heads) {
        let expected = format!("a divisor of the {heads} heads");
        return Err(config.out_of_range("num_key_value_heads", &kv_heads.to_string(), &expected));
    }
    let layers = at_most(config, "num_hidden_layers", LAYERS)?;
    Ok(LlamaConfig {
        layers,
        heads,
        kv_heads,
        width,
        mlp: config.needed_size("intermediate_size")?,
        head_dim: self::head_dim(config, (width, heads), head_dim)?,
        context: at_most(config, "max_position_embeddings", CONTEXT)?,
        vocab: config.needed_size("vocab_size")?,
        eps: config.positive("rms_norm_eps")?.unwrap_or(EPS) as f32,
        ropes: Vec::new(),
        plan: vec![LayerPlan::PLAIN; layers],
    })
}

/// Gemma names its activation otherwise, and has another one.
fn check_activation(config: &Config) -> Result<(), LoadError> {
    match config.text("model_type")? {
        Some("gemma3_text") => {
            config.one_of("hidden_activation", "gelu_pytorch_tanh", &GELU)?;
            config.one_of("hidden_act", "gelu_pytorch_tanh", &GELU)
        }
        _ => config.one_of("hidden_act", "silu", &SILU),
    }
}

fn head_dim(
    config: &Config,
    (width, heads): (usize, usize),
    otherwise: Option<usize>,
) -> Result<usize, LoadError> {
    let stated = config.size("head_dim")?.or(otherwise);
    let whole = || Some(width / heads).filter(|_| width.is_multiple_of(heads));
    let Some(head_dim) = stated.or_else(whole) else {
        let expected = format!("a multiple of the {heads} heads");
        return Err(config.out_of_range("hidden_size", &width.to_string(), &expected));
    };
    if head_dim.is_multiple_of(2) && head_dim <= HEAD {
        return Ok(head_dim);
    }
    let expected = format!("even and at most {HEAD}");
    Err(config.out_of_range("head_dim", &head_dim.to_string(), &expected))
}

/// A positive number that is believed up to a limit.
pub(super) fn at_most(config: &Config, key: &str, most: usize) -> Result<usize, LoadError> {
    let found = config.needed_size(key)?;
    if found <= most {
        return Ok(found);
    }
    Err(config.out_of_range(key, &found.to_string(), &format!("at most {most}")))
}

/// The window of each layer that has one: as the file lists them, or as its family has it.
pub(super) fn windows(
    config: &Config,
    numbers: &LlamaConfig,
    window: Option<usize>,
    slides: impl Fn(usize) -> bool,
) -> Result<Vec<Option<usize>>, LoadError> {
    const KEY: &str = "layer_types";
    let kinds = config.list(KEY, "a list of names", |kind| kind.as_str())?;
    let kinds = kinds.unwrap_or_else(|| {
        let kind = |layer| if slides(layer) { "sliding_attention" } else { "full_attention" };
        (0..numbers.layers).map(kind).collect()
    });
    if kinds.len() != numbers.layers {
        let (found, layers) = (format!("{} long", kinds.len()), numbers.layers);
        return Err(config.out_of_range(KEY, &found, &format!("one for each of {layers} layers")));
    }
    let of_kind = |kind: &str| match (kind, window) {
        ("full_attention", _) => Ok(None),
        ("sliding_attention", Some(window)) => Ok(Some(window)),
        ("sliding_attention", None) => Err(config.missing("sliding_window")),
        (other, _) => Err(config.unsupported(KEY, format!("\"{other}\""))),
    };
    kinds.into_iter().map(of_kind).collect()
}

impl Parts {
    /// The weights of a Llama.
    pub(super) fn llama(
        self,
        config: LlamaConfig,
        tensors: &mut Tensors<'_>,
    ) -> Result<LlamaWeights, LoadError> {
        let token_embedding = self.embedding(&config, tensors)?;
        let final_norm = self.norm(tensors, "model.norm", config.width)?;
        let head = self.head([config.vocab, config.width], tensors)?;
        let blocks = (0..config.layers).map(|layer| self.block(&config, tensors, layer));
        let blocks = blocks.collect::<Result<_, _>>()?;
        Ok(LlamaWeights { token_embedding, final_norm, head, blocks, config })
    }

    pub(super) fn embedding(
        self,
        config: &LlamaConfig,
        tensors: &mut Tensors<'_>,
    ) -> Result<Matrix, LoadError> {
        // Old models carry the frequencies of their ropes.
        tensors.ignore(|name| name.ends_with(".rotary_emb.inv_freq"));
        tensors.matrix("model.embed_tokens.weight", config.vocab, config.width)
    }

    /// The head, where the embedding is not. One that is stored beside a tied embedding is a copy.
    pub(super) fn head(
        self,
        [vocab, width]: [usize; 2],
        tensors: &mut Tensors<'_>,
    ) -> Result<Option<Matrix>, LoadError> {
        const NAME: &str = "lm_head.weight";
        if self.tied {
            tensors.ignore(|name| name.starts_with("lm_head."));
            return Ok(None);
        }
        tensors.matrix(NAME, vocab, width).map(Some)
    }

    /// An RMSNorm.
    pub(super) fn norm(
        self,
        tensors: &mut Tensors<'_>,
        name: &str,
        width: usize,
    ) -> Result<Norm, LoadError> {
        let mut weight = tensors.numbers(&format!("{name}.weight"), &[width])?;
        if self.gains_from_one {
            weight.iter_mut().for_each(|weight| *weight += 1.0);
        }
        Ok(Norm { weight, bias: None })
    }

    fn block(
        self,
        config: &LlamaConfig,
        tensors: &mut Tensors<'_>,
        layer: usize,
    ) -> Result<LlamaBlock, LoadError> {
        let attention = self.attention(config, tensors, layer)?;
        let name = format!("model.layers.{layer}.post_attention_layernorm");
        let norm = self.norm(tensors, &name, config.width)?;
        let [gate, up, down] = self.mlp(config, tensors, layer)?;
        Ok(LlamaBlock { attention, norm, gate, up, down })
    }

    pub(super) fn attention(
        self,
        config: &LlamaConfig,
        tensors: &mut Tensors<'_>,
        layer: usize,
    ) -> Result<Attention, LoadError> {
        let LlamaConfig { width, head_dim, .. } = *config;
        let (queries, keys) = (config.heads * head_dim, config.kv_heads * head_dim);
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        let norm = self.norm(tensors, &name("input_layernorm"), width)?;
        let [q, k, v] = self.projections(tensors, &name("self_attn"), [queries, keys], width)?;
        let o = tensors.linear(&name("self_attn.o_proj"), width, queries, self.o_bias)?;
        let mut head_norm = |part: &str| {
            let norm = || self.norm(tensors, &name(part), head_dim);
            self.head_norms.then(norm).transpose()
        };
        let q_norm = head_norm("self_attn.q_norm")?;
        let k_norm = head_norm("self_attn.k_norm")?;
        Ok(Attention { norm, q, k, v, o, q_norm, k_norm })
    }

    /// Queries, keys and values.
    fn projections(
        self,
        tensors: &mut Tensors<'_>,
        name: &str,
        [queries, keys]: [usize; 2],
        width: usize,
    ) -> Result<[Linear; 3], LoadError> {
        if self.fused {
            return tensors.fused(&format!("{name}.qkv_proj"), [queries, keys, keys], width);
        }
        let mut linear =
            |part: &str, n| tensors.linear(&format!("{name}.{part}_proj"), n, width, self.qkv_bias);
        Ok([linear("q", queries)?, linear("k", keys)?, linear("v", keys)?])
    }

    /// Gate, up and down.
    pub(super) fn mlp(
        self,
        config: &LlamaConfig,
        tensors: &mut Tensors<'_>,
        layer: usize,
    ) -> Result<[Linear; 3], LoadError> {
        let LlamaConfig { width, mlp, .. } = *config;
        let name = |part: &str| format!("model.layers.{layer}.mlp.{part}_proj");
        let [gate, up] = match self.fused {
            true => tensors.fused(&name("gate_up"), [mlp, mlp], width)?,
            false => [
                tensors.linear(&name("gate"), mlp, width, self.mlp_bias)?,
                tensors.linear(&name("up"), mlp, width, self.mlp_bias)?,
            ],
        };
        Ok([gate, up, tensors.linear(&name("down"), width, mlp, self.mlp_bias)?])
    }
}
