//! Where an engine's model comes from, who it is, and whether it is still the same.
//!
//! A model's identity is the hash of the contents of the files that have its weights, so a renamed
//! or copied one still hits and a retrained one misses. Stamps (device, inode, size and times) tell
//! cheaply that a file changed; they are looked at again before anything is published under the old
//! name.

use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tinygpt_kernels::{Matrix, Pool};

use super::adapters::{AdapterInfo, AdapterSource};
use super::info::ModelInfo;
use super::kept::Kept;
use crate::kv::codec::Codec;
use crate::kv::device::DeviceError;
use crate::kv::key::{Digest, Fields};
use crate::kv::layout::Layout;
use crate::model::identity::{self, Stamps};
use crate::model::load::{
    AdapterFiles, Checkpoint, Files, LoadError, ModelFile, OpenError, Packing, Unkept, Vocabulary,
    Weights,
};
use crate::model::{AdapterId, Dimensions, Machine, Model, Numerics, load};
use crate::sys::file::will_need;
use crate::sys::huge;
use crate::sys::mmap::Map;

/// How long a changed file must have been left alone before it is read again.
const SETTLE: Duration = Duration::from_millis(300);

/// A model to serve.
#[derive(Debug, Clone)]
pub struct Source {
    /// The name that requests use.
    pub name: String,
    /// The file or directory; `None` for the built-in model.
    pub path: Option<PathBuf>,
    /// The codec of requests that name none.
    pub codec: Codec,
    /// The arithmetic.
    pub numerics: Numerics,
    /// Most tokens of one sequence, where that is less than the model's own limit.
    pub context: Option<NonZeroUsize>,
    /// What requests may add to it.
    pub adapters: Vec<AdapterSource>,
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
    /// An adapter is none, or does not fit the model.
    #[error("cannot load adapter {name} from {path}: {error}", path = path.display())]
    Adapter {
        /// Its name.
        name: String,
        /// The file or directory.
        path: PathBuf,
        /// What is wrong with it.
        error: Box<OpenError>,
    },
    /// The file was being written while it was read.
    #[error("{path} changed while it was being read", path = path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
}

impl SourceError {
    /// Whether the same files may be loaded later: the system was out of something.
    pub(super) fn passes(&self) -> bool {
        match self {
            Self::Read { error, .. } => is_passing(error),
            Self::Load { error, .. } => matches!(error, LoadError::Read { .. }),
            Self::Adapter { error, .. } => match &**error {
                OpenError::Read { error, .. } => is_passing(error),
                _ => false,
            },
            Self::Place { .. } | Self::Changed { .. } => true,
        }
    }
}

/// Whether the system said no for now, and not because of what is there.
fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound, PermissionDenied};
    let stays = [NotADirectory, NotFound, PermissionDenied];
    error.raw_os_error().is_some() && !stays.contains(&error.kind())
}

/// What a model file says of itself.
#[derive(Debug)]
struct Contents {
    /// The identity of its weights.
    weights: Digest,
    bytes: u64,
    /// None for the built-in model.
    stamps: Stamps,
}

/// A model in memory, with everything that names it.
pub(super) struct Loaded {
    pub(super) model: Rc<dyn Model>,
    pub(super) info: Arc<ModelInfo>,
    /// Of its files and its adapters'.
    stamps: Stamps,
    pub(super) packed: Packed,
}

/// Which process packed a model's weights.
#[derive(Debug)]
pub(super) enum Packed {
    /// An earlier one.
    Before(Mapped),
    /// This one, and what is worth keeping of that.
    Now(Option<Unkept>),
}

impl Packed {
    /// Whether an earlier process packed them.
    pub(super) fn is_kept(&self) -> bool {
        matches!(self, Self::Before(_))
    }

    /// Moves at most `most` bytes of weights that were mapped to huge pages, between steps: nobody
    /// reads them meanwhile. Whether there is more to do.
    pub(super) fn exchange(&mut self, most: usize) -> bool {
        match self {
            Self::Before(mapped) => mapped.go_on(most),
            Self::Now(_) => false,
        }
    }

    /// What this process packed and nobody has taken yet.
    pub(super) fn take(&mut self) -> Option<Unkept> {
        match self {
            Self::Before(_) => None,
            Self::Now(unkept) => unkept.take(),
        }
    }
}

/// Packed weights on their way from pages of the file that they were mapped from to huge ones: they
/// are there at once, and read faster later.
#[derive(Debug)]
pub(super) struct Mapped {
    /// Of weights that nobody reads any more nothing is left.
    map: Weak<Map>,
    /// Where to go on; `None` at the end, and where the system has no room.
    next: Option<usize>,
}

impl Mapped {
    fn new(map: &Arc<Map>) -> Self {
        Self { map: Arc::downgrade(map), next: Some(0) }
    }

    fn go_on(&mut self, most: usize) -> bool {
        self.next = self.next.and_then(|from| {
            let map = self.map.upgrade()?;
            huge::may_hold(map.len() - from).then(|| map.exchange(from, most))?
        });
        self.next.is_some()
    }
}

/// Where matrices come from.
enum Origin {
    Kept(Mapped),
    Files(Vec<Matrix>),
}

/// A model that was read.
struct Read {
    /// Without its vocabulary.
    checkpoint: Checkpoint,
    /// The kind of its tokenizer.
    tokenizer: String,
    contents: Contents,
    packed: Packed,
}

impl Loaded {
    /// Whether a file is no longer the one that was loaded. A file that is gone has not changed:
    /// what was in it is in memory.
    pub(super) fn is_stale(&self) -> bool {
        self.stamps.are_stale()
    }
}

impl Source {
    /// A model that is served like any other; the built-in one when it lies nowhere.
    pub fn new(name: impl Into<String>, path: Option<PathBuf>) -> Self {
        Self {
            name: name.into(),
            path,
            codec: Codec::default(),
            numerics: Numerics::default(),
            context: None,
            adapters: Vec::new(),
        }
    }

    /// What a model is called that lies at `path` and was given no name.
    pub fn name_of(path: &Path) -> Option<String> {
        // Names of directories have dots that begin no extension: Qwen3-0.6B.
        let name = if path.is_dir() { path.file_name() } else { path.file_stem() };
        name.map(|name| name.to_string_lossy().into_owned())
    }

    /// Bytes of the model's files at `path`, now.
    pub fn file_bytes(path: &Path) -> u64 {
        Files::survey(path).bytes()
    }

    /// Reads, hashes and assembles the model; its vocabulary goes to `hand` as soon as it is read,
    /// so that a tokenizer can be built while the rest is packed or verified. A file that `kept`
    /// knows is not hashed, and not packed either when its packed weights are there.
    ///
    /// # Errors
    /// When the file cannot be read, is no model that can be served, changed meanwhile, or finds
    /// no place on a device.
    pub(super) fn load(
        &self,
        generation: u64,
        machine: &Machine,
        kept: Option<&Kept>,
        hand: &dyn Fn(Vocabulary),
    ) -> Result<Loaded, SourceError> {
        let started = Instant::now();
        let read = match &self.path {
            None => self.read_builtin(&machine.pool, hand),
            Some(path) => self.read(path, &machine.pool, kept, hand),
        };
        self.assemble(read?, (generation, machine), started)
    }

    /// What is there now.
    pub(super) fn survey(&self) -> Stamps {
        let model = self.path.iter().map(|path| Files::survey(path));
        let adapters = self.adapters.iter().map(|adapter| AdapterFiles::survey(&adapter.path));
        model.chain(adapters).fold(Stamps::default(), Stamps::and)
    }

    /// The same, once nobody has written to it for a moment.
    pub(super) fn settled(&self) -> Option<Stamps> {
        Some(self.survey()).filter(|stamps| stamps.age() > SETTLE)
    }

    fn read_builtin(&self, pool: &Pool, hand: &dyn Fn(Vocabulary)) -> Result<Read, SourceError> {
        let bytes = load::BUILTIN;
        let mut checkpoint = load::load(bytes, pool).map_err(|error| self.refuse(error))?;
        let tokenizer = give(&mut checkpoint, hand);
        let weights = identity::of_bytes(bytes);
        let contents = Contents { weights, bytes: bytes.len() as u64, stamps: Stamps::default() };
        Ok(Read { checkpoint, tokenizer, contents, packed: Packed::Now(None) })
    }

    fn read(
        &self,
        path: &Path,
        pool: &Pool,
        kept: Option<&Kept>,
        hand: &dyn Fn(Vocabulary),
    ) -> Result<Read, SourceError> {
        let files = Files::open(path).map_err(|error| self.unopened(error))?;
        let stamps = files.stamps();
        let telling = files.weights().iter().all(|file| file.stamp().is_telling());
        let known = kept.and_then(|kept| recall(kept, &files));
        let found = kept.zip(known);
        let found = found.and_then(|(kept, weights)| find(kept, &files, weights, pool, hand));
        let ((checkpoint, tokenizer), hashed, origin) = match (known, found) {
            (Some(_), Some((found, mapped))) => (found, Vec::new(), Origin::Kept(mapped)),
            _ => {
                let (packed, hashed, matrices) = self.pack(&files, known.is_some(), pool, hand)?;
                (packed, hashed, Origin::Files(matrices))
            }
        };
        if stamps.now() != stamps {
            return Err(SourceError::Changed { path: path.to_owned() });
        }
        let weights = known.unwrap_or_else(|| files.identity(&hashed));
        let kept = kept.filter(|_| telling);
        for (file, contents) in files.weights().iter().zip(hashed) {
            kept.inspect(|kept| kept.remember(file.stamp(), contents));
        }
        let packed = match origin {
            Origin::Kept(mapped) => Packed::Before(mapped),
            Origin::Files(matrices) => Packed::Now(kept.map(|_| Unkept::new(weights, matrices))),
        };
        let contents = Contents { weights, bytes: stamps.bytes(), stamps };
        Ok(Read { checkpoint, tokenizer, contents, packed })
    }

    /// Packs what is in the files, and hashes them in the shadow of that unless they are `known`.
    /// Either way they are read ahead of those who pack them.
    fn pack(
        &self,
        files: &Files,
        known: bool,
        pool: &Pool,
        hand: &dyn Fn(Vocabulary),
    ) -> Result<(Handed, Vec<Digest>, Vec<Matrix>), SourceError> {
        std::thread::scope(|scope| {
            let ahead = scope.spawn(|| match known {
                true => {
                    files.weights().iter().for_each(|file| will_need(file.file()));
                    Ok(Vec::new())
                }
                false => files.weights().iter().map(hash).collect(),
            });
            let packing = Packing::new(pool);
            let mut checkpoint = files.load(&packing).map_err(|error| self.refuse(error))?;
            let tokenizer = give(&mut checkpoint, hand);
            let hashed = ahead.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            Ok(((checkpoint, tokenizer), hashed?, packing.into_matrices()))
        })
    }

    fn unopened(&self, error: OpenError) -> SourceError {
        match error {
            OpenError::Read { path, error } => SourceError::Read { path, error },
            OpenError::Load(error) => self.refuse(error),
        }
    }

    fn refuse(&self, error: LoadError) -> SourceError {
        let path = self.path.as_ref().map(|path| path.display().to_string());
        SourceError::Load { name: path.unwrap_or_else(|| self.name.clone()), error }
    }

    fn assemble(
        &self,
        Read { mut checkpoint, tokenizer, contents: file, packed }: Read,
        (generation, machine): (u64, &Machine),
        started: Instant,
    ) -> Result<Loaded, SourceError> {
        let longest = self.context.map_or(usize::MAX, NonZeroUsize::get);
        checkpoint.weights.limit(longest);
        let numerics = machine.label(self.numerics);
        let fields = Fields {
            weights: file.weights,
            config: Digest::of("config", &checkpoint.weights.config_digest_input()),
            tokenizer: checkpoint.tokenizer,
            adapter: Digest::of("adapter", b""),
            numerics: Digest::of("numerics", numerics.as_bytes()),
            window: Digest::of("window", b"full"),
            rope: Digest::of("rope", b"as configured"),
            ..Fields::default()
        };
        let weights = &checkpoint.weights;
        let weight_bytes = total(weights, Matrix::bytes, size_of::<f32>());
        let parameters = weights.parameters();
        let Dimensions { width, heads, vocab, context, layers } = weights.dimensions();
        let (adapters, stamps) = self.adapt(&mut checkpoint.weights)?;
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
            context: context.min(longest),
            vocab,
            file_bytes: file.bytes,
            weight_bytes,
            parameters,
            load: started.elapsed(),
            width,
            heads,
            tokenizer,
            layouts,
            fields,
            numerics,
            default_codec: self.codec,
            adapters,
        };
        let stamps = file.stamps.and(stamps);
        Ok(Loaded { model: model.into(), info: Arc::new(info), stamps, packed })
    }

    /// Adds every adapter to the weights.
    fn adapt(&self, weights: &mut Weights) -> Result<(Vec<AdapterInfo>, Stamps), SourceError> {
        let (mut adapters, mut stamps) = (Vec::new(), Stamps::default());
        for (at, source) in self.adapters.iter().enumerate() {
            let (adapter, theirs) = source.load(AdapterId(at), weights)?;
            adapters.push(adapter);
            stamps = stamps.and(theirs);
        }
        Ok((adapters, stamps))
    }
}

/// The identity of the model, if what all of its files hashed to is known.
fn recall(kept: &Kept, files: &Files) -> Option<Digest> {
    let known = files.weights().iter().map(|file| kept.recall(&file.stamp()));
    known.collect::<Option<Vec<_>>>().map(|known| files.identity(&known))
}

/// The model with matrices that an earlier process packed, which are verified while the rest is
/// read. `None` when they are not there or do not fit: the files have everything that they have.
fn find(
    kept: &Kept,
    files: &Files,
    weights: Digest,
    pool: &Pool,
    hand: &dyn Fn(Vocabulary),
) -> Option<(Handed, Mapped)> {
    let pack = kept.pack(weights)?;
    let (read, verified) = std::thread::scope(|scope| {
        let verified = scope.spawn(|| pack.verify(pool));
        let read = files.load(&Packing::kept(&pack)).map(|mut checkpoint| {
            let tokenizer = give(&mut checkpoint, hand);
            (checkpoint, tokenizer)
        });
        (read, verified.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    verified.inspect_err(|error| kept.forget_pack(weights, error)).ok()?;
    let read = read.inspect_err(|error| kept.forget_pack(weights, error)).ok()?;
    Some((read, Mapped::new(pack.map())))
}

/// A model that was read without its vocabulary, and the kind of its tokenizer.
type Handed = (Checkpoint, String);

/// Hands the vocabulary over, and says what kind of tokenizer it makes.
fn give(checkpoint: &mut Checkpoint, hand: &dyn Fn(Vocabulary)) -> String {
    let kind = checkpoint.vocabulary.name();
    hand(std::mem::take(&mut checkpoint.vocabulary));
    kind
}

fn hash(file: &ModelFile) -> Result<Digest, SourceError> {
    let unreadable = |error| SourceError::Read { path: file.path().to_owned(), error };
    identity::of_file(file.file(), file.stamp().size()).map_err(unreadable)
}

/// A sum over all weights: `of` each matrix, `each` element of a vector.
fn total(weights: &Weights, of: impl Fn(&Matrix) -> usize, each: usize) -> u64 {
    let matrices: usize = weights.matrices().into_iter().map(of).sum();
    let elements: usize = weights.vectors().into_iter().map(<[f32]>::len).sum();
    (matrices + each * elements) as u64
}
