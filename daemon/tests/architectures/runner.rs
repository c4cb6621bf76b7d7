//! A model and sequences of it, without an engine.

use std::num::NonZeroUsize;
use std::sync::Arc;

use tinygpt_kernels::Pool;
use tinygptd::kv::codec::Codec;
use tinygptd::kv::key::BlockKey;
use tinygptd::kv::layout::{BLOCK, Layout};
use tinygptd::kv::seq::{KvSeq, Slabs};
use tinygptd::model::device::Choice;
use tinygptd::model::load::Weights;
use tinygptd::model::{AdapterId, Batch, Machine, Model, Numerics};

pub(crate) struct Runner {
    model: Box<dyn Model>,
    vocab: usize,
    layout: Arc<Layout>,
    slabs: Slabs,
}

/// The bits of the logits of each row.
pub(crate) type Logits = Vec<Vec<u32>>;

impl Runner {
    pub(crate) fn host(weights: Weights, numerics: Numerics, codec: Codec) -> Self {
        Self::on(Choice::Cpu, 2, weights, numerics, codec)
    }

    pub(crate) fn on(
        choice: Choice,
        threads: usize,
        weights: Weights,
        numerics: Numerics,
        codec: Codec,
    ) -> Self {
        let pool = Arc::new(Pool::new(NonZeroUsize::new(threads).unwrap()));
        let machine = Machine { pool, device: choice.open(1 << 30).unwrap() };
        let dimensions = weights.dimensions();
        let layout = Arc::new(Layout::new(codec, &dimensions.layers));
        let model = machine.assemble(weights, numerics).unwrap();
        Self { model, vocab: dimensions.vocab, slabs: Slabs::new(&layout), layout }
    }

    pub(crate) fn seq(&self) -> KvSeq {
        KvSeq::new(Arc::clone(&self.layout))
    }

    /// Runs the next tokens of some sequences together; the logits of every row of each.
    pub(crate) fn step(&mut self, seqs: &mut [&mut KvSeq], tokens: &[&[u32]]) -> Vec<Logits> {
        self.step_with(seqs, tokens, &[])
    }

    /// The same, each with its adapter.
    pub(crate) fn step_with(
        &mut self,
        seqs: &mut [&mut KvSeq],
        tokens: &[&[u32]],
        adapters: &[Option<AdapterId>],
    ) -> Vec<Logits> {
        let mut batch = Batch { adapters: adapters.into(), ..Batch::default() };
        for (seq, tokens) in seqs.iter_mut().zip(tokens) {
            seq.reserve(seq.len() + tokens.len(), &mut self.slabs).unwrap();
            self.model.prepare(seq, tokens.len()).unwrap();
            let first = batch.tokens.len();
            batch.tokens.extend(*tokens);
            batch.slices.push(first..batch.tokens.len());
        }
        batch.wanted = (0..batch.tokens.len()).collect();
        let hidden = self.model.forward(&batch, seqs).unwrap();
        let logits = self.model.head(&hidden).unwrap();
        for (seq, slice) in seqs.iter_mut().zip(&batch.slices) {
            seq.advance(slice.len());
            seal(seq);
        }
        let bits = |row: &[f32]| row.iter().map(|x| x.to_bits()).collect();
        let rows: Logits = logits.chunks_exact(self.vocab).map(bits).collect();
        batch.slices.iter().map(|slice| rows[slice.clone()].to_vec()).collect()
    }

    /// The same for one sequence.
    pub(crate) fn rows(&mut self, seq: &mut KvSeq, tokens: &[u32]) -> Logits {
        self.step(&mut [seq], &[tokens]).remove(0)
    }

    /// A new sequence whose first tokens are those of `seq`: its whole blocks, and a part of the
    /// next one.
    pub(crate) fn branch(&mut self, seq: &KvSeq, len: usize) -> KvSeq {
        let mut branch = self.seq();
        let (blocks, rest) = (len / BLOCK, len % BLOCK);
        seq.sealed()[..blocks].iter().for_each(|block| branch.attach(Arc::clone(block)));
        if rest > 0 {
            branch.lend(&seq.sealed()[blocks], rest, &mut self.slabs).unwrap();
        }
        branch
    }
}

fn seal(seq: &mut KvSeq) {
    while seq.tail_len() >= BLOCK {
        // Only devices look at names, and a runner has one prompt.
        let key = |index: usize| BlockKey([u8::try_from(index).unwrap(); 32]);
        let index = seq.sealed().len();
        let block = seq.seal(key(index + 1), key(index), [0; BLOCK]);
        seq.swap_last(block);
    }
}

/// Tokens, the same on every run.
pub(crate) fn prompt(seed: u64, len: usize, vocab: u32) -> Vec<u32> {
    let token = |i| (tinygpt_kernels::sample::uniform(seed, 1, i) * vocab as f32) as u32;
    (0..len as u64).map(|i| token(i).min(vocab - 1)).collect()
}

pub(crate) fn numbers(logits: &Logits) -> Vec<f32> {
    logits.concat().into_iter().map(f32::from_bits).collect()
}
