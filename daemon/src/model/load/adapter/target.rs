//! Which layers of a model a name stands for.

/// A layer of a block, as far as architectures have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    Q,
    K,
    V,
    O,
    Gate,
    Up,
    Down,
    FcIn,
    FcOut,
}

use Part::{Down, FcIn, FcOut, Gate, K, O, Q, Up, V};

/// Layers of one block, whose outputs lie one after another in what changes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Target {
    /// The number of the block.
    pub(super) layer: usize,
    pub(super) parts: &'static [Part],
}

/// What stands before the number of a block: Hugging Face's decoders, GPT-2, TinyGPT, each of the
/// first two with the name of the whole model or without it.
const ROOTS: [&str; 5] = ["model.layers.", "layers.", "transformer.h.", "h.", "blocks."];

/// What stands behind it.
const NAMES: [(&str, &[Part]); 19] = [
    ("self_attn.q_proj", &[Q]),
    ("self_attn.k_proj", &[K]),
    ("self_attn.v_proj", &[V]),
    ("self_attn.o_proj", &[O]),
    ("self_attn.qkv_proj", &[Q, K, V]),
    ("mlp.gate_proj", &[Gate]),
    ("mlp.up_proj", &[Up]),
    ("mlp.gate_up_proj", &[Gate, Up]),
    ("mlp.down_proj", &[Down]),
    ("attn.c_attn", &[Q, K, V]),
    ("attn.c_proj", &[O]),
    ("mlp.c_fc", &[FcIn]),
    ("mlp.c_proj", &[FcOut]),
    ("attn.q_proj", &[Q]),
    ("attn.k_proj", &[K]),
    ("attn.v_proj", &[V]),
    ("attn.o_proj", &[O]),
    ("mlp.fc_in", &[FcIn]),
    ("mlp.fc_out", &[FcOut]),
];

impl Target {
    /// `None` for the name of anything else.
    pub(super) fn named(module: &str) -> Option<Self> {
        let path = ROOTS.into_iter().find_map(|root| module.strip_prefix(root))?;
        let (layer, name) = path.split_once('.')?;
        let (_, parts) = NAMES.into_iter().find(|(known, _)| *known == name)?;
        Some(Self { layer: layer.parse().ok()?, parts })
    }
}

impl Part {
    /// Its name in a digest.
    pub(super) fn name(self) -> &'static str {
        match self {
            Q => "q",
            K => "k",
            V => "v",
            O => "o",
            Gate => "gate",
            Up => "up",
            Down => "down",
            FcIn => "fc_in",
            FcOut => "fc_out",
        }
    }
}
