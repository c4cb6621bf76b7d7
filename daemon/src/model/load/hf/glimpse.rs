//! What `config.json` says of a model, whatever else is there.

use std::path::Path;

use serde_json::Value;

use super::directory::{CONFIG, Directory, whole};
use super::tensors::Tensors;
use crate::model::load::files::ModelFile;
use crate::model::load::mlx::Quantization;
use crate::model::load::{Glimpse, LoadError, OpenError, Packing};

/// Keys of the longest sequence; models that see or hear have them, and more, within another.
const CONTEXT: [&str; 2] = ["max_position_embeddings", "n_positions"];
const WITHIN: &str = "text_config";

/// Of the directory at `path`.
pub(in crate::model::load) fn glimpse(path: &Path) -> Result<Glimpse, OpenError> {
    let file = ModelFile::open(&path.join(CONFIG))?;
    let config: Value = serde_json::from_slice(&whole(file.input()?)?)
        .map_err(|error| LoadError::Json { reason: error.to_string() })?;
    let architecture = config.get("model_type").and_then(Value::as_str);
    let number = |config: &Value| CONTEXT.iter().find_map(|key| config.get(key)?.as_u64());
    let context = number(&config).or_else(|| number(config.get(WITHIN)?));
    Ok(Glimpse {
        format: "safetensors",
        architecture: architecture.unwrap_or_default().into(),
        quantisation: quantisation(path, &config).unwrap_or_default(),
        context: context.and_then(|context| context.try_into().ok()).unwrap_or(0),
    })
}

fn quantisation(path: &Path, config: &Value) -> Option<String> {
    match Quantization::of(|key| config.get(key)) {
        Ok(Some(quantization)) => return Some(quantization.name()),
        Err(_) => return method(config).map(str::to_owned),
        Ok(None) => {}
    }
    let (directory, packing) = (Directory::open(path).ok()?, Packing::outline());
    let tensors = Tensors::open(&directory, "", None, &packing).ok()?;
    Some(tensors.commonest_type().to_owned())
}

/// What quantised it, where that is not MLX.
fn method(config: &Value) -> Option<&str> {
    config.get("quantization_config")?.get("quant_method")?.as_str()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(config: Value, (architecture, quantisation, context): (&str, &str, usize)) {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(CONFIG), config.to_string()).unwrap();
        let (architecture, quantisation) = (architecture.to_owned(), quantisation.to_owned());
        let expected = Glimpse { format: "safetensors", architecture, quantisation, context };
        assert_eq!(glimpse(directory.path()).unwrap(), expected, "{config}");
    }

    #[test]
    fn a_model_that_cannot_be_loaded_says_what_it_is_all_the_same() {
        let seeing = json!({"model_type": "gemma3", "text_config": {"max_position_embeddings": 8}});
        check(seeing, ("gemma3", "", 8));
        let packed = json!({"model_type": "llama", "quantization_config": {"quant_method": "awq"}});
        check(packed, ("llama", "awq", 0));
        let quantised = json!({"n_positions": 4, "quantization": {"group_size": 64, "bits": 4}});
        check(quantised, ("", "affine 4 bits, groups of 64", 4));
        let odd = json!({"model_type": 1, "max_position_embeddings": -1, "text_config": []});
        check(odd, ("", "", 0));
    }
}
