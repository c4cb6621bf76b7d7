//! LoRA adapters, read as untrusted input: for some layers of a model, two thin matrices whose
//! product is added to the layer's weights.
//!
//! Two formats give the same [`Adapter`]: directories as PEFT saves them, and TinyGPT's `.lora`
//! files. What is added is `scale * up (down x)`; the scale is multiplied into `up` here, so that
//! who computes knows of none, and an adapter's [digest](Adapter::digest) is over the numbers that
//! are computed with.
//!
//! Names are those of the checkpoints that adapters are trained on, also where the model that is
//! served comes from another format of the same weights: [`fit`] finds the layers, and turns what
//! that format turned.
//!
//! Not read: everything that is more than that sum (DoRA, biases, whole modules, embeddings, heads,
//! experts). It is refused by name.

mod files;
mod fit;
mod lora;
mod peft;
mod target;
#[cfg(test)]
mod tests;

pub use self::files::AdapterFiles;
use self::target::Target;
use super::LoadError;
use super::canon::Canon;
use super::input::Input;
use crate::kv::key::Digest;
use crate::model::Dimensions;
use crate::model::identity;

/// What an adapter file amounts to once read.
#[derive(Debug)]
pub struct Adapter {
    /// What the file says of the model that it was made for.
    base: Option<Base>,
    /// In the order of their places; at least one.
    changes: Vec<Change>,
}

/// The change of one layer, or of several whose outputs lie one after another.
#[derive(Debug)]
struct Change {
    /// The layer's name in the file.
    module: String,
    target: Target,
    /// r
    rank: usize,
    /// `[r, in]`
    down: Vec<f32>,
    /// `[out, r]`, multiplied with the scale.
    up: Vec<f32>,
}

/// Numbers of the model that an adapter was made for, by their names in the file.
#[derive(Debug)]
struct Base([(&'static str, Option<u64>); 4]);

impl Adapter {
    /// Reads a `.lora` file.
    ///
    /// # Errors
    /// Every way in which it is no adapter that can run: see [`LoadError`]; the same below.
    pub fn from_lora(bytes: &[u8]) -> Result<Self, LoadError> {
        lora::load(Input::Memory(bytes))
    }

    /// Reads the files of a PEFT adapter: `adapter_config.json`, `adapter_model.safetensors`.
    #[expect(clippy::missing_errors_doc, reason = "above")]
    pub fn from_peft(config: &[u8], weights: &[u8]) -> Result<Self, LoadError> {
        peft::load(config, Input::Memory(weights))
    }

    fn new(base: Option<Base>, mut changes: Vec<Change>) -> Result<Self, LoadError> {
        changes.sort_by_key(|change| change.target);
        if changes.is_empty() {
            return Err(LoadError::OutOfRange {
                what: "the number of layers that the adapter changes".into(),
                found: "0".into(),
                expected: "positive".into(),
            });
        }
        Ok(Self { base, changes })
    }

    /// Who it is: every number that is computed with, and where.
    pub fn digest(&self) -> Digest {
        let canon = |canon, change: &Change| change.canonical(canon);
        Digest::of("adapter", &self.changes.iter().fold(Canon::default(), canon).finish())
    }

    /// The largest rank of its changes.
    pub fn rank(&self) -> usize {
        self.changes.iter().map(|change| change.rank).max().unwrap_or(0)
    }

    /// Bytes that its matrices take.
    pub fn bytes(&self) -> usize {
        let numbers = |change: &Change| change.down.len() + change.up.len();
        self.changes.iter().map(numbers).sum::<usize>() * size_of::<f32>()
    }
}

impl Change {
    /// The change as it is computed with: one number that is none would make all of a row so.
    fn scaled(mut self, scale: f32) -> Result<Self, LoadError> {
        let finite = |what: &str, found: f32| match found.is_finite() {
            true => Ok(()),
            false => Err(LoadError::OutOfRange {
                what: format!("{what} of \"{}\"", self.module),
                found: found.to_string(),
                expected: "finite".into(),
            }),
        };
        finite("the scale", scale)?;
        self.up.iter_mut().for_each(|number| *number *= scale);
        let mut numbers = self.down.iter().chain(&self.up);
        numbers.try_for_each(|number| finite("a number", *number))?;
        Ok(self)
    }

    fn canonical(&self, canon: Canon) -> Canon {
        let numbers = |numbers: &[f32]| identity::of_bytes(bytemuck::cast_slice(numbers)).0;
        let Target { layer, parts } = self.target;
        let canon = canon.number("layer", layer).number("parts", parts.len());
        let canon = parts.iter().fold(canon, |canon, part| canon.text("", part.name()));
        canon
            .number("rank", self.rank)
            .bytes("down", &numbers(&self.down))
            .bytes("up", &numbers(&self.up))
    }

    /// `[out, in]` of the weights that it is added to.
    fn shape(&self) -> [usize; 2] {
        [self.up.len() / self.rank, self.down.len() / self.rank]
    }
}

impl Base {
    /// Whether it is a model of these dimensions.
    fn check(&self, model: &Dimensions) -> Result<(), LoadError> {
        let Dimensions { width, heads, context, ref layers, .. } = *model;
        let numbers = [layers.len(), width, heads, context];
        let mut stated = self.0.iter().zip(numbers);
        let differs = |((_, said), number): &(&(_, Option<u64>), usize)| {
            said.is_some_and(|said| said != *number as u64)
        };
        match stated.find(differs) {
            None => Ok(()),
            Some(((key, said), number)) => Err(LoadError::OutOfRange {
                what: format!("key \"{key}\""),
                found: said.unwrap_or_default().to_string(),
                expected: format!("{number}, as the model has it"),
            }),
        }
    }
}

/// The rows of `[rows, columns]` as columns.
fn transposed(numbers: &[f32], columns: usize) -> Vec<f32> {
    let column = |column| numbers[column..].iter().step_by(columns).copied();
    (0..columns).flat_map(column).collect()
}
