//! TinyGPT's from-scratch architecture and GPT-2: pre-LayerNorm blocks, learned absolute
//! positions, biases everywhere, GELU, a head that is usually the embedding.

use tinygpt_kernels::Matrix;

use super::attention::Attending;
use super::executor::{Executor, Scores, positions};
use super::host::Buffer;
use super::load::{Dense, Experts, GptBlock, GptWeights, Linear, Mlp, Norm};
use super::{Batch, Model};
use crate::kv::device::{DeviceError, Tier};
use crate::kv::seq::KvSeq;

/// A GPT model.
#[derive(Debug)]
pub struct Gpt<E: Executor> {
    executor: E,
    weights: GptWeights<E::Matrix, E::Vector>,
}

impl<E: Executor> Gpt<E> {
    /// The model over `weights`, which `executor` runs.
    ///
    /// # Errors
    /// When the executor has no room for the weights.
    pub fn new(weights: GptWeights, executor: E) -> Result<Self, DeviceError> {
        Ok(Self { weights: weights.place(&executor)?, executor })
    }

    fn block<'e>(
        &'e self,
        layer: usize,
        x: &mut E::Rows<'e>,
        batch: &Batch,
        kv: &mut [&mut KvSeq],
    ) {
        let (e, config, block) =
            (&self.executor, &self.weights.config, &self.weights.blocks[layer]);
        let head_dim = config.width / config.heads;
        let scores = Scores::of(config.heads, head_dim);
        let attending = Attending::<E> { layer, scores, head_dim, eps: config.eps, turn: None };
        let attended = attending.run(e, &block.attention, x, batch, kv);
        e.add_linear(x, &e.input(attended), &block.attention.o);

        let input = e.normed(x, &block.norm, config.eps);
        match &block.mlp {
            Mlp::Dense(dense) => e.add_linear(x, &self.inner(&input, dense), &dense.fc_out),
            Mlp::Experts(Experts { router, experts }) => {
                let top = config.experts.map_or(1, |experts| experts.top);
                let expert = |expert: usize, x| {
                    e.linear(&self.inner(&x, &experts[expert]), &experts[expert].fc_out)
                };
                e.add(x, &e.mix(&input, &e.linear(&input, router), top, expert));
            }
        }
    }

    /// `gelu(fc_in x)`, `[T][M]`.
    fn inner<'e>(&'e self, x: &E::Input<'e>, dense: &Dense<E::Matrix, E::Vector>) -> E::Input<'e> {
        let mut inner = self.executor.linear(x, &dense.fc_in);
        self.executor.gelu(&mut inner, self.weights.config.activation);
        self.executor.input(inner)
    }
}

impl GptWeights {
    /// The same weights, where `executor` keeps them.
    fn place<E: Executor>(
        self,
        executor: &E,
    ) -> Result<GptWeights<E::Matrix, E::Vector>, DeviceError> {
        Ok(GptWeights {
            config: self.config,
            token_embedding: executor.matrix(self.token_embedding)?,
            position_embedding: executor.vector(self.position_embedding)?,
            final_norm: self.final_norm.place(executor)?,
            head: self.head.map(|head| executor.matrix(head)).transpose()?,
            blocks: self
                .blocks
                .into_iter()
                .map(|block| block.place(executor))
                .collect::<Result<_, _>>()?,
        })
    }

    pub(super) fn matrices(&self) -> Vec<&Matrix> {
        let linears = self.blocks.iter().flat_map(GptBlock::linears);
        let blocks = linears.map(|linear| &linear.weight);
        std::iter::once(&self.token_embedding).chain(&self.head).chain(blocks).collect()
    }

    pub(super) fn vectors(&self) -> Vec<&[f32]> {
        let norms = self.blocks.iter().flat_map(|block| block.norms());
        let linears = self.blocks.iter().flat_map(GptBlock::linears);
        let biases = linears.filter_map(|linear| linear.bias.as_deref());
        let norms = norms.chain([&self.final_norm]).flat_map(Norm::vectors);
        norms.chain(biases).chain([&*self.position_embedding]).collect()
    }
}

impl GptBlock {
    fn place<E: Executor>(
        self,
        executor: &E,
    ) -> Result<GptBlock<E::Matrix, E::Vector>, DeviceError> {
        Ok(GptBlock {
            attention: self.attention.place(executor)?,
            norm: self.norm.place(executor)?,
            mlp: self.mlp.place(executor)?,
        })
    }

    fn linears(&self) -> impl Iterator<Item = &Linear> {
        self.attention.linears().into_iter().chain(self.mlp.linears())
    }

    fn norms(&self) -> impl Iterator<Item = &Norm> {
        self.attention.norms().chain([&self.norm])
    }
}

impl Mlp {
    fn place<E: Executor>(self, executor: &E) -> Result<Mlp<E::Matrix, E::Vector>, DeviceError> {
        Ok(match self {
            Self::Dense(dense) => Mlp::Dense(dense.place(executor)?),
            Self::Experts(Experts { router, experts }) => Mlp::Experts(Experts {
                router: router.place(executor)?,
                experts: experts
                    .into_iter()
                    .map(|expert| expert.place(executor))
                    .collect::<Result<_, _>>()?,
            }),
        })
    }

    fn linears(&self) -> Vec<&Linear> {
        match self {
            Self::Dense(dense) => dense.linears().to_vec(),
            Self::Experts(Experts { router, experts }) => {
                std::iter::once(router).chain(experts.iter().flat_map(Dense::linears)).collect()
            }
        }
    }
}

impl Dense {
    fn place<E: Executor>(self, executor: &E) -> Result<Dense<E::Matrix, E::Vector>, DeviceError> {
        Ok(Dense { fc_in: self.fc_in.place(executor)?, fc_out: self.fc_out.place(executor)? })
    }

    fn linears(&self) -> [&Linear; 2] {
        [&self.fc_in, &self.fc_out]
    }
}

impl<E: Executor> Model for Gpt<E> {
    fn prepare(&self, kv: &mut KvSeq, rows: usize) -> Result<(), DeviceError> {
        self.executor.prepare(kv, rows)
    }

    fn forward(&self, batch: &Batch, kv: &mut [&mut KvSeq]) -> Result<Buffer<'_>, DeviceError> {
        let (e, weights) = (&self.executor, &self.weights);
        let mut x = e.embed(batch, &weights.token_embedding);
        e.add_learned(&mut x, &weights.position_embedding, positions(batch, kv));
        for layer in 0..weights.blocks.len() {
            self.block(layer, &mut x, batch, kv);
        }
        let wanted = e.gather(&x, &batch.wanted);
        e.finish(e.norm(&wanted, &weights.final_norm, weights.config.eps), batch, kv)
    }

    fn head(&self, hidden: &[f32]) -> Result<Buffer<'_>, DeviceError> {
        let (e, weights) = (&self.executor, &self.weights);
        let head = weights.head.as_ref().unwrap_or(&weights.token_embedding);
        e.logits(hidden, weights.config.width, head)
    }

    fn tier(&self) -> Option<&Tier> {
        self.executor.tier()
    }
}
