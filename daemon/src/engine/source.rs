//! Where an engine's model comes from, who it is, and whether it is still the same.
//!
//! A model's identity is the hash of its file's contents, so a renamed or copied file still hits
//! and a retrained one misses. The file's stamp (device, inode, size and times) tells cheaply that
//! it changed; it is looked at again before anything is published under the old name.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tinygpt_kernels::{Matrix, Pool};

use super::handle::ModelInfo;
use crate::kv::codec::Codec;
use crate::kv::device::DeviceError;
use crate::kv::key::{Digest, Fields};
use crate::kv::layout::Layout;
use crate::model::identity::{self, Identities, Stamp};
use crate::model::load::{Checkpoint, LoadError, Weights};
use crate::model::{Machine, Model, Numerics, load};
use crate::sys::file::will_need;

/// How long a changed file must have been left alone before it is read again.
const SETTLE: Duration = Duration::from_millis(300);

/// A model to serve.
#[derive(Debug, Clone)]
pub struct Source {
    /// The name that requests use.
    pub name: String,
    /// The file; `None` for the built-in model.
    pub path: Option<PathBuf>,
    /// The codec of requests that name none.
    pub codec: Codec,
    /// The arithmetic.
    pub numerics: Numerics,
}

/// Why a model could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The file could not be opened or read.
    #[error("cannot read model {path}: {error}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The file is not a model that can be served.
    #[error("cannot load model {name}: {error}")]
    Load {
        /// The file, or the model's name.
        name: String,
        /// What is wrong with it.
        error: LoadError,
    },
    /// There is no room for it where it is to run.
    #[error("cannot place model {name} on the device: {error}")]
    Place {
        /// The model's name.
        name: String,
        /// What is in the way.
        error: DeviceError,
    },
    /// The file was being written while it was read.
    #[error("model {path} changed while it was being read", path = path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
}

/// What a model file says of itself.
#[derive(Debug, Clone, Copy)]
struct Contents {
    /// The identity of its weights.
    weights: Digest,
    bytes: u64,
    /// `None` for the built-in model.
    stamp: Option<Stamp>,
}

/// A model in memory, with everything that names it.
pub(super) struct Loaded {
    pub(super) model: Box<dyn Model>,
    pub(super) info: Arc<ModelInfo>,
    stamp: Option<Stamp>,
}

impl Loaded {
    /// Whether the file is no longer the one that was loaded. A file that is gone has not
    /// changed: its weights are in memory.
    pub(super) fn is_stale(&self) -> bool {
        let (Some(path), Some(stamp)) = (&self.info.path, self.stamp) else { return false };
        Stamp::of(path).is_ok_and(|now| now != stamp)
    }
}

impl Source {
    /// Reads, hashes and assembles the model. A file that `identities` knows is not hashed.
    ///
    /// # Errors
    /// When the file cannot be read, is no model that can be served, or changed meanwhile.
    pub(super) fn load(
        &self,
        generation: u64,
        machine: &Machine,
        identities: Option<&Identities>,
    ) -> Result<Loaded, SourceError> {
        let (started, pool) = (Instant::now(), &machine.pool);
        let Some(path) = &self.path else {
            let checkpoint = load::load(load::BUILTIN, pool).map_err(|error| self.refuse(error))?;
            let file = Contents {
                weights: identity::of_bytes(load::BUILTIN),
                bytes: load::BUILTIN.len() as u64,
                stamp: None,
            };
            return self.assemble(checkpoint, file, (generation, machine), started);
        };
        let unreadable = |error| SourceError::Read { path: path.clone(), error };
        let file = File::open(path).map_err(unreadable)?;
        let metadata = file.metadata().map_err(unreadable)?;
        if metadata.is_dir() {
            return Err(unreadable(io::Error::other("it is a directory")));
        }
        let stamp = Stamp::new(&metadata);
        let (telling, bytes) = (stamp.is_telling(), metadata.len());
        let known = identities.and_then(|identities| identities.recall(&stamp));
        let (checkpoint, weights) = self.read(&file, bytes, known, pool)?;
        let weights = weights.map_err(unreadable)?;
        if Stamp::of(path).map_err(unreadable)? != stamp {
            return Err(SourceError::Changed { path: path.clone() });
        }
        if telling && known.is_none() {
            remember(identities, stamp, weights);
        }
        let file = Contents { weights, bytes, stamp: Some(stamp) };
        self.assemble(checkpoint, file, (generation, machine), started)
    }

    /// Whether there is no file any more.
    pub(super) fn is_gone(&self) -> bool {
        self.path.as_ref().is_some_and(|path| !path.exists())
    }

    /// The file's stamp, once nobody has written to it for a moment.
    pub(super) fn settled(&self) -> Option<Stamp> {
        let stamp = Stamp::of(self.path.as_ref()?).ok()?;
        (stamp.age() > SETTLE).then_some(stamp)
    }

    /// Unpacks the file, and hashes it in the shadow of that unless its identity is known. Either
    /// way the file is read ahead of those who unpack it.
    fn read(
        &self,
        file: &File,
        size: u64,
        known: Option<Digest>,
        pool: &Pool,
    ) -> Result<(Checkpoint, io::Result<Digest>), SourceError> {
        std::thread::scope(|scope| {
            let ahead = scope.spawn(|| match known {
                Some(known) => {
                    will_need(file);
                    Ok(known)
                }
                None => identity::of_file(file, size),
            });
            let checkpoint = load::load_file(file, pool).map_err(|error| self.refuse(error))?;
            let weights = ahead.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            Ok((checkpoint, weights))
        })
    }

    fn refuse(&self, error: LoadError) -> SourceError {
        let path = self.path.as_ref().map(|path| path.display().to_string());
        SourceError::Load { name: path.unwrap_or_else(|| self.name.clone()), error }
    }

    fn assemble(
        &self,
        checkpoint: Checkpoint,
        file: Contents,
        (generation, machine): (u64, &Machine),
        started: Instant,
    ) -> Result<Loaded, SourceError> {
        let numerics = machine.label(self.numerics);
        let fields = Fields {
            weights: file.weights,
            config: Digest::of("config", &checkpoint.config_digest_input),
            tokenizer: Digest::of("tokenizer", &checkpoint.vocabulary_digest_input),
            adapter: Digest::of("adapter", b""),
            numerics: Digest::of("numerics", numerics.as_bytes()),
            window: Digest::of("window", b"full"),
            rope: Digest::of("rope", b"as configured"),
            ..Fields::default()
        };
        let weights = &checkpoint.weights;
        let weight_bytes = total(weights, Matrix::bytes, size_of::<f32>());
        let parameters = total(weights, |matrix| matrix.n() * matrix.k(), 1);
        let model = machine.assemble(checkpoint.weights, self.numerics);
        let model = model.map_err(|error| SourceError::Place { name: self.name.clone(), error })?;
        let layers = model.layers();
        let layouts = Codec::ALL.map(|codec| Arc::new(Layout::new(codec, &layers))).to_vec();
        let info = ModelInfo {
            name: self.name.clone(),
            generation,
            path: self.path.clone(),
            format: checkpoint.format,
            architecture: checkpoint.architecture,
            quantisation: checkpoint.quantisation,
            context: model.context(),
            vocab: model.vocab(),
            file_bytes: file.bytes,
            weight_bytes,
            parameters,
            load: started.elapsed(),
            width: model.width(),
            heads: model.heads(),
            vocabulary: checkpoint.vocabulary,
            layouts,
            fields,
            numerics,
            default_codec: self.codec,
        };
        Ok(Loaded { model, info: Arc::new(info), stamp: file.stamp })
    }
}

fn remember(identities: Option<&Identities>, stamp: Stamp, weights: Digest) {
    let remembered = identities.map(|identities| identities.remember(stamp, weights));
    if let Some(Err(error)) = remembered {
        tracing::warn!(%error, "the model will be hashed again at the next start");
    }
}

/// A sum over all weights: `of` each matrix, `each` element of a vector.
fn total(weights: &Weights, of: impl Fn(&Matrix) -> usize, each: usize) -> u64 {
    let matrices: usize = weights.matrices().into_iter().map(of).sum();
    let elements: usize = weights.vectors().into_iter().map(<[f32]>::len).sum();
    (matrices + each * elements) as u64
}
