//! Models on this machine that nobody has named: where they lie, what they are, and whether they
//! could be served.
//!
//! A search walks the folders of [`Places`] and lists [`Candidate`]s by what folders and files
//! are called. An [`Outline`] is what loading one would give, but for its weights: heads are read by
//! the readers that load models, so whoever could not be served is told in the words that loading
//! has for it.
//!
//! Nothing is written. What lies there is untrusted: a search is bounded in depth, names
//! and time, visits no folder twice, wherever links lead, and waits for no pipe. Whatever cannot be
//! looked at is a candidate, too, with the reason.

mod folder;
mod hub;
mod ollama;
mod outline;
mod place;
mod search;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};

pub use self::outline::Outline;
pub use self::place::{Kind, Places};
use self::search::{DEEPEST, LONGEST, MOST, Search};
use super::load::{Files, Glimpse, OpenError};

/// A model, or what looks like one.
#[derive(Debug)]
pub struct Candidate {
    /// What it is called: `owner/name`, with a file behind a colon, where it came from Hugging
    /// Face, `name:tag` for Ollama's, else its path in its place.
    pub name: String,
    /// In which kind of place it lies.
    pub kind: Kind,
    /// Its file, or its directory.
    pub path: PathBuf,
    /// The other files of a model in parts.
    parts: Vec<PathBuf>,
    /// Why it is none, as far as names tell.
    unfit: Option<Unfit>,
}

/// Why something that was found cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum Unfit {
    /// The system refused to show it.
    #[error("{0}")]
    Unreadable(#[from] io::Error),
    /// Weights that change a model.
    #[error("an adapter, not a model of its own")]
    Adapter,
    /// Somebody is fetching it, or has stopped.
    #[error("its download is not complete")]
    Incomplete,
    /// Ollama's description of it is none.
    #[error("not a manifest of Ollama: {reason}")]
    Manifest {
        /// What is wrong with it.
        reason: String,
    },
    /// A model of Ollama's in another format.
    #[error("its manifest names no GGUF file")]
    NoGguf,
    /// A model of Ollama's whose file alone is another model.
    #[error("its manifest has an adapter, which Ollama applies to the model")]
    WithAdapter,
    /// A folder below so many others that it was left out.
    #[error("folders below {DEEPEST} others are not looked into")]
    Deep,
    /// A place that was left in the middle.
    #[error(
        "what is behind the first {MOST} files and folders, or took longer than {seconds} s to \
         find, was not looked at",
        seconds = LONGEST.as_secs()
    )]
    Many,
    /// It cannot be loaded.
    #[error(transparent)]
    Open(#[from] OpenError),
}

impl Candidate {
    /// Bytes of its files.
    pub fn bytes(&self) -> u64 {
        let paths = std::iter::once(&self.path).chain(&self.parts);
        paths.map(|path| Files::survey(path).bytes()).sum()
    }

    /// What its files say of it, whether or not it can be served.
    pub fn glimpse(&self) -> Glimpse {
        Glimpse::of(&self.path)
    }

    /// What loading it would give, but for the weights.
    ///
    /// # Errors
    /// Why it could not be loaded.
    pub fn outline(&mut self) -> Result<Outline, Unfit> {
        match self.unfit.take() {
            Some(unfit) => Err(unfit),
            None => Ok(Outline::read(&self.path)?),
        }
    }
}

impl Places {
    /// Everything that looks like a model, place after place.
    pub fn candidates(&self) -> impl Iterator<Item = Candidate> + '_ {
        let mut search = Search::default();
        self.all().iter().flat_map(move |place| search.place(place))
    }

    /// Where the model called `name` lies.
    pub fn find(&self, name: &str) -> Option<PathBuf> {
        let fits = |found: &Candidate| found.unfit.is_none() && found.name == name;
        self.candidates().find(fits).map(|found| found.path)
    }
}

/// The last part of a path.
fn last(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}
