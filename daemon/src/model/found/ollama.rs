//! A store of Ollama's.
//!
//! ```text
//! manifests/HOST/NAMESPACE/NAME/TAG  JSON: layers, each with a media type and a digest
//! blobs/sha256-DIGEST                a layer; of a model that can be served, one is a GGUF file
//! ```

use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::Unfit;
use super::folder::Folder;
use super::search::{Label, Search};
use crate::sys;

/// Most bytes of a manifest: real ones have about a thousand.
const LONGEST: u64 = 1 << 20;

/// Folders from the manifests down to a tag: host, namespace, name.
const LEVELS: usize = 3;

const MODEL: &str = "application/vnd.ollama.image.model";
const ADAPTER: &str = "application/vnd.ollama.image.adapter";

/// The two folders of a store.
#[derive(Debug)]
pub(super) struct Store {
    manifests: PathBuf,
    blobs: PathBuf,
}

/// The part of a manifest that counts.
#[derive(Debug, Deserialize)]
struct Manifest {
    layers: Vec<Layer>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Layer {
    media_type: String,
    digest: String,
}

impl Folder {
    /// The store that it is, if it is one.
    pub(super) fn store(&self) -> Option<Store> {
        let path = |name| self.folder(name).map(|folder| folder.path.clone());
        Some(Store { manifests: path("manifests")?, blobs: path("blobs")? })
    }
}

impl Search {
    /// Finds every tag of a store.
    pub(super) fn store(&mut self, store: &Store, depth: usize) {
        self.tags(store, &store.manifests, &[], depth + 1);
    }

    fn tags(&mut self, store: &Store, path: &Path, above: &[&str], depth: usize) {
        let label = Label::repository(above.join("/"));
        let Some(folder) = self.list(path, &label, depth) else { return };
        if above.len() < LEVELS {
            for entry in &folder.folders {
                self.tags(store, &entry.path, &[above, &[&entry.name]].concat(), depth + 1);
            }
            return;
        }
        for file in &folder.files {
            let label = Label::repository(name(above, &file.name));
            match store.model(&file.path) {
                Ok(model) => self.add(&model, &label, None),
                Err(unfit) => self.unfit(&file.path, &label, unfit),
            }
        }
    }
}

impl Store {
    /// The GGUF file of the model with this manifest.
    fn model(&self, manifest: &Path) -> Result<PathBuf, Unfit> {
        let layers = Manifest::read(manifest)?.layers;
        let digest = |kind| layers.iter().find(|layer| layer.media_type == kind);
        match (digest(MODEL), digest(ADAPTER)) {
            (None, _) => Err(Unfit::NoGguf),
            (_, Some(_)) => Err(Unfit::WithAdapter),
            (Some(model), None) => Ok(self.blobs.join(blob(&model.digest)?)),
        }
    }
}

impl Manifest {
    fn read(path: &Path) -> Result<Self, Unfit> {
        let mut text = Vec::new();
        sys::file::open(path)?.take(LONGEST).read_to_end(&mut text)?;
        let parsed = serde_json::from_slice(&text);
        parsed.map_err(|error| Unfit::Manifest { reason: error.to_string() })
    }
}

/// The name of the file with a digest, which leads nowhere else.
fn blob(digest: &str) -> Result<String, Unfit> {
    let (kind, digits) = digest.split_once(':').unwrap_or_default();
    let plain = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric());
    match plain(kind) && plain(digits) {
        true => Ok(format!("{kind}-{digits}")),
        false => Err(Unfit::Manifest { reason: format!("{digest:?} is no digest") }),
    }
}

/// What Ollama calls a tag: what goes without saying is left out.
fn name(above: &[&str], tag: &str) -> String {
    let said = match above {
        ["registry.ollama.ai", "library", rest @ ..] | ["registry.ollama.ai", rest @ ..] => rest,
        all => all,
    };
    format!("{}:{tag}", said.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_called_what_ollama_calls_it() {
        let cases = [
            (["registry.ollama.ai", "library", "llama3.2"], "llama3.2:1b"),
            (["registry.ollama.ai", "me", "mine"], "me/mine:1b"),
            (["hf.co", "a", "b"], "hf.co/a/b:1b"),
        ];
        for (above, expected) in cases {
            assert_eq!(name(&above, "1b"), expected);
        }
    }

    #[test]
    fn a_digest_that_leads_elsewhere_is_none() {
        assert!(blob("sha256:0af9").is_ok_and(|name| name == "sha256-0af9"));
        for odd in ["", "sha256", "sha256:", ":a", "sha256:../../x", "sha256:/etc", "../a:b"] {
            assert!(blob(odd).is_err(), "{odd}");
        }
    }
}
