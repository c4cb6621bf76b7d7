//! Directories as PEFT saves them: `adapter_config.json` and `adapter_model.safetensors`.
//!
//! Every key of the configuration is implemented, without influence on the arithmetic, or refused
//! by name; every tensor is used or refused.

use std::collections::BTreeMap;

use regex::Regex;
use serde_json::Value;

use super::{Adapter, Change, Target};
use crate::model::load::hf::Config;
use crate::model::load::input::Input;
use crate::model::load::safetensors::{self, Tensor};
use crate::model::load::{LoadError, ggml};

/// Keys that say nothing about what a forward pass adds: where the adapter comes from, how it was
/// trained, and which layers it has, which the tensors say. A weight that is stored `[in, out]`
/// (`fan_in_fan_out`) is one to merge with; the adapter's own matrices are not stored so.
const SILENT: [&str; 19] = [
    "auto_mapping",
    "base_model_name_or_path",
    "corda_config",
    "ensure_weight_tying",
    "eva_config",
    "exclude_modules",
    "fan_in_fan_out",
    "inference_mode",
    "layers_pattern",
    "layers_to_transform",
    "loftq_config",
    "lora_dropout",
    "megatron_config",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "task_type",
];

/// First weights that leave those of the model as they are; others are told from the rest of the
/// model's weights.
const NEUTRAL: [&str; 3] = ["gaussian", "orthogonal", "eva"];

/// What all names of tensors begin with.
const PREFIX: &str = "base_model.model.";

const DOWN: &str = ".lora_A.weight";
const UP: &str = ".lora_B.weight";

/// What a configuration says about the arithmetic.
#[derive(Debug)]
struct Settings {
    rank: usize,
    ranks: Vec<(Regex, usize)>,
    alpha: f64,
    alphas: Vec<(Regex, f64)>,
    /// The scale is divided by the root of the rank.
    is_stable: bool,
    /// Ends of the names of layers, where the file lists them.
    targets: Option<Vec<String>>,
}

/// Reads a whole adapter.
pub(super) fn load(config: &[u8], weights: Input<'_>) -> Result<Adapter, LoadError> {
    let settings = Settings::read(config).map_err(|error| error.within("adapter_config.json"))?;
    let changes = changes(&settings, weights);
    let changes = changes.map_err(|error| error.within("adapter_model.safetensors"))?;
    Adapter::new(None, changes)
}

fn changes(settings: &Settings, input: Input<'_>) -> Result<Vec<Change>, LoadError> {
    let mut tensors = input.with_head(|head| safetensors::parse(head, input.len()))?;
    let names: Vec<String> = tensors.keys().filter(|name| name.ends_with(DOWN)).cloned().collect();
    let change = |name: String| {
        let module = name.strip_suffix(DOWN).unwrap_or(&name);
        settings.change(module, &mut tensors, input)
    };
    let changes = names.into_iter().map(change).collect::<Result<Vec<_>, _>>()?;
    match tensors.pop_first() {
        None => Ok(changes),
        Some((name, _)) => Err(unused(name)),
    }
}

/// Why a tensor has found no use.
fn unused(tensor: String) -> LoadError {
    if let Some(module) = tensor.strip_suffix(UP) {
        return LoadError::MissingTensor { tensor: format!("{module}{DOWN}") };
    }
    LoadError::UnexpectedTensor { tensor, architecture: "lora" }
}

impl Settings {
    fn read(bytes: &[u8]) -> Result<Self, LoadError> {
        let value: Value = serde_json::from_slice(bytes)
            .map_err(|error| LoadError::Json { reason: error.to_string() })?;
        let config = Config::new(value)?;
        config.have_read(&SILENT);
        match config.text("peft_type")?.ok_or_else(|| config.missing("peft_type"))? {
            "LORA" => {}
            other => return Err(config.unsupported("peft_type", format!("\"{other}\""))),
        }
        config.one_of("bias", "none", &[("none", ())])?;
        check_first_weights(&config)?;
        let settings = Self {
            rank: config.needed_size("r")?,
            ranks: patterns(&config, "rank_pattern", Config::needed_size)?,
            alpha: config.needed_positive("lora_alpha")?,
            alphas: patterns(&config, "alpha_pattern", Config::needed_positive)?,
            is_stable: config.flag("use_rslora", false)?,
            targets: targets(&config)?,
        };
        config.finish()?;
        Ok(settings)
    }

    /// Takes what changes one layer.
    fn change(
        &self,
        path: &str,
        tensors: &mut BTreeMap<String, Tensor>,
        input: Input<'_>,
    ) -> Result<Change, LoadError> {
        let module = path.strip_prefix(PREFIX).unwrap_or(path);
        let target = Target::named(module).filter(|_| self.targets(module));
        let target = target.ok_or_else(|| unused(format!("{path}{DOWN}")))?;
        let rank = pattern(&self.ranks, module).unwrap_or(self.rank);
        let mut take = |end: &str, rank_at: usize| {
            let name = format!("{path}{end}");
            let tensor = tensors.remove(&name);
            let tensor = tensor.ok_or_else(|| LoadError::MissingTensor { tensor: name.clone() })?;
            numbers(name, &tensor, rank_at, rank, input)
        };
        let (down, up) = (take(DOWN, 0)?, take(UP, 1)?);
        let scale = self.scale(module, rank);
        Change { module: module.to_owned(), target, rank, down, up }.scaled(scale)
    }

    fn scale(&self, module: &str, rank: usize) -> f32 {
        let alpha = pattern(&self.alphas, module).unwrap_or(self.alpha);
        let rank = rank as f64;
        (alpha / if self.is_stable { rank.sqrt() } else { rank }) as f32
    }

    /// Whether the configuration has a layer adapted.
    fn targets(&self, module: &str) -> bool {
        let ends = |target: &String| {
            let before = module.strip_suffix(&**target);
            before.is_some_and(|before| before.is_empty() || before.ends_with('.'))
        };
        self.targets.as_ref().is_none_or(|targets| targets.iter().any(ends))
    }
}

/// The numbers of a matrix that has the rank at `rank_at` of its shape.
fn numbers(
    tensor: String,
    stored: &Tensor,
    rank_at: usize,
    rank: usize,
    input: Input<'_>,
) -> Result<Vec<f32>, LoadError> {
    let found = stored.shape.clone();
    if found.len() != 2 || found[rank_at] != rank as u64 || found[1 - rank_at] == 0 {
        let other = found.get(1 - rank_at).copied().unwrap_or(1).max(1);
        let mut expected = vec![other; 2];
        expected[rank_at] = rank as u64;
        return Err(LoadError::Shape { tensor, expected, found });
    }
    let Some(dtype) = stored.dtype.plain() else {
        let what = format!("the element type of tensor \"{tensor}\"");
        return Err(LoadError::Unsupported { what, detail: stored.dtype.name().into() });
    };
    let bytes = input.read(stored.range.clone())?;
    Ok(ggml::plain(dtype, &bytes).unwrap_or_default())
}

/// Some ways to find first weights take something away from the model's own.
fn check_first_weights(config: &Config) -> Result<(), LoadError> {
    const KEY: &str = "init_lora_weights";
    match config.get(KEY) {
        None | Some(Value::Bool(_)) => Ok(()),
        Some(Value::String(name)) if NEUTRAL.contains(&&**name) => Ok(()),
        Some(other) => Err(config.unsupported(KEY, other.to_string())),
    }
}

/// The ends of names, if it is a list; an expression says less than the tensors do.
fn targets(config: &Config) -> Result<Option<Vec<String>>, LoadError> {
    const KEY: &str = "target_modules";
    if config.get(KEY).is_some_and(Value::is_string) {
        return Ok(None);
    }
    config.list(KEY, "a list of names", |name| name.as_str().map(ToOwned::to_owned))
}

/// What an object says about layers, by expressions for the ends of their names.
fn patterns<T>(
    config: &Config,
    key: &str,
    read: impl Fn(&Config, &str) -> Result<T, LoadError>,
) -> Result<Vec<(Regex, T)>, LoadError> {
    let Some(object) = config.object(key)? else { return Ok(Vec::new()) };
    let entry = |(name, _): (&String, &Value)| {
        let expression = Regex::new(&format!(r"^(?:.*\.)?(?:{name})$"));
        let expression = expression.map_err(|error| config.unsupported(key, error.to_string()))?;
        Ok((expression, read(&object, name)?))
    };
    object.entries().map(entry).collect()
}

/// What the first expression that a layer's name fits says.
fn pattern<T: Copy>(patterns: &[(Regex, T)], module: &str) -> Option<T> {
    patterns.iter().find(|(expression, _)| expression.is_match(module)).map(|(_, said)| *said)
}
