//! What loading a model would give, but for its weights.

use std::path::Path;

use crate::model::Dimensions;
use crate::model::load::{Checkpoint, Files, Glimpse, OpenError, Packing, Vocabulary};

/// A model that could be loaded.
#[derive(Debug)]
pub struct Outline {
    /// What its files say, checked.
    pub glimpse: Glimpse,
    /// How many numbers its weights are.
    pub parameters: u64,
    /// What its tokenizer would be built from.
    pub vocabulary: Vocabulary,
}

impl Outline {
    /// Reads the heads of the model at `path`, and of its tensors those that are no matrices.
    ///
    /// # Errors
    /// Why it could not be loaded.
    pub fn read(path: &Path) -> Result<Self, OpenError> {
        let checkpoint = Files::open_regular(path)?.load(&Packing::outline())?;
        let Dimensions { context, .. } = checkpoint.weights.dimensions();
        let Checkpoint { format, architecture, quantisation, weights, vocabulary, .. } = checkpoint;
        let glimpse = Glimpse { format, architecture, quantisation, context };
        Ok(Self { glimpse, parameters: weights.parameters(), vocabulary })
    }
}
