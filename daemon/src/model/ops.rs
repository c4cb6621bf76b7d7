//! The operations that architectures are written in, for the host executor.
//!
//! Shapes: T rows, C width, H query heads, G KV heads, D head size, N outputs.

use std::ops::Range;

use tinygpt_kernels::{Matrix, Pool, Sequence, Shape};

use super::Batch;
use super::load::{Linear, Norm};
use crate::kv::seq::KvSeq;

/// `out [T][N] = x [T][K] · Wᵀ + b`.
pub fn linear(pool: &Pool, x: &[f32], layer: &Linear) -> Vec<f32> {
    product(pool, x, &layer.weight, layer.bias.as_deref())
}

/// `out [T][N] = x [T][K] · Wᵀ + b` for a bare matrix.
pub fn product(pool: &Pool, x: &[f32], weight: &Matrix, bias: Option<&[f32]>) -> Vec<f32> {
    let rows = x.len() / weight.k();
    let mut out = vec![0.0; rows * weight.n()];
    tinygpt_kernels::linear(pool, x, rows, weight, bias, &mut out);
    out
}

/// RMSNorm, or LayerNorm where there is a bias: `out [T][C]`.
pub fn norm(x: &[f32], layer: &Norm, eps: f32) -> Vec<f32> {
    use tinygpt_kernels::norm::{layer_norm, rms_norm};
    let mut out = vec![0.0; x.len()];
    match &layer.bias {
        Some(bias) => layer_norm(x, &layer.weight, Some(bias), eps, &mut out),
        None => rms_norm(x, &layer.weight, eps, &mut out),
    }
    out
}

/// `x += y`.
pub fn add(x: &mut [f32], y: &[f32]) {
    tinygpt_kernels::norm::add(x, y);
}

/// The rows `[T][C]` of an embedding matrix `[V][C]`.
pub fn embed(tokens: &[u32], embedding: &Matrix) -> Vec<f32> {
    let mut out = vec![0.0; tokens.len() * embedding.k()];
    for (row, token) in out.chunks_exact_mut(embedding.k()).zip(tokens) {
        embedding.row(*token as usize, row);
    }
    out
}

/// The position of each row of `batch`.
pub fn positions(batch: &Batch, kv: &[&mut KvSeq]) -> Vec<u32> {
    let row = |position| u32::try_from(position).expect("a context has fewer than 2^32 positions");
    let slice = |(slice, seq): (&Range<usize>, &&mut KvSeq)| {
        let first = seq.len();
        (0..slice.len()).map(move |i| row(first + i))
    };
    batch.slices.iter().zip(kv).flat_map(slice).collect()
}

/// Writes the rows' keys `k [T][G*D]` and values `v [T][G*D]` into the caches, then attends with
/// `q [T][H*D]`, each row over its own sequence up to itself: `out [T][H*D]`.
///
/// Rows are attended in stored form, never as they were computed, so that a row of this slice
/// counts for later rows exactly as it will for a later request.
pub fn attend(
    pool: &Pool,
    layer: usize,
    batch: &Batch,
    kv: &mut [&mut KvSeq],
    heads: usize,
    [q, k, v]: [&[f32]; 3],
) -> Vec<f32> {
    let Some(layout) = kv.first().map(|seq| seq.layout().clone()) else { return Vec::new() };
    let rows = layout.shape(layer);
    let (k_row, v_row) = (rows.kv_heads * rows.k_dim, rows.kv_heads * rows.v_dim);
    for (slice, seq) in batch.slices.iter().zip(kv.iter_mut()) {
        let (k, v) = (&k[scale(slice, k_row)], &v[scale(slice, v_row)]);
        seq.write(layer, k, v);
    }
    let end = |(slice, seq): (&Range<usize>, &&mut KvSeq)| seq.len() + slice.len();
    let pairs = || batch.slices.iter().zip(kv.iter());
    let views: Vec<_> = pairs().map(|pair| pair.1.views(layer, end(pair))).collect();
    let sequences = pairs().zip(&views).map(|((slice, seq), blocks)| Sequence {
        rows: slice.clone(),
        first: seq.len(),
        blocks,
    });
    let shape = Shape {
        heads,
        kv_heads: rows.kv_heads,
        k_dim: rows.k_dim,
        v_dim: rows.v_dim,
        element: layout.codec().element(),
        scale: 1.0 / (rows.k_dim as f32).sqrt(),
    };
    let mut out = vec![0.0; batch.tokens.len() * heads * rows.v_dim];
    tinygpt_kernels::attend(pool, &shape, &sequences.collect::<Vec<_>>(), q, &mut out);
    out
}

/// The rows `[T][C]` at `wanted`.
pub fn gather(x: &[f32], width: usize, wanted: &[usize]) -> Vec<f32> {
    wanted.iter().flat_map(|row| &x[row * width..(row + 1) * width]).copied().collect()
}

fn scale(rows: &Range<usize>, width: usize) -> Range<usize> {
    rows.start * width..rows.end * width
}
