//! GPT-2: learned positions, and weights that are stored `[in, out]`, or as MLX writes them.

use super::Body;
use crate::kv::layout::Window;
use crate::model::load::hf::config::Config;
use crate::model::load::hf::decoder::{CONTEXT, LAYERS, Parts, at_most};
use crate::model::load::hf::tensors::{Tensors, sum};
use crate::model::load::{
    Attention, Dense, Gelu, GptBlock, GptConfig, GptWeights, Linear, LoadError, Mlp,
};

/// Inside the MLP, by the names that they go by.
const ACTIVATIONS: [(&str, Gelu); 4] = [
    ("gelu_new", Gelu::Tanh),
    ("gelu_pytorch_tanh", Gelu::Tanh),
    ("gelu_fast", Gelu::Tanh),
    ("gelu", Gelu::Erf),
];

const EPS: f64 = 1e-5;

pub(super) fn plan(config: &Config) -> Result<Body, LoadError> {
    let (width, heads) = (config.needed_size("n_embd")?, config.needed_size("n_head")?);
    if !width.is_multiple_of(heads) {
        let expected = format!("a divisor of the width, {width}");
        return Err(config.out_of_range("n_head", &heads.to_string(), &expected));
    }
    for (key, implemented) in [("scale_attn_weights", true), ("add_cross_attention", false)] {
        let found = config.flag(key, implemented)?;
        if found != implemented {
            return Err(config.unsupported(key, found.to_string()));
        }
    }
    let tied = config.flag("tie_word_embeddings", true)?;
    let config = GptConfig {
        layers: at_most(config, "n_layer", LAYERS)?,
        heads,
        kv_heads: heads,
        width,
        mlp: config.size("n_inner")?.unwrap_or(4 * width),
        context: at_most(config, "n_positions", CONTEXT)?,
        vocab: config.needed_size("vocab_size")?,
        eps: config.positive("layer_norm_epsilon")?.unwrap_or(EPS) as f32,
        activation: config.one_of("activation_function", "gelu_new", &ACTIVATIONS)?,
        experts: None,
        window: Window::Full,
    };
    Ok(Body::Gpt(config, Parts { tied, ..Parts::default() }))
}

/// The weights, once all numbers are known.
pub(super) fn weights(
    config: GptConfig,
    parts: Parts,
    tensors: &mut Tensors<'_>,
) -> Result<GptWeights, LoadError> {
    let GptConfig { width, context, vocab, .. } = config;
    let form = Form::of(tensors);
    tensors.ignore(is_mask);
    let head = parts.head([vocab, width], tensors)?;
    let blocks = (0..config.layers).map(|layer| block(&config, tensors, form, layer));
    let blocks = blocks.collect::<Result<_, _>>()?;
    let prefix = form.prefix();
    Ok(GptWeights {
        token_embedding: tensors.matrix(&format!("{prefix}wte.weight"), vocab, width)?,
        position_embedding: tensors.table(&format!("{prefix}wpe.weight"), context, width)?,
        final_norm: tensors.layer_norm(&format!("{prefix}ln_f"), width)?,
        head,
        blocks,
        config,
    })
}

/// Whose names the tensors have.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    /// The body's alone.
    Bare,
    /// Those of the body in a model.
    Whole,
    /// MLX's, which stores the weights of layers `[out, in]`.
    Mlx,
}

impl Form {
    fn of(tensors: &Tensors<'_>) -> Self {
        let has = |form: &Self| tensors.contains(&format!("{}wte.weight", form.prefix()));
        [Self::Whole, Self::Mlx].into_iter().find(has).unwrap_or(Self::Bare)
    }

    fn prefix(self) -> &'static str {
        match self {
            Self::Bare => "",
            Self::Whole => "transformer.",
            Self::Mlx => "model.",
        }
    }
}

/// What hides later tokens is stored with old models.
fn is_mask(name: &str) -> bool {
    name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias")
}

fn block(
    config: &GptConfig,
    tensors: &mut Tensors<'_>,
    form: Form,
    layer: usize,
) -> Result<GptBlock, LoadError> {
    let GptConfig { width, mlp, .. } = *config;
    let name = |part: &str| format!("{}h.{layer}.{part}", form.prefix());
    let norm = tensors.layer_norm(&name("ln_1"), width)?;
    let [q, k, v] = projections(tensors, form, &name("attn.c_attn"), [width; 3], width)?;
    let [o] = projections(tensors, form, &name("attn.c_proj"), [width], width)?;
    let [fc_in] = projections(tensors, form, &name("mlp.c_fc"), [mlp], width)?;
    let [fc_out] = projections(tensors, form, &name("mlp.c_proj"), [width], mlp)?;
    Ok(GptBlock {
        attention: Attention { norm, q, k, v, o, q_norm: None, k_norm: None },
        norm: tensors.layer_norm(&name("ln_2"), width)?,
        mlp: Mlp::Dense(Dense { fc_in, fc_out }),
    })
}

/// Layers `[n, k]` in one, stored side by side as `[k, n of all]`, or below one another.
fn projections<const P: usize>(
    tensors: &mut Tensors<'_>,
    form: Form,
    name: &str,
    n: [usize; P],
    k: usize,
) -> Result<[Linear; P], LoadError> {
    let weights = match form {
        Form::Mlx => tensors.fused(name, n, k)?.map(|layer| layer.weight),
        _ => tensors.transposed(&format!("{name}.weight"), n, k)?,
    };
    let biases = tensors.numbers(&format!("{name}.bias"), &[sum(n)])?;
    let mut biases = biases.into_iter();
    let mut sizes = n.into_iter();
    Ok(weights.map(|weight| {
        let bias = biases.by_ref().take(sizes.next().unwrap_or(0)).collect();
        Linear::new(weight, Some(bias))
    }))
}
