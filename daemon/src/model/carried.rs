//! Which rows of a pass carry which adapter.

use super::load::Delta;
use super::{AdapterId, Batch};

/// The rows of each adapter, ascending; empty for those that none carries. The memory is used
/// again by the next pass.
#[derive(Debug, Default)]
pub(super) struct Carried(Vec<Vec<usize>>);

impl Carried {
    /// Takes in the rows of a pass.
    pub(super) fn fill(&mut self, batch: &Batch) {
        self.0.iter_mut().for_each(Vec::clear);
        for (slice, adapter) in batch.slices.iter().zip(&batch.adapters) {
            let Some(AdapterId(adapter)) = *adapter else { continue };
            if self.0.len() <= adapter {
                self.0.resize_with(adapter + 1, Vec::new);
            }
            self.0[adapter].extend(slice.clone());
        }
    }

    /// What adapters add to a layer in this pass, and to which rows. No row has two.
    pub(super) fn deltas<'a, M>(
        &'a self,
        all: &'a [(AdapterId, Delta<M>)],
    ) -> impl Iterator<Item = (&'a [usize], &'a Delta<M>)> {
        all.iter().filter_map(|(AdapterId(adapter), delta)| {
            let rows = self.0.get(*adapter)?;
            (!rows.is_empty()).then_some((&rows[..], delta))
        })
    }
}
