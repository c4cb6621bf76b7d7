//! The `quantization` of a `config.json`: a scheme for the whole, and modules with their own.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::Scheme;
use crate::model::load::LoadError;

/// Where a checkpoint says it, best first.
const KEYS: [&str; 2] = ["quantization", "quantization_config"];

/// Which modules are quantised, and how.
#[derive(Debug, PartialEq)]
pub(in crate::model::load) struct Quantization {
    scheme: Scheme,
    modules: BTreeMap<String, Option<Scheme>>,
}

/// What a config says of a module.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::model::load) enum Choice {
    /// It is plain numbers.
    Plain,
    /// It is quantised.
    Quantised(Scheme),
    /// Nothing: it is quantised if it has scales, as their shape tells.
    Unsaid,
}

impl Quantization {
    /// What a config says, of which `get` gives the value of a key; `None` when it says nothing.
    ///
    /// # Errors
    /// Names the key that asks for what there is not.
    pub(in crate::model::load) fn of<'a>(
        get: impl Fn(&str) -> Option<&'a Value>,
    ) -> Result<Option<Self>, LoadError> {
        // Converters write it twice.
        let said = KEYS.map(|key| get(key).filter(|said| !said.is_null()).map(|said| (key, said)));
        match said.into_iter().flatten().next() {
            None => Ok(None),
            Some((key, Value::Object(said))) => Self::read(key, said).map(Some),
            Some((key, other)) => Err(unsupported(key, other)),
        }
    }

    fn read(key: &str, said: &Map<String, Value>) -> Result<Self, LoadError> {
        if let Some(method) = said.get("quant_method") {
            return Err(unsupported(&format!("{key}.quant_method"), method));
        }
        for needed in ["group_size", "bits"] {
            if !said.contains_key(needed) {
                return Err(LoadError::MissingKey { key: format!("{key}.{needed}") });
            }
        }
        let modules = said.iter().filter(|(name, _)| !Scheme::KEYS.contains(&name.as_str()));
        let modules = modules.map(|(name, value)| {
            let path = format!("{key}.{name}");
            let scheme = match value {
                Value::Bool(false) => None,
                Value::Object(own) => Some(own_scheme(&path, own)?),
                other => return Err(unsupported(&path, other)),
            };
            Ok((name.clone(), scheme))
        });
        Ok(Self { scheme: Scheme::read(key, said)?, modules: modules.collect::<Result<_, _>>()? })
    }

    /// What holds for a module, by its path: the name of its tensors before `.weight`.
    pub(in crate::model::load) fn choice(&self, module: &str) -> Choice {
        match self.modules.get(module) {
            None => Choice::Unsaid,
            Some(None) => Choice::Plain,
            Some(Some(scheme)) => Choice::Quantised(*scheme),
        }
    }

    /// The name of the scheme for the whole.
    pub(in crate::model::load) fn name(&self) -> String {
        self.scheme.name()
    }
}

/// A scheme that a module has for itself; it says nothing else.
fn own_scheme(path: &str, own: &Map<String, Value>) -> Result<Scheme, LoadError> {
    let unknown = own.iter().find(|(key, _)| !Scheme::KEYS.contains(&key.as_str()));
    match unknown {
        Some((key, value)) => Err(unsupported(&format!("{path}.{key}"), value)),
        None => Scheme::read(path, own),
    }
}

fn unsupported(key: &str, found: &Value) -> LoadError {
    LoadError::Unsupported { what: format!("key \"{key}\""), detail: found.to_string() }
}
