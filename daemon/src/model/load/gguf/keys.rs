//! The keys of one architecture, by their names without its own.
//!
//! A key that nobody asked for may change the arithmetic, so one that is left over is an error
//! unless its value says of a feature that it is not used.

use std::cell::RefCell;
use std::collections::BTreeSet;

use super::metadata::Metadata;
use super::value::Value;
use crate::model::load::LoadError;

/// Longest context that is believed.
const CONTEXT: usize = 1 << 20;

/// Most layers that are believed.
const LAYERS: usize = 1 << 12;

/// Keys that say nothing about the arithmetic.
const SILENT: [&str; 2] = ["vocab_size", "rope.scaling.finetuned"];

/// Metadata under the name of an architecture.
#[derive(Debug)]
pub(super) struct Keys<'a> {
    metadata: &'a Metadata<'a>,
    architecture: &'static str,
    asked: RefCell<BTreeSet<String>>,
}

impl<'a> Keys<'a> {
    pub(super) fn new(metadata: &'a Metadata<'a>, architecture: &'static str) -> Self {
        Self { metadata, architecture, asked: RefCell::default() }
    }

    /// The whole name of a key, which counts as asked for.
    pub(super) fn name(&self, part: &str) -> String {
        let name = format!("{}.{part}", self.architecture);
        self.asked.borrow_mut().insert(name.clone());
        name
    }

    pub(super) fn get(&self, part: &str) -> Option<Value<'a>> {
        self.metadata.get(&self.name(part))
    }

    /// A size that is at least 1.
    pub(super) fn size(&self, part: &str) -> Result<usize, LoadError> {
        let found = self.metadata.size(&self.name(part))?;
        self.expect(found > 0, part, found, || "positive".into()).map(|()| found)
    }

    pub(super) fn optional_size(&self, part: &str) -> Result<Option<usize>, LoadError> {
        self.get(part).map(|_| self.size(part)).transpose()
    }

    /// A size where 0 means that there is none.
    pub(super) fn size_or_zero(&self, part: &str) -> Result<Option<usize>, LoadError> {
        Ok(self.metadata.optional_size(&self.name(part))?.filter(|&size| size > 0))
    }

    pub(super) fn float(&self, part: &str) -> Result<f32, LoadError> {
        self.metadata.float(&self.name(part))
    }

    pub(super) fn optional_float(&self, part: &str) -> Result<Option<f32>, LoadError> {
        self.metadata.optional_float(&self.name(part))
    }

    /// A number above 0, if the file has one.
    pub(super) fn optional_positive(&self, part: &str) -> Result<Option<f32>, LoadError> {
        let found = self.optional_float(part)?;
        match found {
            Some(number) if number <= 0.0 => Err(LoadError::OutOfRange {
                what: self.name(part),
                found: number.to_string(),
                expected: "positive".into(),
            }),
            found => Ok(found),
        }
    }

    pub(super) fn optional_text(&self, part: &str) -> Result<Option<&'a str>, LoadError> {
        self.metadata.optional_text(&self.name(part))
    }

    pub(super) fn flags(&self, part: &str) -> Result<Vec<bool>, LoadError> {
        self.metadata.flags(&self.name(part))
    }

    pub(super) fn layers(&self) -> Result<usize, LoadError> {
        self.at_most(LAYERS, "block_count")
    }

    pub(super) fn context(&self) -> Result<usize, LoadError> {
        self.at_most(CONTEXT, "context_length")
    }

    fn at_most(&self, limit: usize, part: &str) -> Result<usize, LoadError> {
        let found = self.size(part)?;
        self.expect(found <= limit, part, found, || format!("at most {limit}"))?;
        Ok(found)
    }

    /// Checks the number of tokens, which files may say twice.
    pub(super) fn check_vocab(&self, vocab: usize) -> Result<(), LoadError> {
        let stated = self.optional_size("vocab_size")?.unwrap_or(vocab);
        self.expect(stated == vocab, "vocab_size", stated, || {
            format!("the {vocab} tokens of the vocabulary")
        })
    }

    /// Heads, and KV heads that divide them.
    pub(super) fn heads(&self) -> Result<(usize, usize), LoadError> {
        const KV: &str = "attention.head_count_kv";
        let heads = self.size("attention.head_count")?;
        let kv_heads = self.optional_size(KV)?.unwrap_or(heads);
        self.expect(heads.is_multiple_of(kv_heads), KV, kv_heads, || {
            format!("a divisor of the {heads} heads")
        })?;
        Ok((heads, kv_heads))
    }

    /// An error with the key and its value unless the condition holds.
    pub(super) fn expect(
        &self,
        holds: bool,
        part: &str,
        found: usize,
        expected: impl FnOnce() -> String,
    ) -> Result<(), LoadError> {
        if holds {
            return Ok(());
        }
        let (what, found) = (self.name(part), found.to_string());
        Err(LoadError::OutOfRange { what, found, expected: expected() })
    }

    pub(super) fn unsupported(&self, part: &str, detail: String) -> LoadError {
        LoadError::Unsupported { what: format!("metadata key \"{}\"", self.name(part)), detail }
    }

    /// Fails if a key of the architecture was not asked for and is not neutral.
    pub(super) fn finish(self) -> Result<(), LoadError> {
        let asked = self.asked.borrow().clone();
        for key in self.metadata.keys().filter(|key| !asked.contains(*key)) {
            let part = key.strip_prefix(self.architecture).and_then(|rest| rest.strip_prefix('.'));
            match (part, self.metadata.get(key)) {
                (Some(part), Some(value)) if !SILENT.contains(&part) && !neutral(part, value) => {
                    return Err(self.unsupported(part, value.describe()));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Values that say of a feature that it is not used.
fn neutral(part: &str, value: Value<'_>) -> bool {
    match part {
        "expert_count"
        | "expert_used_count"
        | "attention.sliding_window"
        | "nextn_predict_layers" => matches!(value, Value::Unsigned(0) | Value::Signed(0)),
        "attention.causal" => value == Value::Bool(true),
        "attention.max_alibi_bias" | "attention.clamp_kqv" => value == Value::Float(0.0),
        // Checkpoints in the original layout and in the permuted one are stored alike.
        "tensor_data_layout" => value == Value::String(b"Meta AI original pth"),
        _ => false,
    }
}
