//! The JSON header of a `.tinygpt` file: dimensions, tensor list, body layout.
//!
//! Unknown keys are ignored, as every reader of the format does; keys that are known to change the
//! arithmetic and are not implemented are refused by name.

use serde::Deserialize;

use crate::kv::layout::Window;
use crate::model::load::{ExpertsConfig, Gelu, GptConfig, LoadError};

/// Epsilon of every LayerNorm in the architecture; the format does not store it.
const EPS: f32 = 1e-5;

/// What is read of the header.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Header {
    #[serde(default)]
    pub(super) config: Config,
    /// Absent in version 1.
    pub(super) manifest: Option<Vec<Entry>>,
    weight_dtype: Option<String>,
    includes_optimizer_state: Option<bool>,
    int4_block_size: Option<u64>,
    /// Bytes after the header, step counter included.
    pub(super) state_byte_length: Option<u64>,
}

/// One tensor of the manifest.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Entry {
    pub(super) name: String,
    /// `[out, in]`, also where the bytes are stored `[in, out]`.
    pub(super) shape: Vec<u64>,
    /// Elements before this tensor in an fp16 body.
    pub(super) float_offset: Option<u64>,
}

/// The keys of `config` that say something about the arithmetic.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Config {
    layers: Option<u64>,
    heads: Option<u64>,
    kv_heads: Option<u64>,
    d_model: Option<u64>,
    d_mlp: Option<u64>,
    ctx: Option<u64>,
    vocab_size: Option<u64>,
    tokenizer_source: Option<String>,
    n_experts: Option<u64>,
    moe_top_k: Option<u64>,
    sliding_window: Option<u64>,
    #[serde(rename = "useMoD")]
    use_mod: Option<bool>,
    use_differential_attention: Option<bool>,
    #[serde(rename = "useYOCO")]
    use_yoco: Option<bool>,
    use_deep_norm: Option<bool>,
    #[serde(rename = "useEmbeddingRMSNorm")]
    use_embedding_rms_norm: Option<bool>,
}

/// How the body stores the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// Per tensor: f32 weights, then two Adam moments of the same size.
    Triplets,
    /// One f16 buffer, tensors at their `floatOffset`.
    Fp16,
    /// f16 scales of 64-element blocks, then 4-bit values.
    Int4,
}

impl Layout {
    /// The name the format uses.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Triplets => "fp32",
            Self::Fp16 => "fp16",
            Self::Int4 => "int4",
        }
    }
}

impl Header {
    /// The layout rule on which the format's readers agree; combinations that they read
    /// differently are refused.
    pub(super) fn layout(&self) -> Result<Layout, LoadError> {
        let dtype = self.weight_dtype.as_deref().unwrap_or("fp32").to_lowercase();
        match (dtype.as_str(), self.includes_optimizer_state.unwrap_or(true)) {
            ("fp32", true) => Ok(Layout::Triplets),
            ("fp16", _) => Ok(Layout::Fp16),
            ("int4", false) => self.int4(),
            (dtype, optimizer) => Err(unsupported(
                "weightDtype",
                format!("\"{dtype}\" with includesOptimizerState {optimizer}"),
            )),
        }
    }

    fn int4(&self) -> Result<Layout, LoadError> {
        match self.int4_block_size {
            None | Some(64) => Ok(Layout::Int4),
            Some(found) => Err(LoadError::OutOfRange {
                what: "int4BlockSize".into(),
                found: found.to_string(),
                expected: "64".into(),
            }),
        }
    }
}

impl Config {
    /// Dimensions, with the format's defaults, after every feature that is not implemented has
    /// been refused.
    pub(super) fn resolve(&self) -> Result<GptConfig, LoadError> {
        let heads = dimension("heads", self.heads.unwrap_or(8))?;
        self.refuse_features()?;
        let width = dimension("dModel", self.d_model.unwrap_or(256))?;
        expect(width.is_multiple_of(heads), "dModel", width, || {
            format!("a multiple of heads, {heads}")
        })?;
        Ok(GptConfig {
            layers: dimension("layers", self.layers.unwrap_or(12))?,
            heads,
            kv_heads: self.kv_heads(heads)?,
            width,
            mlp: dimension("dMlp", self.d_mlp.unwrap_or(4 * width as u64))?,
            context: dimension("ctx", self.context())?,
            vocab: dimension("vocabSize", self.vocab_size.unwrap_or(256))?,
            eps: EPS,
            window: self.window()?,
            activation: Gelu::Erf,
            experts: self.experts()?,
        })
    }

    /// Learned positions.
    pub(super) fn context(&self) -> u64 {
        self.ctx.unwrap_or(256)
    }

    /// Our extension of the format: heads of keys and values that several heads of queries share.
    fn kv_heads(&self, heads: usize) -> Result<usize, LoadError> {
        let kv_heads = dimension("kvHeads", self.kv_heads.unwrap_or(heads as u64))?;
        expect(heads.is_multiple_of(kv_heads), "kvHeads", kv_heads, || {
            format!("a divisor of heads, {heads}")
        })?;
        Ok(kv_heads)
    }

    fn window(&self) -> Result<Window, LoadError> {
        match self.sliding_window.filter(|&tokens| tokens > 0) {
            None => Ok(Window::Full),
            Some(tokens) => Ok(Window::Sliding(dimension("slidingWindow", tokens)?)),
        }
    }

    fn experts(&self) -> Result<Option<ExpertsConfig>, LoadError> {
        let Some(count) = self.n_experts.filter(|&count| count > 1) else { return Ok(None) };
        let count = dimension("nExperts", count)?;
        let top = dimension("moeTopK", self.moe_top_k.unwrap_or(1))?;
        expect(top <= count, "moeTopK", top, || format!("at most nExperts, {count}"))?;
        Ok(Some(ExpertsConfig { count, top }))
    }

    fn refuse_features(&self) -> Result<(), LoadError> {
        let on = |flag: Option<bool>| flag.unwrap_or(false);
        let features = [
            ("useMoD", on(self.use_mod)),
            ("useDifferentialAttention", on(self.use_differential_attention)),
            ("useYOCO", on(self.use_yoco)),
            ("useDeepNorm", on(self.use_deep_norm)),
            ("useEmbeddingRMSNorm", on(self.use_embedding_rms_norm)),
        ];
        if let Some((name, _)) = features.iter().find(|(_, on)| *on) {
            return Err(unsupported(name, "true".into()));
        }
        self.refuse_tokenizer()
    }

    /// Without a tokenizer of its own a model is byte-level, and then it has 256 tokens.
    fn refuse_tokenizer(&self) -> Result<(), LoadError> {
        if let Some(source) = &self.tokenizer_source {
            return Err(unsupported("tokenizerSource", format!("\"{source}\"")));
        }
        match self.vocab_size {
            None | Some(256) => Ok(()),
            Some(found) => Err(LoadError::OutOfRange {
                what: "vocabSize".into(),
                found: found.to_string(),
                expected: "256, the size of a byte vocabulary".into(),
            }),
        }
    }
}

/// A dimension is at least one and small enough that products of two cannot overflow.
fn dimension(name: &str, value: u64) -> Result<usize, LoadError> {
    match u32::try_from(value) {
        Ok(value) if value > 0 => Ok(value as usize),
        _ => Err(LoadError::OutOfRange {
            what: name.into(),
            found: value.to_string(),
            expected: "between 1 and 2^32 - 1".into(),
        }),
    }
}

fn expect(
    holds: bool,
    what: &str,
    found: usize,
    expected: impl FnOnce() -> String,
) -> Result<(), LoadError> {
    if holds {
        return Ok(());
    }
    Err(LoadError::OutOfRange { what: what.into(), found: found.to_string(), expected: expected() })
}

fn unsupported(what: &str, detail: String) -> LoadError {
    LoadError::Unsupported { what: format!("config key \"{what}\""), detail }
}
