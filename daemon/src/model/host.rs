//! The operations that architectures are written in, on this machine's processor.
//!
//! Shapes: T rows, C width, H query heads, G KV heads, D head size, N outputs.
//!
//! Results lie in [`Buffer`]s, which a [`Host`] lends and takes back when they are dropped: a step
//! of a size that was run before allocates nothing for them.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

use tinygpt_kernels::{Matrix, Pool, Quantized, Rope, Sequence, Shape, act, linear_fast, norm};

use super::load::{Linear, Norm};
use super::{Batch, Numerics};
use crate::kv::seq::KvSeq;

/// Runs operations: the compute pool, the arithmetic, and memory to use again.
#[derive(Debug)]
pub struct Host {
    pool: Arc<Pool>,
    numerics: Numerics,
    spare: RefCell<Vec<Vec<f32>>>,
    spare_quantized: RefCell<Vec<Quantized>>,
}

/// Numbers that go back to their [`Host`].
#[derive(Debug)]
pub struct Buffer<'h> {
    host: &'h Host,
    memory: Vec<f32>,
    len: usize,
}

/// Rows `[T][K]` on their way into products: as they are, and as 8-bit integers where the numerics
/// want these. Made once for all the products that read them.
#[derive(Debug)]
pub struct Input<'h, 'x> {
    host: &'h Host,
    x: &'x [f32],
    quantized: Option<Quantized>,
}

impl Host {
    /// An executor on `pool`.
    pub fn new(pool: Arc<Pool>, numerics: Numerics) -> Self {
        Self { pool, numerics, spare: RefCell::default(), spare_quantized: RefCell::default() }
    }

    /// The compute pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Room for `len` numbers, which hold anything.
    fn buffer(&self, len: usize) -> Buffer<'_> {
        let mut spare = self.spare.borrow_mut();
        let size = |at: &usize| spare[*at].len();
        let fits = (0..spare.len()).filter(|at| size(at) >= len).min_by_key(size);
        let mut memory =
            fits.map(|at| spare.swap_remove(at)).or_else(|| spare.pop()).unwrap_or_default();
        if memory.len() < len {
            memory = vec![0.0; len];
        }
        Buffer { host: self, memory, len }
    }

    /// The rows `[T][C]` of an embedding matrix `[V][C]`.
    pub fn embed(&self, tokens: &[u32], embedding: &Matrix) -> Buffer<'_> {
        let mut out = self.buffer(tokens.len() * embedding.k());
        for (row, token) in out.chunks_exact_mut(embedding.k()).zip(tokens) {
            embedding.row(*token as usize, row);
        }
        out
    }

    /// RMSNorm, or LayerNorm where there is a bias: `out [T][C]`.
    pub fn norm(&self, x: &[f32], layer: &Norm, eps: f32) -> Buffer<'_> {
        let width = layer.weight.len();
        let mut out = self.buffer(x.len());
        self.pool.rows(&mut out, width, |first, out| {
            let x = &x[first * width..][..out.len()];
            match &layer.bias {
                Some(bias) => norm::layer_norm(x, &layer.weight, Some(bias), eps, out),
                None => norm::rms_norm(x, &layer.weight, eps, out),
            }
        });
        out
    }

    /// Rows of `k` for products with weights that may be quantised.
    pub fn input<'x>(&self, x: &'x [f32], k: usize) -> Input<'_, 'x> {
        let is_fast = self.numerics == Numerics::Fast && k.is_multiple_of(Quantized::BLOCK);
        let quantized = is_fast.then(|| {
            let mut rows = self.spare_quantized.borrow_mut().pop().unwrap_or_default();
            rows.fill(&self.pool, x, k);
            rows
        });
        Input { host: self, x, quantized }
    }

    /// `silu(gate) * up`, rows `[T][N]` of `width`.
    pub fn silu_mul(&self, gate: &[f32], up: &[f32], width: usize) -> Buffer<'_> {
        let mut out = self.buffer(gate.len());
        self.pool.rows(&mut out, width, |first, out| {
            let rows = first * width..first * width + out.len();
            act::silu_mul(&gate[rows.clone()], &up[rows], out);
        });
        out
    }

    /// `x = gelu(x)`, rows `[T][N]` of `width`.
    pub fn gelu(&self, x: &mut [f32], width: usize) {
        self.pool.rows(x, width, |_, x| act::gelu_erf(x));
    }

    /// `x += y`, rows of `width`.
    pub fn add(&self, x: &mut [f32], y: &[f32], width: usize) {
        self.pool.rows(x, width, |first, x| norm::add(x, &y[first * width..][..x.len()]));
    }

    /// Turns rows `x [T][H][D]` to their positions.
    pub fn rotate(&self, rope: &Rope, x: &mut [f32], dim: usize, positions: &[u32]) {
        let width = x.len() / positions.len().max(1);
        self.pool.rows(x, width.max(1), |first, rows| {
            let positions = &positions[first..first + rows.len() / width];
            rope.apply(rows, width / dim, dim, positions);
        });
    }

    /// Writes the rows' keys `k [T][G*D]` and values `v [T][G*D]` into the caches, then attends
    /// with `q [T][H*D]`, each row over its own sequence up to itself: `out [T][H*D]`.
    ///
    /// Rows are attended in stored form, never as they were computed, so that a row of this slice
    /// counts for later rows exactly as it will for a later request.
    pub fn attend(
        &self,
        layer: usize,
        batch: &Batch,
        kv: &mut [&mut KvSeq],
        heads: usize,
        [q, k, v]: [&[f32]; 3],
    ) -> Buffer<'_> {
        let Some(layout) = kv.first().map(|seq| seq.layout().clone()) else {
            return self.buffer(0);
        };
        let rows = layout.shape(layer);
        let (k_row, v_row) = (rows.kv_heads * rows.k_dim, rows.kv_heads * rows.v_dim);
        for (slice, seq) in batch.slices.iter().zip(kv.iter_mut()) {
            seq.write(layer, &k[scale(slice, k_row)], &v[scale(slice, v_row)]);
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
        let mut out = self.buffer(batch.tokens.len() * heads * rows.v_dim);
        let sequences: Vec<_> = sequences.collect();
        tinygpt_kernels::attend(&self.pool, &shape, &sequences, q, &mut out);
        out
    }

    /// The rows `[T][C]` at `wanted`.
    pub fn gather(&self, x: &[f32], width: usize, wanted: &[usize]) -> Buffer<'_> {
        let mut out = self.buffer(wanted.len() * width);
        for (out, row) in out.chunks_exact_mut(width).zip(wanted) {
            out.copy_from_slice(&x[row * width..(row + 1) * width]);
        }
        out
    }
}

impl<'h> Input<'h, '_> {
    /// `out [T][N] = x [T][K] · Wᵀ + b`.
    pub fn linear(&self, layer: &Linear) -> Buffer<'h> {
        self.product(&layer.weight, layer.bias.as_deref())
    }

    /// `out [T][N] = x [T][K] · Wᵀ + b` for a bare matrix. Weights that are plain numbers take the
    /// rows as they are under every numerics.
    pub fn product(&self, weight: &Matrix, bias: Option<&[f32]>) -> Buffer<'h> {
        let (pool, rows) = (&self.host.pool, self.x.len() / weight.k());
        let mut out = self.host.buffer(rows * weight.n());
        match &self.quantized {
            Some(x) if weight.is_quantised() => linear_fast(pool, x, weight, bias, &mut out),
            _ => tinygpt_kernels::linear(pool, self.x, rows, weight, bias, &mut out),
        }
        out
    }
}

impl Drop for Input<'_, '_> {
    fn drop(&mut self) {
        self.host.spare_quantized.borrow_mut().extend(self.quantized.take());
    }
}

impl Deref for Buffer<'_> {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.memory[..self.len]
    }
}

impl DerefMut for Buffer<'_> {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.memory[..self.len]
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        self.host.spare.borrow_mut().push(std::mem::take(&mut self.memory));
    }
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

fn scale(rows: &Range<usize>, width: usize) -> Range<usize> {
    rows.start * width..rows.end * width
}
