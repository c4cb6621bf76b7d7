//! Where an engine's model comes from, who it is, and whether it is still the same.
//!
//! A model's identity is the hash of its file's contents, so a renamed or copied file still hits
//! and a retrained one misses. The file's stamp (device, inode, size and times) tells cheaply that
//! it changed; it is looked at again before anything is published under the old name.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tinygpt_kernels::{Matrix, Pool};

use super::handle::ModelInfo;
use super::kept::Kept;
use crate::kv::codec::Codec;
use crate::kv::device::DeviceError;
use crate::kv::key::{Digest, Fields};
use crate::kv::layout::Layout;
use crate::model::identity::{self, Stamp};
use crate::model::load::{Checkpoint, LoadError, Packing, Unkept, Weights};
use crate::model::{Dimensions, Machine, Model, Numerics, load};
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
    pub(super) model: Rc<dyn Model>,
    pub(super) info: Arc<ModelInfo>,
    stamp: Option<Stamp>,
    pub(super) packed: Packed,
}

/// Which process packed a model's weights.
#[derive(Debug)]
pub(super) enum Packed {
    /// An earlier one.
    Before,
    /// This one, and what is worth keeping of that.
    Now(Option<Unkept>),
}

impl Packed {
    /// Whether an earlier process packed them.
    pub(super) fn is_kept(&self) -> bool {
        matches!(self, Self::Before)
    }

    /// What this process packed and nobody has taken yet.
    pub(super) fn take(&mut self) -> Option<Unkept> {
        match self {
            Self::Before => None,
            Self::Now(unkept) => unkept.take(),
        }
    }
}

/// A model that was read.
struct Read {
    checkpoint: Checkpoint,
    contents: Contents,
    packed: Packed,
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
    /// Reads, hashes and assembles the model. A file that `kept` knows is not hashed, and not
    /// packed either when its packed weights are there.
    ///
    /// # Errors
    /// When the file cannot be read, is no model that can be served, changed meanwhile, or finds
    /// no place on a device.
    pub(super) fn load(
        &self,
        generation: u64,
        machine: &Machine,
        kept: Option<&Kept>,
    ) -> Result<Loaded, SourceError> {
        let started = Instant::now();
        let read = match &self.path {
            None => self.read_builtin(&machine.pool),
            Some(path) => self.read(path, &machine.pool, kept),
        };
        self.assemble(read?, (generation, machine), started)
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

    fn read_builtin(&self, pool: &Pool) -> Result<Read, SourceError> {
        let bytes = load::BUILTIN;
        let checkpoint = load::load(bytes, pool).map_err(|error| self.refuse(error))?;
        let weights = identity::of_bytes(bytes);
        let contents = Contents { weights, bytes: bytes.len() as u64, stamp: None };
        Ok(Read { checkpoint, contents, packed: Packed::Now(None) })
    }

    fn read(&self, path: &Path, pool: &Pool, kept: Option<&Kept>) -> Result<Read, SourceError> {
        let (file, stamp) = open(path)?;
        let telling = stamp.is_telling();
        let known = kept.and_then(|kept| kept.recall(&stamp));
        let found = kept.zip(known).and_then(|(kept, weights)| find(kept, &file, weights, pool));
        let (checkpoint, weights, matrices) = match (known, found) {
            (Some(weights), Some(checkpoint)) => (checkpoint, weights, None),
            _ => self.pack((path, &file), stamp.size(), known, pool)?,
        };
        if Stamp::of(path).map_err(|error| unreadable(path, error))? != stamp {
            return Err(SourceError::Changed { path: path.to_owned() });
        }
        let kept = kept.filter(|_| telling);
        if let (Some(kept), None) = (kept, known) {
            kept.remember(stamp, weights);
        }
        let packed = matrices.map_or(Packed::Before, |matrices| {
            Packed::Now(kept.map(|_| Unkept::new(weights, matrices)))
        });
        let contents = Contents { weights, bytes: stamp.size(), stamp: Some(stamp) };
        Ok(Read { checkpoint, contents, packed })
    }

    /// Packs what is in the file, and hashes it in the shadow of that unless its identity is known.
    /// Either way the file is read ahead of those who pack it.
    fn pack(
        &self,
        (path, file): (&Path, &File),
        size: u64,
        known: Option<Digest>,
        pool: &Pool,
    ) -> Result<(Checkpoint, Digest, Option<Vec<Matrix>>), SourceError> {
        std::thread::scope(|scope| {
            let ahead = scope.spawn(|| match known {
                Some(known) => {
                    will_need(file);
                    Ok(known)
                }
                None => identity::of_file(file, size),
            });
            let packing = Packing::new(pool);
            let checkpoint = load::load_file(file, &packing).map_err(|error| self.refuse(error))?;
            let weights = ahead.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let weights = weights.map_err(|error| unreadable(path, error))?;
            Ok((checkpoint, weights, Some(packing.into_matrices())))
        })
    }

    fn refuse(&self, error: LoadError) -> SourceError {
        let path = self.path.as_ref().map(|path| path.display().to_string());
        SourceError::Load { name: path.unwrap_or_else(|| self.name.clone()), error }
    }

    fn assemble(
        &self,
        Read { checkpoint, contents: file, packed }: Read,
        (generation, machine): (u64, &Machine),
        started: Instant,
    ) -> Result<Loaded, SourceError> {
        let numerics = machine.label(self.numerics);
        let fields = Fields {
            weights: file.weights,
            config: Digest::of("config", &checkpoint.weights.config_digest_input()),
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
        let Dimensions { width, heads, vocab, context, layers } = weights.dimensions();
        let model = machine.assemble(checkpoint.weights, self.numerics);
        let model = model.map_err(|error| SourceError::Place { name: self.name.clone(), error })?;
        let layouts = Codec::ALL.map(|codec| Arc::new(Layout::new(codec, &layers))).to_vec();
        let info = ModelInfo {
            name: self.name.clone(),
            generation,
            path: self.path.clone(),
            format: checkpoint.format,
            architecture: checkpoint.architecture,
            quantisation: checkpoint.quantisation,
            context,
            vocab,
            file_bytes: file.bytes,
            weight_bytes,
            parameters,
            load: started.elapsed(),
            width,
            heads,
            vocabulary: checkpoint.vocabulary,
            layouts,
            fields,
            numerics,
            default_codec: self.codec,
        };
        Ok(Loaded { model: model.into(), info: Arc::new(info), stamp: file.stamp, packed })
    }
}

/// The model with matrices that an earlier process packed, which are verified while the rest is
/// read. `None` when they are not there or do not fit: the file has everything that they have.
fn find(kept: &Kept, file: &File, weights: Digest, pool: &Pool) -> Option<Checkpoint> {
    let pack = kept.pack(weights)?;
    let (read, verified) = std::thread::scope(|scope| {
        let verified = scope.spawn(|| pack.verify(pool));
        let read = load::load_file(file, &Packing::kept(pool, &pack));
        (read, verified.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    verified.inspect_err(|error| kept.forget_pack(weights, error)).ok()?;
    read.inspect_err(|error| kept.forget_pack(weights, error)).ok()
}

/// The file at `path`, and its stamp before anything of it was read.
fn open(path: &Path) -> Result<(File, Stamp), SourceError> {
    let file = File::open(path).map_err(|error| unreadable(path, error))?;
    let metadata = file.metadata().map_err(|error| unreadable(path, error))?;
    if metadata.is_dir() {
        return Err(unreadable(path, io::Error::other("it is a directory")));
    }
    Ok((file, Stamp::new(&metadata)))
}

fn unreadable(path: &Path, error: io::Error) -> SourceError {
    SourceError::Read { path: path.to_owned(), error }
}

/// A sum over all weights: `of` each matrix, `each` element of a vector.
fn total(weights: &Weights, of: impl Fn(&Matrix) -> usize, each: usize) -> u64 {
    let matrices: usize = weights.matrices().into_iter().map(of).sum();
    let elements: usize = weights.vectors().into_iter().map(<[f32]>::len).sum();
    (matrices + each * elements) as u64
}
