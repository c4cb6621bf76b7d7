//! What the cache directory keeps of models between two starts: what their files hashed to, and
//! their packed weights.
//!
//! All of it is a cache. What is missing or wrong is made again, and never an error.

use crate::kv::key::Digest;
use crate::model::identity::{Identities, Stamp};
use crate::model::load::{Pack, Unkept};
use crate::store::{Side, StoreHandle};

/// What is kept of models.
#[derive(Debug)]
pub(super) struct Kept {
    identities: Identities,
    store: StoreHandle,
}

impl Kept {
    /// What the store's directory keeps.
    pub(super) fn by(store: &StoreHandle) -> Self {
        Self { identities: Identities::in_dir(store.dir()), store: store.clone() }
    }

    /// What the file with this stamp hashed to, if that is known.
    pub(super) fn recall(&self, stamp: &Stamp) -> Option<Digest> {
        self.identities.recall(stamp)
    }

    /// Remembers what a file hashed to.
    pub(super) fn remember(&self, stamp: Stamp, weights: Digest) {
        if let Err(error) = self.identities.remember(stamp, weights) {
            tracing::warn!(%error, "the model will be hashed again at the next start");
        }
    }

    /// The packed weights of the file with these contents, if they were kept, to be verified.
    pub(super) fn pack(&self, weights: Digest) -> Option<Pack> {
        let pack = Pack::open(self.store.side(weights.short())?, weights);
        pack.inspect_err(|error| self.forget_pack(weights, error)).ok()
    }

    /// Drops packed weights that turned out not to be what they should be.
    pub(super) fn forget_pack(&self, weights: Digest, why: &dyn std::error::Error) {
        tracing::warn!(%weights, %why, "packed weights are dropped, and packed again");
        self.drop_pack(weights);
    }

    /// Drops packed weights that nobody asks for any more.
    pub(super) fn drop_pack(&self, weights: Digest) {
        self.store.drop_side(weights.short());
    }

    /// Has packed weights written in the background.
    pub(super) fn keep_pack(&self, unkept: Unkept) {
        let (key, bytes) = (unkept.weights().short(), unkept.file_bytes());
        self.store.keep_side(Side { key, bytes, pieces: Box::new(unkept.pieces()) });
    }
}
