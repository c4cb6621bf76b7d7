//! What an adapter changes, in the weights of a model.

use std::borrow::Cow;

use tinygpt_kernels::{Convention, Matrix};

use super::target::Part;
use super::{Adapter, Change, Target};
use crate::model::AdapterId;
use crate::model::load::{
    Attention, Delta, GemmaBlock, GptBlock, Linear, LlamaBlock, LlamaConfig, LoadError, Mlp,
    Weights,
};

impl Weights {
    /// Has `adapter` change the layers that it names in the rows that carry `id`.
    ///
    /// # Errors
    /// When it does not fit the model.
    pub fn adapt(&mut self, id: AdapterId, adapter: &Adapter) -> Result<(), LoadError> {
        adapter.base.as_ref().map_or(Ok(()), |base| base.check(&self.dimensions()))?;
        adapter.changes.iter().try_for_each(|change| self.change(id, change))
    }

    fn change(&mut self, id: AdapterId, change: &Change) -> Result<(), LoadError> {
        let sizes = self.sizes(change)?;
        let (rank, [_, inputs]) = (change.rank, change.shape());
        let down = Matrix::from_f32(rank, inputs, &change.down);
        let mut rest = &change.up[..];
        for (part, n) in change.target.parts.iter().zip(sizes) {
            let (rows, behind) = rest.split_at(n * rank);
            rest = behind;
            let rows = match self.turned(*part, change)? {
                Some(head_dim) => Cow::Owned(interleaved(rows, rank, head_dim)),
                None => Cow::Borrowed(rows),
            };
            let up = Matrix::from_f32(n, rank, &rows);
            self.part(change, *part)?.add(id, Delta { down: down.clone(), up }, change)?;
        }
        Ok(())
    }

    /// How many outputs each part has, which together are those that `change` has.
    fn sizes(&mut self, change: &Change) -> Result<Vec<usize>, LoadError> {
        let found @ [_, inputs] = change.shape();
        let (mut sizes, mut expected) = (Vec::new(), found);
        for part in change.target.parts {
            let weight = &self.part(change, *part)?.weight;
            sizes.push(weight.n());
            if weight.k() != inputs {
                expected[1] = weight.k();
            }
        }
        expected[0] = sizes.iter().sum();
        if found != expected {
            return Err(LoadError::AdapterShape { module: change.module.clone(), found, expected });
        }
        Ok(sizes)
    }

    fn part(&mut self, change: &Change, part: Part) -> Result<&mut Linear, LoadError> {
        let layers = self.dimensions().layers.len();
        let Target { layer, .. } = change.target;
        let found = match self {
            Self::Gpt(weights) => weights.blocks.get_mut(layer).and_then(|it| it.part(part)),
            Self::Llama(weights) => weights.blocks.get_mut(layer).and_then(|it| it.part(part)),
            Self::Gemma(weights) => weights.blocks.get_mut(layer).and_then(|it| it.part(part)),
        };
        found.ok_or_else(|| LoadError::NotAdaptable { module: change.module.clone(), layers })
    }

    /// The size of heads whose rows lie in another order than those that adapters are trained on:
    /// GGUF files of some architectures have pairs side by side that turn together.
    fn turned(&self, part: Part, change: &Change) -> Result<Option<usize>, LoadError> {
        let Self::Llama(weights) = self else { return Ok(None) };
        let LlamaConfig { head_dim, ref ropes, .. } = weights.config;
        let rope = ropes.first().filter(|rope| rope.convention == Convention::Interleaved);
        match rope.filter(|_| matches!(part, Part::Q | Part::K)) {
            None => Ok(None),
            Some(rope) if rope.dims == head_dim => Ok(Some(head_dim)),
            Some(rope) => Err(LoadError::Unsupported {
                what: format!("\"{}\"", change.module),
                detail: format!("{} of {head_dim} elements of a head turn", rope.dims),
            }),
        }
    }
}

/// The rows `[H][2][D/2]` of `[H D, rank]` as `[H][D/2][2]`.
fn interleaved(rows: &[f32], rank: usize, head_dim: usize) -> Vec<f32> {
    let half = head_dim / 2;
    let head = |head: &[f32]| -> Vec<f32> {
        let row = |at: usize| &head[at * rank..][..rank];
        (0..half).flat_map(|i| [row(i), row(half + i)].concat()).collect()
    };
    rows.chunks_exact(head_dim * rank).flat_map(head).collect()
}

impl Linear {
    fn add(&mut self, id: AdapterId, delta: Delta, change: &Change) -> Result<(), LoadError> {
        if self.deltas.iter().any(|(known, _)| *known == id) {
            let name = change.module.clone();
            return Err(LoadError::Duplicate { what: "the layer of", name });
        }
        self.deltas.push((id, delta));
        Ok(())
    }
}

impl Attention {
    fn part(&mut self, part: Part) -> Option<&mut Linear> {
        match part {
            Part::Q => Some(&mut self.q),
            Part::K => Some(&mut self.k),
            Part::V => Some(&mut self.v),
            Part::O => Some(&mut self.o),
            _ => None,
        }
    }
}

impl GptBlock {
    fn part(&mut self, part: Part) -> Option<&mut Linear> {
        match (part, &mut self.mlp) {
            (Part::FcIn, Mlp::Dense(dense)) => Some(&mut dense.fc_in),
            (Part::FcOut, Mlp::Dense(dense)) => Some(&mut dense.fc_out),
            _ => self.attention.part(part),
        }
    }
}

impl LlamaBlock {
    fn part(&mut self, part: Part) -> Option<&mut Linear> {
        let Self { attention, gate, up, down, .. } = self;
        gated(part, [gate, up, down], attention)
    }
}

impl GemmaBlock {
    fn part(&mut self, part: Part) -> Option<&mut Linear> {
        let Self { attention, gate, up, down, .. } = self;
        gated(part, [gate, up, down], attention)
    }
}

/// The part of a block whose MLP is gated.
fn gated<'w>(
    part: Part,
    [gate, up, down]: [&'w mut Linear; 3],
    attention: &'w mut Attention,
) -> Option<&'w mut Linear> {
    match part {
        Part::Gate => Some(gate),
        Part::Up => Some(up),
        Part::Down => Some(down),
        _ => attention.part(part),
    }
}
