//! `config.json`, of which every key is asked for, known to say nothing, or refused.

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::model::load::LoadError;

/// Keys that say nothing about the arithmetic of one forward pass: where the model comes from, how
/// it was trained, how to sample from it, how to store it.
const SILENT: [&str; 71] = [
    "architectures",
    "attention_dropout",
    "attn_implementation",
    "attn_pdrop",
    "auto_map",
    "bad_words_ids",
    "begin_suppress_tokens",
    "bos_token_id",
    "cache_implementation",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "embd_pdrop",
    "encoder_no_repeat_ngram_size",
    "eos_token_id",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "gradient_checkpointing",
    "hidden_dropout",
    "id2label",
    "initializer_factor",
    "initializer_range",
    "is_decoder",
    "is_llama_config",
    "label2id",
    "length_penalty",
    "license",
    "max_length",
    "max_new_tokens",
    "min_length",
    "model_type",
    "n_ctx",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_labels",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "output_scores",
    "pad_token_id",
    "prefix",
    "pretraining_tp",
    "problem_type",
    "remove_invalid_values",
    "reorder_and_upcast_attn",
    "repetition_penalty",
    "resid_pdrop",
    "return_dict",
    "return_dict_in_generate",
    "sep_token_id",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers.js_config",
    "transformers_version",
    "typical_p",
    "unk_token_id",
    "use_bfloat16",
    "use_cache",
];

/// Beginnings of such keys.
const SILENT_BEGINNINGS: [&str; 3] = ["_", "summary_", "unsloth_"];

/// Keys of features that a value of one leaves out.
const FACTORS: [&str; 4] =
    ["full_attn_mod", "interpolate_factor", "partial_rotary_factor", "rope_ratio"];

/// An object of `config.json`.
#[derive(Debug)]
pub(in crate::model::load) struct Config {
    /// What its keys' names begin with: nothing, or the name of the object and a dot.
    prefix: String,
    values: Map<String, Value>,
    asked: RefCell<BTreeSet<String>>,
}

impl Config {
    pub(in crate::model::load) fn new(value: Value) -> Result<Self, LoadError> {
        Self::named(String::new(), value)
    }

    fn named(prefix: String, value: Value) -> Result<Self, LoadError> {
        match value {
            Value::Object(values) => Ok(Self { prefix, values, asked: RefCell::default() }),
            other => Err(wrong_kind(prefix.trim_end_matches('.'), "an object", &other)),
        }
    }

    /// The value of a key, which counts as implemented from now on; `None` for `null`, too.
    pub(in crate::model::load) fn get(&self, key: &str) -> Option<&Value> {
        self.asked.borrow_mut().insert(key.to_owned());
        self.values.get(key).filter(|value| !value.is_null())
    }

    /// An object inside, with keys of its own.
    pub(in crate::model::load) fn object(&self, key: &str) -> Result<Option<Self>, LoadError> {
        let name = format!("{}{key}.", self.prefix);
        self.get(key).map(|value| Self::named(name, value.clone())).transpose()
    }

    /// Counts keys as implemented that were read elsewhere.
    pub(in crate::model::load) fn have_read(&self, keys: &[&str]) {
        self.asked.borrow_mut().extend(keys.iter().map(|key| (*key).to_owned()));
    }

    /// All keys and values, which count as implemented from now on.
    pub(in crate::model::load) fn entries(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.asked.borrow_mut().extend(self.values.keys().cloned());
        self.values.iter()
    }

    pub(in crate::model::load) fn text(&self, key: &str) -> Result<Option<&str>, LoadError> {
        self.typed(key, "a text", Value::as_str)
    }

    pub(in crate::model::load) fn flag(
        &self,
        key: &str,
        otherwise: bool,
    ) -> Result<bool, LoadError> {
        Ok(self.typed(key, "true or false", Value::as_bool)?.unwrap_or(otherwise))
    }

    /// A number of something, or none of it: at most 2^32 - 1, so that a product of two cannot
    /// overflow.
    pub(super) fn count(&self, key: &str) -> Result<Option<usize>, LoadError> {
        let count = |value: &Value| Some(u32::try_from(value.as_u64()?).ok()? as usize);
        self.typed(key, "a whole number from 0 to 2^32 - 1", count)
    }

    /// A positive number of something.
    pub(super) fn size(&self, key: &str) -> Result<Option<usize>, LoadError> {
        match self.count(key)? {
            Some(0) => Err(self.out_of_range(key, "0", "positive")),
            size => Ok(size),
        }
    }

    /// The same of a key that must be there.
    pub(in crate::model::load) fn needed_size(&self, key: &str) -> Result<usize, LoadError> {
        self.size(key)?.ok_or_else(|| self.missing(key))
    }

    /// A finite number.
    pub(super) fn number(&self, key: &str) -> Result<Option<f64>, LoadError> {
        self.typed(key, "a number", Value::as_f64)
    }

    /// A number above zero.
    pub(super) fn positive(&self, key: &str) -> Result<Option<f64>, LoadError> {
        match self.number(key)? {
            Some(number) if number <= 0.0 => {
                Err(self.out_of_range(key, &number.to_string(), "positive"))
            }
            number => Ok(number),
        }
    }

    pub(in crate::model::load) fn needed_positive(&self, key: &str) -> Result<f64, LoadError> {
        self.positive(key)?.ok_or_else(|| self.missing(key))
    }

    /// A list, of which `item` takes every item.
    pub(in crate::model::load) fn list<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        item: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<Vec<T>>, LoadError> {
        self.typed(key, expected, |value| value.as_array()?.iter().map(&item).collect())
    }

    /// The text of a key, which is one of those that are implemented.
    pub(in crate::model::load) fn one_of<T: Copy>(
        &self,
        key: &str,
        otherwise: &str,
        known: &[(&str, T)],
    ) -> Result<T, LoadError> {
        let found = self.text(key)?.unwrap_or(otherwise);
        let known_one = known.iter().find(|(name, _)| *name == found);
        known_one.map(|(_, value)| *value).ok_or_else(|| {
            let names: Vec<_> = known.iter().map(|(name, _)| format!("\"{name}\"")).collect();
            self.unsupported(key, format!("\"{found}\"; known are {}", names.join(", ")))
        })
    }

    /// Refuses a key that nobody has asked for, unless it says nothing or that a feature is not
    /// used.
    pub(in crate::model::load) fn finish(&self) -> Result<(), LoadError> {
        let asked = self.asked.borrow();
        let strange = |(key, value): &(&String, &Value)| {
            !asked.contains(*key) && !is_silent(key) && !is_off(key, value)
        };
        match self.values.iter().find(strange) {
            None => Ok(()),
            Some((key, value)) => Err(self.unsupported(key, value.to_string())),
        }
    }

    pub(in crate::model::load) fn unsupported(&self, key: &str, detail: String) -> LoadError {
        LoadError::Unsupported { what: format!("key \"{}{key}\"", self.prefix), detail }
    }

    pub(in crate::model::load) fn missing(&self, key: &str) -> LoadError {
        LoadError::MissingKey { key: format!("{}{key}", self.prefix) }
    }

    pub(super) fn out_of_range(&self, key: &str, found: &str, expected: &str) -> LoadError {
        LoadError::OutOfRange {
            what: format!("key \"{}{key}\"", self.prefix),
            found: found.into(),
            expected: expected.into(),
        }
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, LoadError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let wrong = || wrong_kind(&format!("{}{key}", self.prefix), expected, value);
        read(value).map(Some).ok_or_else(wrong)
    }
}

fn wrong_kind(key: &str, expected: &'static str, found: &Value) -> LoadError {
    LoadError::WrongKind { key: key.into(), expected, found: found.to_string() }
}

fn is_silent(key: &str) -> bool {
    SILENT.contains(&key) || SILENT_BEGINNINGS.iter().any(|begin| key.starts_with(begin))
}

/// Whether a value says of a feature that it is not used.
fn is_off(key: &str, value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Number(number) if FACTORS.contains(&key) => number.as_f64() == Some(1.0),
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(items) => items.is_empty(),
        Value::Bool(true) => false,
    }
}
