//! The files of a model: one, or those of a directory.
//!
//! They are opened together, each with its [`Stamp`] before anything of it was read, so that who
//! reads them later can tell whether they are still what was opened.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use super::hf::Directory;
use super::input::Input;
use super::{Checkpoint, LoadError, Packing};
use crate::kv::key::Digest;
use crate::model::identity::{Stamp, Stamps};
use crate::sys;

/// A file that was opened, and its state before that.
#[derive(Debug)]
pub struct ModelFile {
    path: PathBuf,
    file: File,
    stamp: Stamp,
}

/// What a model is read from.
#[derive(Debug)]
pub struct Files(Form);

#[derive(Debug)]
enum Form {
    Single(ModelFile),
    Directory(Directory),
}

/// Why the files of a model could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The system refused one.
    #[error("{path}: {error}", path = path.display())]
    Read {
        /// Which one.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// They are not the files of a model.
    #[error(transparent)]
    Load(#[from] LoadError),
}

impl Files {
    /// Opens the model at `path`: a file, or a directory as Hugging Face's libraries save one.
    ///
    /// # Errors
    /// When a file that is needed is not there, or cannot be opened.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        Ok(Self(match path.is_dir() {
            true => Form::Directory(Directory::open(path)?),
            // What the user named is waited for, a pipe too: what comes out of it is refused then.
            false => Form::Single(ModelFile::new(path, File::open(path))?),
        }))
    }

    /// The same of what was found and nobody named, so a pipe is not waited for.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_regular(path: &Path) -> Result<Self, OpenError> {
        match path.is_dir() {
            true => Self::open(path),
            false => Ok(Self(Form::Single(ModelFile::open(path)?))),
        }
    }

    /// What is at `path` now, as far as it may count.
    pub fn survey(path: &Path) -> Stamps {
        match path.is_dir() {
            true => super::hf::survey(path),
            false => Stamps::new([(path.to_owned(), Stamp::of(path).ok())]),
        }
    }

    /// The files with the weights, whose contents are who the model is.
    pub fn weights(&self) -> &[ModelFile] {
        match &self.0 {
            Form::Single(file) => std::slice::from_ref(file),
            Form::Directory(directory) => directory.weights(),
        }
    }

    /// The identity of the model whose files with weights have these contents.
    pub fn identity(&self, contents: &[Digest]) -> Digest {
        match (&self.0, contents) {
            (Form::Single(_), [only]) => *only,
            _ => {
                Digest::of("directory", &contents.iter().flat_map(|one| one.0).collect::<Vec<_>>())
            }
        }
    }

    /// The states of all files, of those that are not there, too.
    pub fn stamps(&self) -> Stamps {
        match &self.0 {
            Form::Single(ModelFile { path, stamp, .. }) => Stamps::one(path, *stamp),
            Form::Directory(directory) => directory.stamps(),
        }
    }

    /// Reads the model, with the matrices that `packing` gives.
    ///
    /// # Errors
    /// Every way in which the files are not a model that can run, or cannot be read: see
    /// [`LoadError`].
    pub fn load(&self, packing: &Packing<'_>) -> Result<Checkpoint, LoadError> {
        match &self.0 {
            Form::Single(file) => super::read(file.input()?, packing),
            Form::Directory(directory) => directory.load(packing),
        }
    }
}

impl ModelFile {
    /// Opens a file, without waiting for one that is none.
    pub(super) fn open(path: &Path) -> Result<Self, OpenError> {
        Self::new(path, sys::file::open(path))
    }

    fn new(path: &Path, opened: io::Result<File>) -> Result<Self, OpenError> {
        let unreadable = |error| OpenError::Read { path: path.to_owned(), error };
        let file = opened.map_err(unreadable)?;
        let metadata = file.metadata().map_err(unreadable)?;
        Ok(Self { path: path.to_owned(), file, stamp: Stamp::new(&metadata) })
    }

    /// Where it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Its state before it was read.
    pub fn stamp(&self) -> Stamp {
        self.stamp
    }

    /// Its name in its directory.
    pub(super) fn name(&self) -> String {
        let name = self.path.file_name().unwrap_or(self.path.as_os_str());
        name.to_string_lossy().into_owned()
    }

    /// Its bytes.
    pub(super) fn input(&self) -> Result<Input<'_>, LoadError> {
        Input::file(&self.file)
    }
}
