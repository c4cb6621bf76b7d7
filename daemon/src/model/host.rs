//! The executor that is this machine's processor.
//!
//! Results lie in [`Buffer`]s, which a [`Host`] lends and takes back when they are dropped: a step
//! of a size that was run before allocates nothing for them.

mod adapted;
mod buffer;

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use tinygpt_kernels::{
    Block, Gate, Gelu, Matrix, Output, Pool, Quantized, Rope, Sequence, act, experts, gated_fast,
    linear_fast, norm,
};

pub use self::buffer::Buffer;
use super::carried::Carried;
use super::executor::{Executor, Scores};
use super::load::{Linear, Norm};
use super::{Batch, Numerics};
use crate::kv::device::{DeviceError, Tier};
use crate::kv::layout::BLOCK;
use crate::kv::seq::KvSeq;

/// Runs operations: the compute pool, the arithmetic, and memory to use again.
#[derive(Debug)]
pub struct Host {
    pool: Arc<Pool>,
    numerics: Numerics,
    spare: RefCell<Vec<Vec<f32>>>,
    spare_quantized: RefCell<Vec<Quantized>>,
    spare_positions: RefCell<Vec<u32>>,
    /// Without elements.
    spare_views: RefCell<Vec<Block<'static>>>,
    spare_sequences: RefCell<Vec<Sequence<'static>>>,
    /// Of the pass in progress.
    carried: RefCell<Carried>,
}

/// Rows on their way into products: as they are, and as 8-bit integers where the numerics want
/// these.
#[derive(Debug)]
pub struct Input<'h> {
    host: &'h Host,
    x: Buffer<'h>,
    quantized: Option<Quantized>,
}

/// Where rows are to be turned.
#[derive(Debug)]
pub struct Angles<'h> {
    host: &'h Host,
    ropes: &'h [Rope],
    positions: Vec<u32>,
}

impl Host {
    /// An executor on `pool`.
    pub fn new(pool: Arc<Pool>, numerics: Numerics) -> Self {
        Self {
            pool,
            numerics,
            spare: RefCell::default(),
            spare_quantized: RefCell::default(),
            spare_positions: RefCell::default(),
            spare_views: RefCell::default(),
            spare_sequences: RefCell::default(),
            carried: RefCell::default(),
        }
    }

    /// Memory for rows of `width` as integers, if these numerics want them so.
    fn quantizes(&self, width: usize) -> Option<Quantized> {
        let wanted = self.numerics == Numerics::Fast && width.is_multiple_of(Quantized::BLOCK);
        wanted.then(|| self.spare_quantized.borrow_mut().pop().unwrap_or_default())
    }

    /// Room for `rows` rows of `width` numbers, which hold anything.
    fn buffer(&self, rows: usize, width: usize) -> Buffer<'_> {
        let len = rows * width;
        let mut spare = self.spare.borrow_mut();
        let size = |at: &usize| spare[*at].len();
        let fits = (0..spare.len()).filter(|at| size(at) >= len).min_by_key(size);
        let mut memory =
            fits.map(|at| spare.swap_remove(at)).or_else(|| spare.pop()).unwrap_or_default();
        if memory.len() < len {
            memory = vec![0.0; len];
        }
        Buffer { host: Some(self), memory, len, width }
    }

    fn zeros(&self, rows: usize, width: usize) -> Buffer<'_> {
        let mut buffer = self.buffer(rows, width);
        buffer.fill(0.0);
        buffer
    }
}

impl Executor for Host {
    type Matrix = Matrix;
    type Vector = Vec<f32>;
    type Rows<'h> = Buffer<'h>;
    type Input<'h> = Input<'h>;
    type Angles<'h> = Angles<'h>;

    fn matrix(&self, packed: Matrix) -> Result<Matrix, DeviceError> {
        Ok(packed)
    }

    fn vector(&self, numbers: Vec<f32>) -> Result<Vec<f32>, DeviceError> {
        Ok(numbers)
    }

    fn embed(&self, batch: &Batch, embedding: &Matrix) -> Buffer<'_> {
        self.carried.borrow_mut().fill(batch);
        let mut out = self.buffer(batch.tokens.len(), embedding.k());
        for (row, token) in out.chunks_exact_mut(embedding.k()).zip(&batch.tokens) {
            embedding.row(*token as usize, row);
        }
        out
    }

    fn add_learned(
        &self,
        x: &mut Buffer<'_>,
        table: &Vec<f32>,
        positions: impl Iterator<Item = u32>,
    ) {
        let width = x.width;
        for (row, position) in x.chunks_exact_mut(width).zip(positions) {
            norm::add(row, &table[position as usize * width..][..width]);
        }
    }

    fn gather<'h>(&'h self, x: &Buffer<'h>, wanted: &[usize]) -> Buffer<'h> {
        let width = x.width;
        let mut out = self.buffer(wanted.len(), width);
        for (out, row) in out.chunks_exact_mut(width).zip(wanted) {
            out.copy_from_slice(&x[row * width..(row + 1) * width]);
        }
        out
    }

    fn scale(&self, x: &mut Buffer<'_>, factor: f32) {
        norm::scale(x, factor);
    }

    fn norm<'h>(&'h self, x: &Buffer<'h>, layer: &Norm, eps: f32) -> Buffer<'h> {
        let mut out = self.buffer(x.rows(), x.width);
        let (rows, width) = (normalise(x, layer, eps), x.width);
        self.pool.rows(&mut out, width, rows);
        out
    }

    fn input<'h>(&'h self, x: Buffer<'h>) -> Input<'h> {
        let quantized = self.quantizes(x.width).map(|mut rows| {
            rows.fill(&self.pool, &x, x.width);
            rows
        });
        Input { host: self, x, quantized }
    }

    fn normed<'h>(&'h self, x: &Buffer<'h>, layer: &Norm, eps: f32) -> Input<'h> {
        let Some(mut rows) = self.quantizes(x.width) else {
            return self.input(self.norm(x, layer, eps));
        };
        let mut out = self.buffer(x.rows(), x.width);
        rows.fill_made(&self.pool, &mut out, x.width, normalise(x, layer, eps));
        Input { host: self, x: out, quantized: Some(rows) }
    }

    /// Weights that are plain numbers take the rows as they are under every numerics.
    fn multiply<'h>(
        &'h self,
        x: &Input<'h>,
        weight: &Matrix,
        bias: Option<&Vec<f32>>,
    ) -> Buffer<'h> {
        let (rows, bias) = (x.x.rows(), bias.map(Vec::as_slice));
        let mut out = self.buffer(rows, weight.n());
        match &x.quantized {
            Some(x) if weight.is_quantised() => {
                linear_fast(
                    &self.pool,
                    x,
                    [Output { weights: weight, bias, y: &mut out, adds: false }],
                );
            }
            _ => tinygpt_kernels::linear(&self.pool, &x.x, rows, weight, bias, &mut out),
        }
        out
    }

    fn adapt<'h>(&'h self, y: &mut Buffer<'h>, x: &Input<'h>, layer: &Linear) {
        for (rows, delta) in self.carried.borrow().deltas(&layer.deltas) {
            self.add_delta(y, &x.x, rows, delta);
        }
    }

    fn add_linear<'h>(&'h self, x: &mut Buffer<'h>, y: &Input<'h>, layer: &Linear) {
        match &y.quantized {
            Some(y) if layer.weight.is_quantised() && !self.is_adapted(layer) => {
                let Linear { weight: weights, bias, .. } = layer;
                let output = Output { weights, bias: bias.as_deref(), y: x, adds: true };
                linear_fast(&self.pool, y, [output]);
            }
            _ => self.add(x, &self.linear(y, layer)),
        }
    }

    fn linears<'h, const P: usize>(
        &'h self,
        x: &Input<'h>,
        layers: [&Linear; P],
    ) -> [Buffer<'h>; P] {
        let Some(quantized) = x.quantized.as_ref().filter(|_| are_quantised(&layers)) else {
            return layers.map(|layer| self.linear(x, layer));
        };
        let mut out = layers.map(|layer| self.buffer(x.x.rows(), layer.weight.n()));
        let mut buffers = out.iter_mut();
        let outputs = layers.map(|Linear { weight, bias, .. }| {
            let y = buffers.next().expect("a buffer for each layer");
            Output { weights: weight, bias: bias.as_deref(), y, adds: false }
        });
        linear_fast(&self.pool, quantized, outputs);
        out.iter_mut().zip(layers).for_each(|(y, layer)| self.adapt(y, x, layer));
        out
    }

    fn gated<'h>(&'h self, x: &Input<'h>, how: Gate, gate: &Linear, up: &Linear) -> Buffer<'h> {
        let plain = [gate, up].iter().all(|it| it.bias.is_none() && !self.is_adapted(it));
        match &x.quantized {
            Some(quantized) if plain && are_quantised(&[gate, up]) => {
                let mut out = self.buffer(x.x.rows(), gate.weight.n());
                gated_fast(&self.pool, quantized, how, [&gate.weight, &up.weight], &mut out);
                out
            }
            _ => {
                let [gate, up] = self.linears(x, [gate, up]);
                self.gate(how, &gate, &up)
            }
        }
    }

    fn mix<'h>(
        &'h self,
        x: &Input<'h>,
        scores: &Buffer<'h>,
        top: usize,
        expert: impl Fn(usize, Input<'h>) -> Buffer<'h>,
    ) -> Buffer<'h> {
        let mut mixed: Option<Buffer<'h>> = None;
        for (number, chosen) in experts::choose(scores, scores.width, top).iter().enumerate() {
            if chosen.rows.is_empty() {
                continue;
            }
            let out = expert(number, self.input(self.gather(&x.x, &chosen.rows)));
            let width = out.width;
            let mixed = mixed.get_or_insert_with(|| self.zeros(x.x.rows(), width));
            for ((row, weight), out) in chosen.iter().zip(out.chunks_exact(width)) {
                norm::add_scaled(&mut mixed[row * width..][..width], out, weight);
            }
        }
        mixed.unwrap_or_else(|| self.buffer(0, x.x.width))
    }

    fn add<'h>(&'h self, x: &mut Buffer<'h>, y: &Buffer<'h>) {
        let (y, width): (&[f32], _) = (y, y.width);
        self.pool.rows(x, width, |first, x| norm::add(x, &y[first * width..][..x.len()]));
    }

    fn gate<'h>(&'h self, how: Gate, gate: &Buffer<'h>, up: &Buffer<'h>) -> Buffer<'h> {
        let mut out = self.buffer(gate.rows(), gate.width);
        let (gate, up, width): (&[f32], &[f32], _) = (gate, up, gate.width);
        self.pool.rows(&mut out, width, |first, out| {
            let rows = first * width..first * width + out.len();
            act::gate(how, &gate[rows.clone()], &up[rows], out);
        });
        out
    }

    fn gelu(&self, x: &mut Buffer<'_>, how: Gelu) {
        let width = x.width;
        self.pool.rows(x, width, |_, x| act::gelu(how, x));
    }

    fn angles<'h>(&'h self, ropes: &'h [Rope], positions: impl Iterator<Item = u32>) -> Angles<'h> {
        let mut spare = self.spare_positions.take();
        spare.clear();
        spare.extend(positions);
        Angles { host: self, ropes, positions: spare }
    }

    fn rotate(&self, angles: &Angles<'_>, rope: usize, x: &mut Buffer<'_>, dim: usize) {
        let (rope, positions, width) = (&angles.ropes[rope], &angles.positions, x.width);
        self.pool.rows(x, width, |first, rows| {
            let positions = &positions[first..first + rows.len() / width];
            rope.apply(rows, width / dim, dim, positions);
        });
    }

    fn prepare(&self, _kv: &mut KvSeq, _rows: usize) -> Result<(), DeviceError> {
        Ok(())
    }

    fn attend<'h>(
        &'h self,
        layer: usize,
        batch: &Batch,
        kv: &mut [&mut KvSeq],
        scores: Scores,
        [q, k, v]: [&Buffer<'h>; 3],
    ) -> Buffer<'h> {
        let Some(layout) = kv.first().map(|seq| seq.layout().clone()) else {
            return self.buffer(0, q.width);
        };
        for (slice, seq) in batch.slices.iter().zip(kv.iter_mut()) {
            seq.write(layer, k.slice(slice), v.slice(slice));
        }
        let end = |(slice, seq): (&Range<usize>, &&mut KvSeq)| seq.len() + slice.len();
        let pairs = || batch.slices.iter().zip(kv.iter());
        let mut views = emptied(self.spare_views.take());
        pairs().for_each(|pair| views.extend(pair.1.views(layer, end(pair))));
        let mut sequences = emptied(self.spare_sequences.take());
        let mut rest = &views[..];
        sequences.extend(pairs().map(|(slice, seq)| {
            let (blocks, others) = rest.split_at(end((slice, seq)).div_ceil(BLOCK));
            rest = others;
            Sequence { rows: slice.clone(), first: seq.len(), blocks }
        }));
        let shape = scores.shape(&layout, layer);
        let mut out = self.buffer(batch.tokens.len(), shape.heads * shape.v_dim);
        tinygpt_kernels::attend(&self.pool, &shape, &sequences, q, &mut out);
        self.spare_sequences.replace(emptied(sequences));
        self.spare_views.replace(emptied(views));
        out
    }

    fn upload(&self, numbers: &[f32], width: usize) -> Buffer<'_> {
        let mut out = self.buffer(numbers.len() / width, width);
        out.copy_from_slice(numbers);
        out
    }

    fn download<'h>(&'h self, x: Buffer<'h>) -> Result<Buffer<'h>, DeviceError> {
        Ok(x)
    }

    fn finish<'h>(
        &'h self,
        x: Buffer<'h>,
        _batch: &Batch,
        _kv: &mut [&mut KvSeq],
    ) -> Result<Buffer<'h>, DeviceError> {
        Ok(x)
    }

    fn tier(&self) -> Option<&Tier> {
        None
    }
}

/// The memory of a vector, for elements that borrow something else: collecting the elements of a
/// vector into one of the same size of elements keeps its memory.
fn emptied<A, B>(mut elements: Vec<A>) -> Vec<B> {
    elements.clear();
    elements.into_iter().map(|_| unreachable!("it was cleared")).collect()
}

/// Normalises whole rows of `x [T][C]`, from a row on.
fn normalise(x: &Buffer<'_>, layer: &Norm, eps: f32) -> impl Fn(usize, &mut [f32]) + Sync {
    let (x, width): (&[f32], _) = (x, x.width);
    move |first, out| {
        let x = &x[first * width..][..out.len()];
        match &layer.bias {
            Some(bias) => norm::layer_norm(x, &layer.weight, Some(bias), eps, out),
            None => norm::rms_norm(x, &layer.weight, eps, out),
        }
    }
}

fn are_quantised(layers: &[&Linear]) -> bool {
    layers.iter().all(|layer| layer.weight.is_quantised())
}

impl Drop for Angles<'_> {
    fn drop(&mut self) {
        self.host.spare_positions.replace(std::mem::take(&mut self.positions));
    }
}

impl Drop for Input<'_> {
    fn drop(&mut self) {
        self.host.spare_quantized.borrow_mut().extend(self.quantized.take());
    }
}
