//! The half of a block that all architectures have.

use super::Batch;
use super::executor::{AttentionOf, Executor, Scores};
use crate::kv::seq::KvSeq;

/// How a layer attends.
pub(super) struct Attending<'a, 'e, E: Executor + 'e> {
    /// Which rows of the caches it has.
    pub(super) layer: usize,
    pub(super) scores: Scores,
    /// Elements of a head.
    pub(super) head_dim: usize,
    /// Of the norms.
    pub(super) eps: f32,
    /// The pass's turns, and which of them the layer has; `None` where positions are not told.
    pub(super) turn: Option<(&'a E::Angles<'e>, usize)>,
}

impl<'e, E: Executor> Attending<'_, 'e, E> {
    /// What the rows `x [T][C]` see, `[T][H*D]`; adds their keys and values to the caches.
    pub(super) fn run(
        &self,
        e: &'e E,
        weights: &AttentionOf<E>,
        x: &E::Rows<'e>,
        batch: &Batch,
        kv: &mut [&mut KvSeq],
    ) -> E::Rows<'e> {
        let input = e.normed(x, &weights.norm, self.eps);
        let [mut q, mut k, v] = e.linears(&input, [&weights.q, &weights.k, &weights.v]);
        for (rows, norm) in [(&mut q, &weights.q_norm), (&mut k, &weights.k_norm)] {
            if let Some(norm) = norm {
                *rows = e.norm(rows, norm, self.eps);
            }
            if let Some((angles, rope)) = self.turn {
                e.rotate(angles, rope, rows, self.head_dim);
            }
        }
        e.attend(self.layer, batch, kv, self.scores, [&q, &k, &v])
    }
}
