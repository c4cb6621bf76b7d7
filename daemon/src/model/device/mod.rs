//! The executor that computes with candle's tensors, wherever candle can: on NVIDIA's GPUs, on
//! Apple's, and on the processor, to test the others where there are none.
//!
//! Weights are unpacked to f32 on the device when a model is loaded. Everything is asynchronous up
//! to the end of a pass, where one transfer brings the final hidden states and one the rows of
//! keys and values that the pass computed; the cached ones stay where they are ([`Resident`]).
//! Only the scores of experts are brought in every layer, since they decide what is computed.
//!
//! A device's sums have orders of its own, so its results have no bits in common with the
//! processor's, and depend slightly on how many rows run together: its numerics have names of
//! their own, and the promise is the same text wherever the choice is not a close one.

mod choice;
mod rows;

use std::cell::RefCell;

use candle_core::{D, Tensor};
use tinygpt_kernels::{Convention, Gate, Gelu, Matrix, Rope, experts};

pub use self::choice::{Choice, NoDevice, Target, UnknownDevice};
pub use self::rows::Rows;

use super::Batch;
use super::carried::Carried;
use super::executor::{Executor, LinearOf, NormOf, Scores};
use super::host::Buffer;
use crate::kv::device::{DeviceError, Resident, Tier};
use crate::kv::layout::Layout;
use crate::kv::seq::KvSeq;

/// Runs operations on a device, and keeps rows there.
#[derive(Debug)]
pub struct Device {
    tier: Tier,
    /// Keys and values of the pass in progress, layer by layer: `[T][G*D]`.
    fresh: RefCell<Vec<Tensor>>,
    /// Of the pass in progress.
    carried: RefCell<Carried>,
}

/// Cosines and sines of the pass's positions for one rope: halves of `axis` of a tensor that is
/// `[T][1][dims/2][2]` or `[T][1][2][dims/2]`, as the pairs of a head lie.
#[derive(Debug)]
pub struct Angles {
    turned: Rows,
    axis: usize,
}

impl Device {
    /// An executor on `target`.
    pub fn new(target: Target) -> Self {
        Self {
            tier: Tier::new(target.device, target.memory),
            fresh: RefCell::default(),
            carried: RefCell::default(),
        }
    }

    fn device(&self) -> &candle_core::Device {
        self.tier.device()
    }

    fn indices(&self, indices: impl IntoIterator<Item = usize>) -> candle_core::Result<Tensor> {
        let index = |index| u32::try_from(index).expect("fewer than 2^32 rows");
        Tensor::from_iter(indices.into_iter().map(index).collect::<Vec<_>>(), self.device())
    }

    fn try_attend(
        &self,
        layer: usize,
        batch: &Batch,
        kv: &[&mut KvSeq],
        scores: Scores,
        [q, k, v]: [&Tensor; 3],
    ) -> Result<Tensor, DeviceError> {
        let mut attended = Vec::with_capacity(kv.len());
        for (slice, seq) in batch.slices.iter().zip(kv.iter()) {
            let of = |rows: &Tensor| rows.narrow(0, slice.start, slice.len());
            let (layout, resident) = (seq.layout(), seq.resident());
            resident.write(layout, layer, [&of(k)?, &of(v)?])?;
            attended.push(resident.attend(layout, layer, &of(q)?, &scores.shape(layout, layer))?);
        }
        self.fresh.borrow_mut().extend([k.clone(), v.clone()]);
        Ok(Tensor::cat(&attended, 0)?)
    }

    /// The sum of what each row's experts make of it.
    fn try_mix(
        &self,
        x: &Tensor,
        scores: &Buffer<'_>,
        top: usize,
        expert: impl Fn(usize, Rows) -> Rows,
    ) -> candle_core::Result<Tensor> {
        let rows = x.dim(0)?;
        let mut mixed = x.zeros_like()?;
        let choices = experts::choose(scores, scores.len() / rows, top);
        for (number, chosen) in choices.iter().enumerate().filter(|(_, it)| !it.rows.is_empty()) {
            let rows = self.indices(chosen.rows.iter().copied())?;
            let out = expert(number, x.index_select(&rows, 0).into());
            let weights =
                Tensor::from_slice(&chosen.weights, (chosen.rows.len(), 1), self.device())?;
            let weighted = out.0.map_err(|error| candle_core::Error::Msg(error.to_string()))?;
            mixed = mixed.index_add(&rows, &weighted.broadcast_mul(&weights)?, 0)?;
        }
        Ok(mixed)
    }

    fn angles_of(&self, table: &Rope, positions: &[u32]) -> Angles {
        let rows = positions.iter().map(|position| table.row(*position as usize));
        let half = table.row(0).0.len();
        let (axis, shape) = match table.convention() {
            Convention::Interleaved => (3, (positions.len(), 1, half, 2)),
            Convention::HalfSplit => (2, (positions.len(), 1, 2, half)),
        };
        let numbers: Vec<f32> = match table.convention() {
            Convention::Interleaved => rows.flat_map(interleave).collect(),
            Convention::HalfSplit => rows.flat_map(|(cos, sin)| [cos, sin].concat()).collect(),
        };
        Angles { turned: Tensor::from_vec(numbers, shape, self.device()).into(), axis }
    }

    /// Brings the keys and values of the pass into the caches' open blocks.
    fn bring(
        &self,
        fresh: &[Tensor],
        batch: &Batch,
        kv: &mut [&mut KvSeq],
    ) -> Result<(), DeviceError> {
        let Some(layout) = kv.first().map(|seq| seq.layout().clone()) else { return Ok(()) };
        let flat =
            fresh.iter().map(Tensor::flatten_all).collect::<candle_core::Result<Vec<_>>>()?;
        let numbers = Tensor::cat(&flat, 0)?.to_vec1::<f32>()?;
        for (slice, seq) in batch.slices.iter().zip(kv.iter_mut()) {
            let mut rest = &numbers[..];
            for layer in 0..layout.layers() {
                let mut rows = |width: usize| {
                    let (rows, behind) = rest.split_at(batch.tokens.len() * width);
                    rest = behind;
                    &rows[slice.start * width..slice.end * width]
                };
                let [k, v] = widths(&layout, layer).map(&mut rows);
                seq.write(layer, k, v);
            }
            seq.advance_resident();
            self.tier.count_downloaded(slice.len());
        }
        Ok(())
    }

    /// Passes on why something failed, if the device still answers.
    ///
    /// # Panics
    /// When it does not: nothing but another process would find it well again.
    fn if_alive(&self, error: DeviceError) -> DeviceError {
        let answer = Tensor::zeros(1, candle_core::DType::F32, self.device())
            .and_then(|number| number.to_vec1::<f32>());
        match answer {
            Ok(_) => error,
            Err(silence) => panic!("{error}; and then: {silence}"),
        }
    }
}

impl Executor for Device {
    type Matrix = Tensor;
    type Vector = Tensor;
    type Rows<'e> = Rows;
    type Input<'e> = Rows;
    type Angles<'e> = Vec<Angles>;

    fn matrix(&self, packed: Matrix) -> Result<Tensor, DeviceError> {
        let (n, k) = (packed.n(), packed.k());
        let mut numbers = vec![0.0; n * k];
        numbers.chunks_exact_mut(k).enumerate().for_each(|(n, row)| packed.row(n, row));
        drop(packed);
        Ok(Tensor::from_vec(numbers, (n, k), self.device())?)
    }

    fn vector(&self, numbers: Vec<f32>) -> Result<Tensor, DeviceError> {
        let len = numbers.len();
        Ok(Tensor::from_vec(numbers, len, self.device())?)
    }

    fn embed(&self, batch: &Batch, embedding: &Tensor) -> Rows {
        self.carried.borrow_mut().fill(batch);
        let ids = Tensor::new(&*batch.tokens, self.device());
        ids.and_then(|ids| embedding.index_select(&ids, 0)).into()
    }

    fn add_learned(&self, x: &mut Rows, table: &Tensor, positions: impl Iterator<Item = u32>) {
        let positions: Vec<_> = positions.collect();
        *x = x.map(|x| {
            let table = table.reshape(((), x.dim(D::Minus1)?))?;
            x + table.index_select(&Tensor::new(positions, self.device())?, 0)?
        });
    }

    /// Devices run nothing on no rows: the first one stands for none.
    fn gather(&self, x: &Rows, wanted: &[usize]) -> Rows {
        let wanted = if wanted.is_empty() { &[0] } else { wanted };
        x.map(|x| x.index_select(&self.indices(wanted.iter().copied())?, 0))
    }

    fn scale(&self, x: &mut Rows, factor: f32) {
        *x = x.map(|x| x * f64::from(factor));
    }

    fn norm(&self, x: &Rows, layer: &NormOf<Self>, eps: f32) -> Rows {
        x.map(|x| {
            let (rows, width) = x.dims2()?;
            let pieces = x.reshape(((), layer.weight.dim(0)?))?;
            let normed = match &layer.bias {
                None => scaled(&pieces, &layer.weight, eps)?,
                Some(bias) => {
                    let centred = pieces.broadcast_sub(&pieces.mean_keepdim(D::Minus1)?)?;
                    scaled(&centred, &layer.weight, eps)?.broadcast_add(bias)?
                }
            };
            normed.reshape((rows, width))
        })
    }

    fn input(&self, x: Rows) -> Rows {
        x
    }

    fn multiply(&self, x: &Rows, weight: &Tensor, bias: Option<&Tensor>) -> Rows {
        let out = x.map(|x| x.matmul(&weight.t()?));
        match bias {
            Some(bias) => out.map(|out| out.broadcast_add(bias)),
            None => out,
        }
    }

    fn adapt(&self, y: &mut Rows, x: &Rows, layer: &LinearOf<Self>) {
        for (rows, delta) in self.carried.borrow().deltas(&layer.deltas) {
            *y = y.with(x, |y, x| {
                let rows = self.indices(rows.iter().copied())?;
                let low = x.index_select(&rows, 0)?.matmul(&delta.down.t()?)?;
                y.index_add(&rows, &low.matmul(&delta.up.t()?)?, 0)
            });
        }
    }

    fn add(&self, x: &mut Rows, y: &Rows) {
        *x = x.with(y, |x, y| x + y);
    }

    fn mix<'e>(
        &'e self,
        x: &Rows,
        scores: &Rows,
        top: usize,
        expert: impl Fn(usize, Self::Input<'e>) -> Self::Rows<'e>,
    ) -> Rows {
        let numbers = self.download(scores.clone());
        match (&x.0, numbers) {
            (Ok(x), Ok(numbers)) => self.try_mix(x, &numbers, top, expert).into(),
            (Err(error), _) => Rows(Err(error.clone())),
            (_, Err(error)) => Rows(Err(error)),
        }
    }

    fn gate(&self, how: Gate, gate: &Rows, up: &Rows) -> Rows {
        gate.with(up, |gate, up| match how {
            Gate::Silu => gate.silu()? * up,
            Gate::GeluTanh => gate.gelu()? * up,
        })
    }

    fn gelu(&self, x: &mut Rows, how: Gelu) {
        *x = x.map(match how {
            Gelu::Erf => Tensor::gelu_erf,
            Gelu::Tanh => Tensor::gelu,
        });
    }

    fn angles(&self, ropes: &[Rope], positions: impl Iterator<Item = u32>) -> Vec<Angles> {
        let positions: Vec<_> = positions.collect();
        ropes.iter().map(|rope| self.angles_of(rope, &positions)).collect()
    }

    fn rotate(&self, angles: &Vec<Angles>, rope: usize, x: &mut Rows, dim: usize) {
        let Angles { turned, axis } = &angles[rope];
        *x = x.with(turned, |x, turned| turn(x, turned, *axis, dim));
    }

    fn prepare(&self, kv: &mut KvSeq, rows: usize) -> Result<(), DeviceError> {
        Resident::prepare(&self.tier, kv, rows).map_err(|error| self.if_alive(error))
    }

    fn attend(
        &self,
        layer: usize,
        batch: &Batch,
        kv: &mut [&mut KvSeq],
        scores: Scores,
        [q, k, v]: [&Rows; 3],
    ) -> Rows {
        match (&q.0, &k.0, &v.0) {
            (Ok(q), Ok(k), Ok(v)) => Rows(self.try_attend(layer, batch, kv, scores, [q, k, v])),
            (Err(error), ..) | (_, Err(error), _) | (.., Err(error)) => Rows(Err(error.clone())),
        }
    }

    fn upload(&self, numbers: &[f32], width: usize) -> Rows {
        Tensor::from_slice(numbers, (numbers.len() / width, width), self.device()).into()
    }

    fn download(&self, x: Rows) -> Result<Buffer<'_>, DeviceError> {
        let numbers = x.0.and_then(|x| Ok((x.dim(D::Minus1)?, x.flatten_all()?.to_vec1()?)));
        let (width, numbers) = numbers.map_err(|error| self.if_alive(error))?;
        Ok(Buffer::of(numbers, width))
    }

    fn finish(
        &self,
        x: Rows,
        batch: &Batch,
        kv: &mut [&mut KvSeq],
    ) -> Result<Buffer<'_>, DeviceError> {
        let fresh = self.fresh.take();
        let mut hidden = self.download(x)?;
        self.bring(&fresh, batch, kv).map_err(|error| self.if_alive(error))?;
        hidden.keep_rows(batch.wanted.len());
        Ok(hidden)
    }

    fn tier(&self) -> Option<&Tier> {
        Some(&self.tier)
    }
}

/// Rows over their root mean square, times a gain.
fn scaled(x: &Tensor, gain: &Tensor, eps: f32) -> candle_core::Result<Tensor> {
    let square = (x.sqr()?.mean_keepdim(D::Minus1)? + f64::from(eps))?;
    x.broadcast_div(&square.sqrt()?)?.broadcast_mul(gain)
}

fn interleave((cos, sin): (&[f32], &[f32])) -> Vec<f32> {
    cos.iter().zip(sin).flat_map(|(cos, sin)| [*cos, *sin]).collect()
}

/// Turns the pairs of rows `[T][H*dim]`, in the first elements of each head that there are angles
/// for.
fn turn(x: &Tensor, turned: &Tensor, axis: usize, dim: usize) -> candle_core::Result<Tensor> {
    let (rows, width) = x.dims2()?;
    let (_, _, a, b) = turned.dims4()?;
    let heads = x.reshape((rows, width / dim, dim))?;
    let pairs = heads.narrow(2, 0, a * b)?.reshape((rows, width / dim, a, b))?;
    let half = |of: &Tensor, at| of.narrow(axis, at, 1);
    let ([x0, x1], [cos, sin]) =
        ([half(&pairs, 0)?, half(&pairs, 1)?], [half(turned, 0)?, half(turned, 1)?]);
    let low = (x0.broadcast_mul(&cos)? - x1.broadcast_mul(&sin)?)?;
    let high = (x0.broadcast_mul(&sin)? + x1.broadcast_mul(&cos)?)?;
    let turned = Tensor::cat(&[low, high], axis)?.reshape((rows, width / dim, a * b))?;
    let rest = heads.narrow(2, a * b, dim - a * b)?;
    let whole = if a * b == dim { turned } else { Tensor::cat(&[turned, rest], 2)? };
    whole.reshape((rows, width))
}

/// Numbers in a row of `layer`'s keys, and of its values.
fn widths(layout: &Layout, layer: usize) -> [usize; 2] {
    let shape = layout.shape(layer);
    [shape.kv_heads * shape.k_dim, shape.kv_heads * shape.v_dim]
}
