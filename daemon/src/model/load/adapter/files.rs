//! The files of an adapter: one, or two of a directory.

use std::path::{Path, PathBuf};

use super::{Adapter, lora, peft};
use crate::model::identity::{Stamp, Stamps};
use crate::model::load::{LoadError, ModelFile, OpenError, hf};

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";

/// What an adapter is read from.
#[derive(Debug)]
pub struct AdapterFiles(Form);

#[derive(Debug)]
enum Form {
    Lora(ModelFile),
    Peft { config: ModelFile, weights: ModelFile },
}

impl AdapterFiles {
    /// Opens the adapter at `path`: a `.lora` file, or a directory as PEFT saves one.
    ///
    /// # Errors
    /// When a file that is needed is not there, or cannot be opened.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        if !path.is_dir() {
            return ModelFile::open(path).map(|file| Self(Form::Lora(file)));
        }
        let open = |name: &str| match path.join(name) {
            path if path.exists() => ModelFile::open(&path),
            _ => Err(LoadError::Absent { file: name.into() }.into()),
        };
        Ok(Self(Form::Peft { config: open(CONFIG)?, weights: open(WEIGHTS)? }))
    }

    /// What is at `path` now.
    pub fn survey(path: &Path) -> Stamps {
        let paths: Vec<PathBuf> = match path.is_dir() {
            true => [CONFIG, WEIGHTS].map(|name| path.join(name)).into(),
            false => vec![path.to_owned()],
        };
        Stamps::new(paths.into_iter().map(|path| (path.clone(), Stamp::of(&path).ok())))
    }

    /// The states of its files.
    pub fn stamps(&self) -> Stamps {
        let files = match &self.0 {
            Form::Lora(file) => vec![file],
            Form::Peft { config, weights } => vec![config, weights],
        };
        let stamp = |file: &ModelFile| (file.path().to_owned(), Some(file.stamp()));
        Stamps::new(files.into_iter().map(stamp))
    }

    /// Reads the adapter.
    ///
    /// # Errors
    /// Every way in which the files are no adapter that can run, or cannot be read: see
    /// [`LoadError`].
    pub fn load(&self) -> Result<Adapter, LoadError> {
        match &self.0 {
            Form::Lora(file) => lora::load(file.input()?),
            Form::Peft { config, weights } => {
                let config = config.input().and_then(hf::whole);
                let config = config.map_err(|error| error.within(CONFIG))?;
                peft::load(&config, weights.input().map_err(|error| error.within(WEIGHTS))?)
            }
        }
    }
}
