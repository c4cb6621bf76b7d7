//! How the heads of a file's layers turn: base, width, and what divides the frequencies.

use tinygpt_kernels::Convention;

use super::keys::Keys;
use super::tensors::Tensors;
use crate::model::load::{LoadError, RopeConfig, Shorter};

/// Base of the rotary frequencies in files that do not say.
pub(super) const BASE: f32 = 10_000.0;

/// What the file says of its turns, for heads of this size and a context of this length.
pub(super) fn read(
    keys: &Keys<'_>,
    tensors: &mut Tensors<'_>,
    convention: Convention,
    dims: usize,
    context: usize,
) -> Result<RopeConfig, LoadError> {
    let base = keys.optional_positive("rope.freq_base")?.unwrap_or(BASE);
    let scaling = scaling(keys)?;
    let (factors, attention_factor, shorter) = match long(keys, tensors, dims, context)? {
        Some(Long { factors, attention, shorter }) => (Some(factors), attention, shorter),
        None => (tensor(tensors, "rope_freqs.weight", dims)?, 1.0, None),
    };
    let scaled = |factors: Vec<f32>| match scaling {
        None => factors,
        Some(factor) => factors.into_iter().map(|each| each * factor).collect(),
    };
    let plain = || scaling.map(|_| vec![1.0; dims / 2]);
    let shorter =
        shorter.map(|Shorter { context, factors }| Shorter { context, factors: scaled(factors) });
    let factors = factors.or_else(plain).map(scaled);
    Ok(RopeConfig { base: base.into(), convention, dims, factors, attention_factor, shorter })
}

/// What divides all frequencies alike. A factor without a type means linear scaling.
fn scaling(keys: &Keys<'_>) -> Result<Option<f32>, LoadError> {
    const TYPE: &str = "rope.scaling.type";
    let factor = keys.optional_float("rope.scaling.factor")?.unwrap_or(1.0);
    if !(factor == 0.0 || (1e-6..=1e6).contains(&factor)) {
        return Err(keys.unsupported("rope.scaling.factor", factor.to_string()));
    }
    match keys.optional_text(TYPE)? {
        Some("none" | "longrope") => Ok(None),
        None | Some("linear") => Ok(Some(factor).filter(|&factor| factor != 0.0 && factor != 1.0)),
        Some(found) => Err(keys.unsupported(TYPE, format!("\"{found}\" with factor {factor}"))),
    }
}

/// What longrope does to the frequencies.
struct Long {
    factors: Vec<f32>,
    /// Of cosines and sines.
    attention: f32,
    shorter: Option<Shorter>,
}

/// Longrope: one set of factors for contexts as long as the model was first trained with, another
/// for longer ones. The set goes by the context of the model, or a limit on it, so that a prompt's
/// length does not change what is cached of it.
fn long(
    keys: &Keys<'_>,
    tensors: &mut Tensors<'_>,
    dims: usize,
    context: usize,
) -> Result<Option<Long>, LoadError> {
    let original = keys.optional_size("rope.scaling.original_context_length")?;
    let attention = keys.optional_positive("rope.scaling.attn_factor")?;
    let short = tensor(tensors, "rope_factors_short.weight", dims)?;
    let long = tensor(tensors, "rope_factors_long.weight", dims)?;
    let original = original.unwrap_or(context);
    let (factors, shorter) = match (short, long) {
        (Some(short), Some(long)) if context > original => {
            (long, Some(Shorter { context: original, factors: short }))
        }
        (Some(short), Some(_)) => (short, None),
        (None, None) if attention.is_none_or(|factor| factor == 1.0) => return Ok(None),
        (None, None) => {
            let detail = "there are no rope_factors_long and rope_factors_short".into();
            return Err(keys.unsupported("rope.scaling.attn_factor", detail));
        }
        (short, _) => {
            let missing = if short.is_none() { "short" } else { "long" };
            let tensor = format!("rope_factors_{missing}.weight");
            return Err(LoadError::MissingTensor { tensor });
        }
    };
    let key = "rope.scaling.attn_factor";
    let attention = attention.ok_or_else(|| LoadError::MissingKey { key: keys.name(key) })?;
    Ok(Some(Long { factors, attention, shorter }))
}

/// One factor for each pair, if the file has them.
fn tensor(
    tensors: &mut Tensors<'_>,
    name: &str,
    dims: usize,
) -> Result<Option<Vec<f32>>, LoadError> {
    if !tensors.contains(name) {
        return Ok(None);
    }
    let factors = tensors.vector(name, dims / 2)?;
    match factors.iter().find(|factor| !(factor.is_finite() && **factor > 0.0)) {
        None => Ok(Some(factors)),
        Some(factor) => Err(LoadError::OutOfRange {
            what: format!("a factor in tensor \"{name}\""),
            found: factor.to_string(),
            expected: "positive and finite".into(),
        }),
    }
}
