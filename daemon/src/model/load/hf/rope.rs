//! Rotary positions as `config.json` has them: the base beside a `rope_scaling`, or both in
//! `rope_parameters`, as newer files have it.

use tinygpt_kernels::Convention;
use tinygpt_kernels::elementary::{exp_f64, ln_f64};

use super::config::Config;
use crate::model::load::{LoadError, RopeConfig, Shorter};

/// Of files that do not say.
const BASE: f64 = 10_000.0;
const GLOBAL_BASE: f64 = 1_000_000.0;

const PARAMETERS: &str = "rope_parameters";
const ORIGINAL: &str = "original_max_position_embeddings";
const SCALING: &str = "rope_scaling";

/// Known ways of scaling.
#[derive(Clone, Copy)]
enum Scaling {
    None,
    Linear,
    Llama3,
    Long,
}

const KNOWN: [(&str, Scaling); 5] = [
    ("default", Scaling::None),
    ("linear", Scaling::Linear),
    ("llama3", Scaling::Llama3),
    ("longrope", Scaling::Long),
    ("su", Scaling::Long),
];

/// The one rope of a model whose heads turn as a whole.
pub(super) fn read(
    config: &Config,
    head_dim: usize,
    context: usize,
) -> Result<RopeConfig, LoadError> {
    Model { config, dims: head_dim, context }.only_rope(&[])
}

/// The one rope of a model whose heads may turn in part.
pub(super) fn read_partial(
    config: &Config,
    head_dim: usize,
    context: usize,
) -> Result<RopeConfig, LoadError> {
    const KEY: &str = "partial_rotary_factor";
    // It says nothing where nothing is scaled.
    config.size(ORIGINAL)?;
    let inside = config.object(PARAMETERS)?.map(|parameters| parameters.positive(KEY));
    let part = config.positive(KEY)?.or(inside.transpose()?.flatten()).unwrap_or(1.0);
    let dims = (head_dim as f64 * part) as usize;
    if dims < 2 || dims > head_dim || !dims.is_multiple_of(2) {
        let expected = format!("an even part of heads of {head_dim}");
        return Err(config.out_of_range(KEY, &part.to_string(), &expected));
    }
    Model { config, dims, context }.only_rope(&[KEY])
}

/// The ropes of layers that see everything, and of those that see a window.
pub(super) fn global_and_local(
    config: &Config,
    dims: usize,
    context: usize,
) -> Result<Vec<RopeConfig>, LoadError> {
    let model = Model { config, dims, context };
    let global = config.positive("rope_theta")?;
    let local = config.positive("rope_local_base_freq")?;
    let Some(parameters) = config.object(PARAMETERS)? else {
        let global = model.rope(config.object(SCALING)?, &[], global.unwrap_or(GLOBAL_BASE))?;
        return Ok(vec![global, model.rope(None, &[], local.unwrap_or(BASE))?]);
    };
    let bases = [global.unwrap_or(GLOBAL_BASE), local.unwrap_or(BASE)];
    let kinds = ["full_attention", "sliding_attention"].into_iter().zip(bases);
    let ropes = kinds.map(|(kind, base)| {
        let of_kind = parameters.object(kind)?.ok_or_else(|| parameters.missing(kind))?;
        model.rope(Some(of_kind), &[], base)
    });
    let ropes = ropes.collect();
    parameters.finish()?;
    ropes
}

/// What a rope depends on beside its own object.
struct Model<'a> {
    config: &'a Config,
    dims: usize,
    context: usize,
}

impl Model<'_> {
    /// The rope beside which, or in which, keys called `read` were read before.
    fn only_rope(&self, read: &[&str]) -> Result<RopeConfig, LoadError> {
        let base = self.config.positive("rope_theta")?.unwrap_or(BASE);
        match (self.config.object(SCALING)?, self.config.object(PARAMETERS)?) {
            (Some(_), Some(_)) => {
                Err(self.config.unsupported(SCALING, format!("beside {PARAMETERS}")))
            }
            (scaling, parameters) => self.rope(scaling.or(parameters), read, base),
        }
    }

    fn rope(
        &self,
        section: Option<Config>,
        read: &[&str],
        base: f64,
    ) -> Result<RopeConfig, LoadError> {
        let plain = |base| RopeConfig {
            base,
            convention: Convention::HalfSplit,
            dims: self.dims,
            factors: None,
            attention_factor: 1.0,
            shorter: None,
        };
        let Some(section) = section else { return Ok(plain(base)) };
        section.have_read(read);
        let rope = plain(section.positive("rope_theta")?.unwrap_or(base));
        let rope = match kind(&section)? {
            Scaling::None => rope,
            Scaling::Linear => {
                let factor = section.needed_positive("factor")? as f32;
                RopeConfig { factors: Some(vec![factor; self.dims / 2]), ..rope }
            }
            Scaling::Llama3 => RopeConfig { factors: Some(llama3(&section, &rope)?), ..rope },
            Scaling::Long => self.long(&section, rope)?,
        };
        section.finish()?;
        Ok(rope)
    }

    /// Phi's: one of two lists of factors for all positions, by whether the context is longer than
    /// the one that the model was first trained with. What grows with the context of the model does
    /// not shrink with a limit on it.
    fn long(&self, section: &Config, rope: RopeConfig) -> Result<RopeConfig, LoadError> {
        let (inside, outside) = (section.size(ORIGINAL)?, self.config.size(ORIGINAL)?);
        let original = outside.or(inside);
        let stretch = match original {
            Some(original) => self.context as f64 / original as f64,
            None => section.needed_positive("factor")?,
        };
        section.get("factor");
        let original = original.unwrap_or(self.context);
        let [short, long] = ["short_factor", "long_factor"].map(|key| factors(section, key, &rope));
        let attention = match section.positive("attention_factor")? {
            Some(factor) => factor,
            None if stretch <= 1.0 => 1.0,
            None => (1.0 + ln_f64(stretch) / ln_f64(original as f64)).sqrt(),
        };
        if !attention.is_finite() {
            return Err(section.out_of_range(ORIGINAL, &original.to_string(), "at least 2"));
        }
        let (short, long) = (short?, long?);
        let (factors, shorter) = match self.context > original {
            true => (long, Some(Shorter { context: original, factors: short })),
            false => (short, None),
        };
        let (factors, attention_factor) = (Some(factors), attention as f32);
        Ok(RopeConfig { factors, attention_factor, shorter, ..rope })
    }
}

fn kind(section: &Config) -> Result<Scaling, LoadError> {
    // Old files call it so.
    let old = section.one_of("type", "default", &KNOWN)?;
    match (section.text("rope_type")?, section.text("type")?) {
        (Some(new), Some(old)) if new != old && !(new == "longrope" && old == "su") => {
            Err(section.unsupported("rope_type", format!("\"{new}\" beside the type \"{old}\"")))
        }
        (Some(_), _) => section.one_of("rope_type", "default", &KNOWN),
        (None, _) => Ok(old),
    }
}

/// Frequencies that turn slowly are divided by a factor, fast ones are not, and those between them
/// are in part.
fn llama3(section: &Config, rope: &RopeConfig) -> Result<Vec<f32>, LoadError> {
    let factor = section.needed_positive("factor")?;
    let [low, high] = ["low_freq_factor", "high_freq_factor"];
    let (low, high) = (section.needed_positive(low)?, section.needed_positive(high)?);
    let original = section.needed_positive(ORIGINAL)?;
    if low >= high {
        let expected = format!("below high_freq_factor, {high}");
        return Err(section.out_of_range("low_freq_factor", &low.to_string(), &expected));
    }
    let of_pair = |pair: usize| {
        let exponent = (2 * pair) as f64 / rope.dims as f64;
        let wavelength = std::f64::consts::TAU * exp_f64(ln_f64(rope.base) * exponent);
        let turns = original / wavelength;
        let unscaled = ((turns - low) / (high - low)).clamp(0.0, 1.0);
        (1.0 / ((1.0 - unscaled) / factor + unscaled)) as f32
    };
    Ok((0..rope.dims / 2).map(of_pair).collect())
}

fn factors(section: &Config, key: &str, rope: &RopeConfig) -> Result<Vec<f32>, LoadError> {
    let number = |value: &serde_json::Value| value.as_f64().filter(|&factor| factor > 0.0);
    let found = section.list(key, "a list of positive numbers", number)?;
    let found = found.ok_or_else(|| section.missing(key))?;
    if found.len() == rope.dims / 2 {
        return Ok(found.into_iter().map(|factor| factor as f32).collect());
    }
    let expected = format!("one for each of {} pairs", rope.dims / 2);
    Err(section.out_of_range(key, &format!("{} long", found.len()), &expected))
}
