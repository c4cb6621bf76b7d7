//! Which files of a directory are the model.
//!
//! Weights are in `model.safetensors`, or in the files that `model.safetensors.index.json` names,
//! or in every `.safetensors` file there is. Other files are known by their names; only
//! `config.json` and `tokenizer.json` must be there, or what older libraries
//! write instead of the latter.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use super::super::files::{ModelFile, OpenError};
use crate::model::identity::{Stamp, Stamps};
use crate::model::load::LoadError;
use crate::model::load::input::Input;

pub(super) const CONFIG: &str = "config.json";
pub(super) const GENERATION: &str = "generation_config.json";
pub(super) const TOKENIZER: &str = "tokenizer.json";
pub(super) const MODEL: &str = "tokenizer.model";
pub(super) const VOCAB: &str = "vocab.json";
pub(super) const MERGES: &str = "merges.txt";
pub(super) const ADDED: &str = "added_tokens.json";
pub(super) const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
pub(super) const TEMPLATE: &str = "chat_template.jinja";
pub(super) const TEMPLATE_JSON: &str = "chat_template.json";
const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Most bytes of a file that is read whole; a vocabulary of 250,000 tokens is a quarter of that.
const MOST: u64 = 128 << 20;

/// Files that say something about the model if they are there.
const KNOWN: [&str; 11] = [
    CONFIG,
    GENERATION,
    TOKENIZER,
    MODEL,
    VOCAB,
    MERGES,
    ADDED,
    TOKENIZER_CONFIG,
    TEMPLATE,
    TEMPLATE_JSON,
    INDEX,
];

/// A directory whose files are open.
#[derive(Debug)]
pub(in crate::model::load) struct Directory {
    path: PathBuf,
    texts: BTreeMap<&'static str, ModelFile>,
    weights: Vec<ModelFile>,
    /// Which of the files with weights should have a tensor, where an index says so.
    pub(super) index: Option<BTreeMap<String, String>>,
}

/// The part of an index that counts.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Directory {
    pub(in crate::model::load) fn open(path: &Path) -> Result<Self, OpenError> {
        let there = |name: &&str| path.join(name).exists();
        let open = |name: &'static str| Ok((name, ModelFile::open(&path.join(name))?));
        let texts = KNOWN.into_iter().filter(there).map(open).collect::<Result<_, OpenError>>()?;
        let mut directory = Self { path: path.to_owned(), texts, weights: Vec::new(), index: None };
        let has = |name: &str| directory.texts.contains_key(name);
        let tokenizer = has(TOKENIZER) || has(MODEL) || has(VOCAB) && has(MERGES);
        for (name, there) in [(CONFIG, has(CONFIG)), (TOKENIZER, tokenizer)] {
            there.then_some(()).ok_or_else(|| LoadError::Absent { file: name.into() })?;
        }
        let names = directory.names_of_weights()?;
        let open = |name: String| match path.join(&name) {
            path if path.exists() => ModelFile::open(&path),
            _ => Err(LoadError::Absent { file: name }.into()),
        };
        directory.weights = names.into_iter().map(open).collect::<Result<_, _>>()?;
        Ok(directory)
    }

    fn names_of_weights(&mut self) -> Result<BTreeSet<String>, OpenError> {
        if self.path.join(WEIGHTS).exists() {
            return Ok([WEIGHTS.to_owned()].into());
        }
        if let Some(Index { weight_map }) = self.parse(INDEX)? {
            let names: BTreeSet<String> = weight_map.values().cloned().collect();
            let is_there = |name: &&String| !name.contains('/') && is_weights(Path::new(name));
            if let Some(name) = names.iter().find(|name| !is_there(name)) {
                return Err(LoadError::Elsewhere { name: name.clone() }.within(INDEX).into());
            }
            self.index = Some(weight_map);
            return Ok(names);
        }
        let found = files(&self.path)?.into_iter().filter(|path| is_weights(path));
        let names = found.filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()));
        Some(names.collect::<BTreeSet<_>>())
            .filter(|names| !names.is_empty())
            .ok_or_else(|| LoadError::Absent { file: "*.safetensors".into() }.into())
    }

    pub(in crate::model::load) fn weights(&self) -> &[ModelFile] {
        &self.weights
    }

    /// What the files are now, and that others are not there.
    pub(in crate::model::load) fn stamps(&self) -> Stamps {
        let open = self.texts.values().chain(&self.weights);
        let open = open.map(|file| (file.path().to_owned(), Some(file.stamp())));
        let known = KNOWN.into_iter().chain([WEIGHTS]).map(|name| self.path.join(name));
        let opened: BTreeMap<_, _> = open.collect();
        let absent = known.filter(|path| !opened.contains_key(path)).map(|path| (path, None));
        Stamps::new(opened.clone().into_iter().chain(absent))
    }

    /// The bytes of a file that may be there.
    pub(super) fn text(&self, name: &'static str) -> Result<Option<Vec<u8>>, LoadError> {
        let Some(file) = self.texts.get(name) else { return Ok(None) };
        let bytes = file.input().and_then(whole);
        bytes.map(Some).map_err(|error| error.within(name))
    }

    /// A JSON object that may be there.
    pub(super) fn json(&self, name: &'static str) -> Result<Option<Value>, LoadError> {
        self.parse(name)
    }

    fn parse<T: for<'de> Deserialize<'de>>(
        &self,
        name: &'static str,
    ) -> Result<Option<T>, LoadError> {
        let parse = |bytes: Vec<u8>| {
            let parsed = serde_json::from_slice(&bytes);
            parsed.map_err(|error| LoadError::Json { reason: error.to_string() }.within(name))
        };
        self.text(name)?.map(parse).transpose()
    }
}

/// The bytes of a file, unless nobody writes so many.
pub(in crate::model::load) fn whole(input: Input<'_>) -> Result<Vec<u8>, LoadError> {
    let len = input.len() as u64;
    if len > MOST {
        return Err(LoadError::OutOfRange {
            what: "the size in bytes".into(),
            found: len.to_string(),
            expected: format!("at most {MOST}"),
        });
    }
    Ok(input.read(0..input.len())?.into_owned())
}

/// The states of all files at `path` that may count, before anyone knows which do.
pub(in crate::model::load) fn survey(path: &Path) -> Stamps {
    let counts = |path: &PathBuf| {
        let end = path.extension().and_then(|end| end.to_str());
        matches!(end, Some("json" | "jinja" | "model" | "safetensors" | "txt"))
    };
    let files = files(path).unwrap_or_default().into_iter().filter(counts);
    Stamps::new(files.map(|path| (path.clone(), Stamp::of(&path).ok())))
}

/// The files of a directory, in the order of their names.
fn files(path: &Path) -> Result<Vec<PathBuf>, OpenError> {
    let unreadable = |error| OpenError::Read { path: path.to_owned(), error };
    let entries = fs::read_dir(path).map_err(unreadable)?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    let mut paths = paths.collect::<Result<Vec<_>, _>>().map_err(unreadable)?;
    paths.sort_unstable();
    Ok(paths)
}

/// Whether a file has weights of a whole model: adapters have not, and a second copy with its
/// maker's own names of tensors does not count.
fn is_weights(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let other = name.starts_with("adapter") || name.starts_with("consolidated");
    name.ends_with(".safetensors") && !other
}
