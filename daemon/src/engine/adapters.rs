//! The adapters of a model: where they come from, and what is known of them once they are loaded.

use std::path::PathBuf;

use super::source::SourceError;
use crate::kv::key::Digest;
use crate::model::AdapterId;
use crate::model::identity::Stamps;
use crate::model::load::{AdapterFiles, OpenError, Weights};

/// An adapter to serve with a model.
#[derive(Debug, Clone)]
pub struct AdapterSource {
    /// The name that requests use.
    pub name: String,
    /// The file or directory.
    pub path: PathBuf,
}

/// What is known about a loaded adapter.
#[derive(Debug)]
pub struct AdapterInfo {
    /// The name that requests use.
    pub name: String,
    /// Where it came from.
    pub path: PathBuf,
    /// Its field of a fingerprint: everything that it computes with.
    pub digest: Digest,
    /// The largest rank of its changes.
    pub rank: usize,
    /// Bytes of its matrices in memory.
    pub bytes: u64,
}

impl AdapterSource {
    /// Reads the adapter and has it change `weights` in the rows that carry `id`. With the states
    /// of its files.
    pub(super) fn load(
        &self,
        id: AdapterId,
        weights: &mut Weights,
    ) -> Result<(AdapterInfo, Stamps), SourceError> {
        let Self { name, path } = self;
        let refuse = |error| SourceError::Adapter {
            name: name.clone(),
            path: path.clone(),
            error: Box::new(error),
        };
        let files = AdapterFiles::open(path).map_err(refuse)?;
        let stamps = files.stamps();
        let adapter = files.load().map_err(|error| refuse(OpenError::Load(error)))?;
        if stamps.now() != stamps {
            return Err(SourceError::Changed { path: path.clone() });
        }
        weights.adapt(id, &adapter).map_err(|error| refuse(OpenError::Load(error)))?;
        let (digest, rank) = (adapter.digest(), adapter.rank());
        let bytes = adapter.bytes() as u64;
        Ok((AdapterInfo { name: name.clone(), path: path.clone(), digest, rank, bytes }, stamps))
    }
}
