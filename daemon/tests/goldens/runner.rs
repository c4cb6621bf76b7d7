//! A model and one sequence of it, without an engine.

use std::num::NonZeroUsize;
use std::sync::Arc;

use tinygpt_kernels::Pool;
use tinygptd::kv::codec::Codec;
use tinygptd::kv::layout::{BLOCK, Layout};
use tinygptd::kv::seq::{KvSeq, Slabs};
use tinygptd::model::device::Choice;
use tinygptd::model::load::{Weights, load};
use tinygptd::model::{Batch, Dimensions, Machine, Model, Numerics};

pub(crate) struct Runner {
    model: Box<dyn Model>,
    vocab: usize,
    slabs: Slabs,
    seq: KvSeq,
}

impl Runner {
    /// The same model from the bytes of its file on every executor there is.
    pub(crate) fn everywhere(file: &[u8]) -> [Self; 2] {
        Self::everywhere_of(|pool| load(file, pool).unwrap().weights)
    }

    /// The model that `weights` reads on every executor there is.
    pub(crate) fn everywhere_of(weights: impl Fn(&Pool) -> Weights) -> [Self; 2] {
        [Choice::Cpu, Choice::CandleCpu].map(|choice| Self::with(choice, Numerics::Exact, &weights))
    }

    /// The model with weights and rows as integers, on this processor.
    pub(crate) fn fast(file: &[u8]) -> Self {
        let weights = |pool: &Pool| load(file, pool).unwrap().weights;
        Self::with(Choice::Cpu, Numerics::Fast, weights)
    }

    /// The model as exactly as this processor computes it.
    pub(crate) fn exact(file: &[u8]) -> Self {
        let weights = |pool: &Pool| load(file, pool).unwrap().weights;
        Self::with(Choice::Cpu, Numerics::Exact, weights)
    }

    /// A model, caching plain f32.
    fn with(choice: Choice, numerics: Numerics, weights: impl Fn(&Pool) -> Weights) -> Self {
        let pool = Arc::new(Pool::new(NonZeroUsize::new(2).unwrap()));
        let machine = Machine { pool, device: choice.open(1 << 30).unwrap() };
        let weights = weights(&machine.pool);
        let Dimensions { vocab, layers, .. } = weights.dimensions();
        let model = machine.assemble(weights, numerics).unwrap();
        let layout = Arc::new(Layout::new(Codec::F32, &layers));
        let (slabs, seq) = (Slabs::new(&layout), KvSeq::new(layout));
        Self { model, vocab, slabs, seq }
    }

    /// Forgets the sequence.
    pub(crate) fn restart(&mut self) {
        self.seq = KvSeq::new(self.seq.layout().clone());
    }

    /// Appends tokens in one slice and gives the logits after the last `wanted` of them.
    pub(crate) fn feed(&mut self, tokens: &[u32], wanted: usize) -> Vec<Vec<f32>> {
        let rows = tokens.len();
        self.seq.reserve(self.seq.len() + rows, &mut self.slabs).unwrap();
        self.model.prepare(&mut self.seq, rows).unwrap();
        let batch = Batch {
            tokens: tokens.into(),
            slices: std::iter::once(0..rows).collect(),
            wanted: (rows - wanted..rows).collect(),
            ..Batch::default()
        };
        let hidden = self.model.forward(&batch, &mut [&mut self.seq]).unwrap();
        self.seq.advance(rows);
        let logits = self.model.head(&hidden).unwrap();
        logits.chunks_exact(self.vocab).map(<[f32]>::to_vec).collect()
    }

    /// The keys and the values of a layer, `[G][T][D]` each.
    pub(crate) fn rows(&self, layer: usize) -> [Vec<f32>; 2] {
        let (shape, rows) = (self.seq.layout().shape(layer), self.seq.len());
        let number = |bytes: &[u8], at: usize| {
            f32::from_le_bytes(bytes[4 * at..4 * at + 4].try_into().unwrap())
        };
        let blocks: Vec<_> = self.seq.views(layer, rows).collect();
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for head in 0..shape.kv_heads {
            for (block, row) in (0..rows).map(|row| (&blocks[row / BLOCK], row % BLOCK)) {
                let key = |at| number(block.k, (head * shape.k_dim + at) * BLOCK + row);
                let value = |at| number(block.v, (head * BLOCK + row) * shape.v_dim + at);
                keys.extend((0..shape.k_dim).map(key));
                values.extend((0..shape.v_dim).map(value));
            }
        }
        [keys, values]
    }

    /// L
    pub(crate) fn layers(&self) -> usize {
        self.seq.layout().layers()
    }

    /// The logits after a prompt that starts afresh.
    pub(crate) fn prompt(&mut self, tokens: &[u32]) -> Vec<f32> {
        self.restart();
        self.feed(tokens, 1).remove(0)
    }

    /// Greedy ids after `logits`, each fed back alone.
    pub(crate) fn greedy(&mut self, mut logits: Vec<f32>, count: usize) -> Vec<u32> {
        let mut ids = Vec::new();
        while ids.len() < count {
            ids.push(argmax(&logits));
            if ids.len() < count {
                logits = self.feed(&ids[ids.len() - 1..], 1).remove(0);
            }
        }
        ids
    }
}

/// The id with the largest logit; the lowest of equals.
pub(crate) fn argmax(logits: &[f32]) -> u32 {
    let best = (0..logits.len()).rev().max_by(|&a, &b| logits[a].total_cmp(&logits[b]));
    best.unwrap() as u32
}

/// The distance between the two largest logits.
pub(crate) fn margin(logits: &[f32]) -> f32 {
    let best = argmax(logits) as usize;
    let others = logits.iter().enumerate().filter(|&(id, _)| id != best).map(|(_, &logit)| logit);
    logits[best] - others.fold(f32::NEG_INFINITY, f32::max)
}

/// The largest distance between two rows of logits.
pub(crate) fn distance(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}
