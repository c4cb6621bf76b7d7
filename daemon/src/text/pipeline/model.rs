//! What makes ids of words in a `tokenizer.json`.
//!
//! The library's byte-pair model keeps every token twice as a string and reads a file by way of a
//! tree of its values, which takes ten times what the file does. So that one is [`Pairs`] here; the
//! others, which models of language rarely have, are the library's.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::BpeTrainer;
use tokenizers::{ModelWrapper, Result, Token};

use super::pairs::Pairs;

/// A model of any kind.
pub(super) enum Model {
    Pairs(Box<Pairs>),
    Other(Box<ModelWrapper>),
}

impl<'de> Deserialize<'de> for Model {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_map(Kinds)
    }
}

/// Reads a model, whose type comes first in all files that the library has written.
struct Kinds;

impl<'de> Visitor<'de> for Kinds {
    type Value = Model;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a model")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Model, A::Error> {
        let mut values = Map::new();
        while let Some((key, value)) = map.next_entry::<String, Value>()? {
            if values.is_empty() && key == "type" && value == "BPE" {
                return Pairs::read(map).map(|pairs| Model::Pairs(Box::new(pairs)));
            }
            values.insert(key, value);
        }
        let model = serde_json::from_value(values.into()).map_err(A::Error::custom)?;
        Ok(Model::Other(Box::new(model)))
    }
}

impl tokenizers::Model for Model {
    type Trainer = TrainerWrapper;

    fn tokenize(&self, word: &str) -> Result<Vec<Token>> {
        match self {
            Self::Pairs(pairs) => pairs.tokenize(word),
            Self::Other(model) => model.tokenize(word),
        }
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        match self {
            Self::Pairs(pairs) => pairs.find(token),
            Self::Other(model) => model.token_to_id(token),
        }
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        match self {
            Self::Pairs(pairs) => pairs.text(id),
            Self::Other(model) => model.id_to_token(id),
        }
    }

    fn get_vocab(&self) -> HashMap<String, u32> {
        match self {
            Self::Pairs(pairs) => pairs.tokens().collect(),
            Self::Other(model) => model.get_vocab(),
        }
    }

    fn get_vocab_size(&self) -> usize {
        match self {
            Self::Pairs(pairs) => pairs.tokens().count(),
            Self::Other(model) => model.get_vocab_size(),
        }
    }

    fn save(&self, folder: &Path, prefix: Option<&str>) -> Result<Vec<PathBuf>> {
        match self {
            Self::Pairs(_) => Err("a tokenizer is read here and never written".into()),
            Self::Other(model) => model.save(folder, prefix),
        }
    }

    fn get_trainer(&self) -> TrainerWrapper {
        match self {
            Self::Pairs(_) => BpeTrainer::default().into(),
            Self::Other(model) => model.get_trainer(),
        }
    }
}
