//! The operations that architectures are written in, whoever runs them.
//!
//! An architecture is written once over [`Executor`]; [`Host`](super::host::Host) runs it on this
//! machine's processor, [`Device`](super::device::Device) elsewhere. How weights are kept, where
//! rows lie and what a product reads is the executor's business.
//!
//! Operations do not fail: an executor that can lose a row hands on why, up to whoever wants to
//! see its numbers.
//!
//! Shapes: T rows, C width, H query heads, G KV heads, D head size, K inputs and N outputs.

use std::fmt::Debug;
use std::ops::Range;

use tinygpt_kernels::{Gate, Gelu, Matrix, Rope, Shape};

use super::Batch;
use super::host::Buffer;
use super::load::{Attention, Delta, Linear, Norm};
use crate::kv::device::{DeviceError, Tier};
use crate::kv::layout::{LayerShape, Layout};
use crate::kv::seq::KvSeq;

/// Weights of a product, where an executor keeps them.
pub type LinearOf<E> = Linear<<E as Executor>::Matrix, <E as Executor>::Vector>;

/// Weights of a normalisation, where an executor keeps them.
pub type NormOf<E> = Norm<<E as Executor>::Vector>;

/// Weights of the half of a block that attends, where an executor keeps them.
pub type AttentionOf<E> = Attention<<E as Executor>::Matrix, <E as Executor>::Vector>;

/// How queries score keys.
#[derive(Clone, Copy, Debug)]
pub struct Scores {
    /// H
    pub heads: usize,
    /// What the product of a query and a key is multiplied with.
    pub scale: f32,
    /// A score then becomes `cap * tanh(score / cap)`.
    pub softcap: Option<f32>,
}

impl Scores {
    /// The usual ones: `1 / sqrt(D)`.
    pub fn of(heads: usize, head_dim: usize) -> Self {
        Self { heads, scale: 1.0 / (head_dim as f32).sqrt(), softcap: None }
    }

    /// With what the caches of a layer look like.
    pub(super) fn shape(self, layout: &Layout, layer: usize) -> Shape {
        let Self { heads, scale, softcap } = self;
        let LayerShape { kv_heads, k_dim, v_dim } = layout.shape(layer);
        let (element, window) = (layout.codec().element(), layout.window(layer).tokens());
        Shape { heads, kv_heads, k_dim, v_dim, element, scale, softcap, window }
    }
}

/// Runs operations on rows.
pub trait Executor: Debug {
    /// Weights `[N][K]`.
    type Matrix: Debug;
    /// Weights that are no product's: gains, biases, learned positions.
    type Vector: Debug;
    /// Numbers `[T][N]`.
    type Rows<'e>
    where
        Self: 'e;
    /// Rows on their way into products, made once for all the products that read them.
    type Input<'e>
    where
        Self: 'e;
    /// What turns rows to their positions by each of several ropes, made once for all layers.
    type Angles<'e>
    where
        Self: 'e;

    /// Takes in a matrix.
    ///
    /// # Errors
    /// When there is no room for it; the same below.
    fn matrix(&self, packed: Matrix) -> Result<Self::Matrix, DeviceError>;

    /// Takes in a vector.
    #[expect(clippy::missing_errors_doc, reason = "above")]
    fn vector(&self, numbers: Vec<f32>) -> Result<Self::Vector, DeviceError>;

    /// Begins a pass over `batch` with its tokens' rows `[T][C]` of an embedding matrix `[V][C]`:
    /// from then on products know which rows carry which adapter.
    fn embed(&self, batch: &Batch, embedding: &Self::Matrix) -> Self::Rows<'_>;

    /// `x += table[position]`, `x [T][C]` and `table [positions][C]`.
    fn add_learned(
        &self,
        x: &mut Self::Rows<'_>,
        table: &Self::Vector,
        positions: impl Iterator<Item = u32>,
    );

    /// The rows `[T][C]` at `wanted`.
    fn gather<'e>(&'e self, x: &Self::Rows<'e>, wanted: &[usize]) -> Self::Rows<'e>;

    /// `x *= factor`, `x [T][C]`.
    fn scale(&self, x: &mut Self::Rows<'_>, factor: f32);

    /// RMSNorm, or LayerNorm where there is a bias: `[T][C]`. Where a gain is shorter than a row,
    /// each piece of its length is normalised by itself: heads `[T][H][D]` with a gain `[D]`.
    fn norm<'e>(&'e self, x: &Self::Rows<'e>, layer: &NormOf<Self>, eps: f32) -> Self::Rows<'e>;

    /// Rows of K for products with weights that may be quantised.
    fn input<'e>(&'e self, x: Self::Rows<'e>) -> Self::Input<'e>;

    /// The rows of a normalisation, for products.
    fn normed<'e>(&'e self, x: &Self::Rows<'e>, layer: &NormOf<Self>, eps: f32) -> Self::Input<'e> {
        self.input(self.norm(x, layer, eps))
    }

    /// `x [T][K] · Wᵀ + b`: `[T][N]`.
    fn multiply<'e>(
        &'e self,
        x: &Self::Input<'e>,
        weight: &Self::Matrix,
        bias: Option<&Self::Vector>,
    ) -> Self::Rows<'e>;

    /// `y += up (down x)` in the rows whose adapter changes the layer, `x [T][K]` and `y [T][N]`.
    /// Other rows are left as they are, to the bit.
    fn adapt<'e>(&'e self, y: &mut Self::Rows<'e>, x: &Self::Input<'e>, layer: &LinearOf<Self>);

    /// The outputs of a layer, of each row with its adapter.
    fn linear<'e>(&'e self, x: &Self::Input<'e>, layer: &LinearOf<Self>) -> Self::Rows<'e> {
        let mut y = self.multiply(x, &layer.weight, layer.bias.as_ref());
        self.adapt(&mut y, x, layer);
        y
    }

    /// `x += linear(y)`, `x [T][N]` and `y [T][K]`.
    fn add_linear<'e>(
        &'e self,
        x: &mut Self::Rows<'e>,
        y: &Self::Input<'e>,
        layer: &LinearOf<Self>,
    ) {
        self.add(x, &self.linear(y, layer));
    }

    /// The outputs of several layers for the same rows.
    fn linears<'e, const P: usize>(
        &'e self,
        x: &Self::Input<'e>,
        layers: [&LinearOf<Self>; P],
    ) -> [Self::Rows<'e>; P] {
        layers.map(|layer| self.linear(x, layer))
    }

    /// `how(gate(x)) * up(x)`: `[T][N]`.
    fn gated<'e>(
        &'e self,
        x: &Self::Input<'e>,
        how: Gate,
        gate: &LinearOf<Self>,
        up: &LinearOf<Self>,
    ) -> Self::Rows<'e> {
        let [gate, up] = self.linears(x, [gate, up]);
        self.gate(how, &gate, &up)
    }

    /// For each row, what the `top` experts with its largest `scores [T][E]` make of it, weighted
    /// and added in the order of the experts; `expert` runs one on some rows. `[T][N]`.
    ///
    /// Weights are softmax probabilities, over their sum where they are more than one. Among equal
    /// scores the earlier expert wins.
    fn mix<'e>(
        &'e self,
        x: &Self::Input<'e>,
        scores: &Self::Rows<'e>,
        top: usize,
        expert: impl Fn(usize, Self::Input<'e>) -> Self::Rows<'e>,
    ) -> Self::Rows<'e>;

    /// `x += y`, both `[T][N]`.
    fn add<'e>(&'e self, x: &mut Self::Rows<'e>, y: &Self::Rows<'e>);

    /// `how(gate) * up`, all `[T][N]`.
    fn gate<'e>(&'e self, how: Gate, gate: &Self::Rows<'e>, up: &Self::Rows<'e>) -> Self::Rows<'e>;

    /// `x = gelu(x)`.
    fn gelu(&self, x: &mut Self::Rows<'_>, how: Gelu);

    /// What turns rows at `positions` by any of `ropes`.
    fn angles<'e>(
        &'e self,
        ropes: &'e [Rope],
        positions: impl Iterator<Item = u32>,
    ) -> Self::Angles<'e>;

    /// Turns rows `x [T][H][dim]` by one of the ropes.
    fn rotate(&self, angles: &Self::Angles<'_>, rope: usize, x: &mut Self::Rows<'_>, dim: usize);

    /// Makes ready to compute `rows` more rows of a sequence.
    ///
    /// # Errors
    /// When there is no room for them.
    fn prepare(&self, kv: &mut KvSeq, rows: usize) -> Result<(), DeviceError>;

    /// Adds `layer`'s keys `k [T][G*D]` and values `v [T][G*D]` to the caches, then attends with
    /// `q [T][H*D]`, each row over what the layer's window shows of its own sequence up to itself:
    /// `[T][H*D]`. The sequences are prepared for their rows.
    ///
    /// Rows are attended in stored form, never as they were computed, so that a row of this slice
    /// counts for later rows exactly as it will for a later request.
    fn attend<'e>(
        &'e self,
        layer: usize,
        batch: &Batch,
        kv: &mut [&mut KvSeq],
        scores: Scores,
        qkv: [&Self::Rows<'e>; 3],
    ) -> Self::Rows<'e>;

    /// Rows `[T][width]` of numbers that were computed before.
    fn upload(&self, numbers: &[f32], width: usize) -> Self::Rows<'_>;

    /// The numbers of rows.
    ///
    /// # Errors
    /// When one could not be computed.
    fn download<'e>(&'e self, x: Self::Rows<'e>) -> Result<Buffer<'e>, DeviceError>;

    /// The numbers of `hidden [T][width] · Wᵀ`, which was computed before.
    ///
    /// # Errors
    /// As for [`download`](Self::download).
    fn logits(
        &self,
        hidden: &[f32],
        width: usize,
        head: &Self::Matrix,
    ) -> Result<Buffer<'_>, DeviceError> {
        self.download(self.multiply(&self.input(self.upload(hidden, width)), head, None))
    }

    /// Ends a pass over `batch`: the numbers of its wanted rows `x`, and in `kv` the rows of all
    /// layers.
    ///
    /// # Errors
    /// When a row could not be computed.
    fn finish<'e>(
        &'e self,
        x: Self::Rows<'e>,
        batch: &Batch,
        kv: &mut [&mut KvSeq],
    ) -> Result<Buffer<'e>, DeviceError>;

    /// Where rows of sequences are kept for others, if that is elsewhere than in the host's
    /// blocks.
    fn tier(&self) -> Option<&Tier>;
}

impl Linear {
    /// The same weights, where `executor` keeps them.
    pub(super) fn place<E: Executor>(self, executor: &E) -> Result<LinearOf<E>, DeviceError> {
        let deltas = self.deltas.into_iter();
        let deltas = deltas.map(|(adapter, delta)| Ok((adapter, delta.place(executor)?)));
        Ok(Linear {
            weight: executor.matrix(self.weight)?,
            bias: self.bias.map(|bias| executor.vector(bias)).transpose()?,
            deltas: deltas.collect::<Result<_, DeviceError>>()?,
        })
    }
}

impl Delta {
    fn place<E: Executor>(self, executor: &E) -> Result<Delta<E::Matrix>, DeviceError> {
        Ok(Delta { down: executor.matrix(self.down)?, up: executor.matrix(self.up)? })
    }
}

impl Norm {
    /// The same weights, where `executor` keeps them.
    pub(super) fn place<E: Executor>(self, executor: &E) -> Result<NormOf<E>, DeviceError> {
        Ok(Norm {
            weight: executor.vector(self.weight)?,
            bias: self.bias.map(|bias| executor.vector(bias)).transpose()?,
        })
    }
}

impl Attention {
    /// The same weights, where `executor` keeps them.
    pub(super) fn place<E: Executor>(self, executor: &E) -> Result<AttentionOf<E>, DeviceError> {
        Ok(Attention {
            norm: self.norm.place(executor)?,
            q: self.q.place(executor)?,
            k: self.k.place(executor)?,
            v: self.v.place(executor)?,
            o: self.o.place(executor)?,
            q_norm: self.q_norm.map(|norm| norm.place(executor)).transpose()?,
            k_norm: self.k_norm.map(|norm| norm.place(executor)).transpose()?,
        })
    }

    pub(super) fn linears(&self) -> [&Linear; 4] {
        [&self.q, &self.k, &self.v, &self.o]
    }

    pub(super) fn norms(&self) -> impl Iterator<Item = &Norm> {
        std::iter::once(&self.norm).chain(&self.q_norm).chain(&self.k_norm)
    }
}

/// The position of each row of `batch`.
pub(super) fn positions(batch: &Batch, kv: &[&mut KvSeq]) -> impl Iterator<Item = u32> {
    let row = |position| u32::try_from(position).expect("a context has fewer than 2^32 positions");
    let slice = move |(slice, seq): (&Range<usize>, &&mut KvSeq)| {
        let first = seq.len();
        (0..slice.len()).map(move |i| row(first + i))
    };
    batch.slices.iter().zip(kv).flat_map(slice)
}
