//! A decode's forward pass and head, once one of its size was run, take no memory from the system and
//! give none back; but for experts, which choose their rows anew.
#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "architectures/seeded.rs"]
#[expect(dead_code, reason = "others use the rest")]
mod seeded;
mod counting;

use std::num::NonZeroUsize;
use std::sync::Arc;

use counting::allocations;
use seeded::Kept;
use tinygpt_kernels::Pool;
use tinygpt_tests::adapters;
use tinygptd::kv::codec::Codec;
use tinygptd::kv::layout::Layout;
use tinygptd::kv::seq::{KvSeq, Slabs};
use tinygptd::model::device::Choice;
use tinygptd::model::load::{Adapter, Weights, load};
use tinygptd::model::{AdapterId, Batch, Machine, Model, Numerics};

/// A model and sequences that begin with the same tokens.
struct Decode {
    model: Box<dyn Model>,
    sequences: Vec<KvSeq>,
    batch: Batch,
}

impl Decode {
    fn new(weights: Weights, numerics: Numerics, threads: usize, sequences: usize) -> Self {
        let pool = Arc::new(Pool::new(NonZeroUsize::new(threads).unwrap()));
        let machine = Machine { pool, device: Choice::Cpu.open(0).unwrap() };
        let layout = Arc::new(Layout::new(Codec::F16, &weights.dimensions().layers));
        let model = machine.assemble(weights, numerics).unwrap();
        let mut slabs = Slabs::new(&layout);
        let mut sequence = || {
            let mut seq = KvSeq::new(Arc::clone(&layout));
            seq.reserve(96, &mut slabs).unwrap();
            seq
        };
        let sequences: Vec<_> = (0..sequences).map(|_| sequence()).collect();
        let rows = 0..sequences.len();
        let batch = Batch {
            tokens: vec![1; rows.len()],
            slices: rows.clone().map(|row| row..row + 1).collect(),
            wanted: rows.collect(),
            // Of a model that has none it says nothing.
            adapters: (0..sequences.len())
                .map(|at| (at % 2 == 0).then_some(AdapterId(0)))
                .collect(),
        };
        Self { model, sequences, batch }
    }

    /// Runs steps. How often they allocated, in all threads.
    fn steps(&mut self, count: usize) -> usize {
        let before = allocations();
        // The caller's own list is not the step's.
        let mut kv: Vec<_> = self.sequences.iter_mut().collect();
        for _ in 0..count {
            let hidden = self.model.forward(&self.batch, &mut kv).unwrap();
            drop(self.model.head(&hidden).unwrap());
            drop(hidden);
            kv.iter_mut().for_each(|seq| seq.advance(1));
        }
        allocations() - before - 1
    }
}

/// One test alone: the count is the process's.
#[test]
fn a_decoding_forward_pass_allocates_nothing() {
    let files = [
        include_bytes!("../../tests/golden/builtin/builtin-int4.tinygpt").as_slice(),
        include_bytes!("../../tests/golden/gguf_tiny/llama/Q8_0.gguf").as_slice(),
    ];
    let here = Pool::new(NonZeroUsize::MIN);
    for file in files {
        let sizes = [(1, 1), (2, 1), (2, 5)];
        check("a file", &|| load(file, &here).unwrap().weights, &sizes);
    }
    for name in ["gpt2", "qwen3", "phi3", "gemma3"] {
        let models = || seeded::all(Kept::FourBits).into_iter();
        // They are too small for a second thread to be sure of a share before they are counted.
        let sizes = [(1, 1), (1, 5)];
        let model = || models().find(|(known, _)| *known == name).unwrap().1;
        check(name, &model, &sizes);
        if name == "qwen3" {
            check("an adapter", &|| adapted(model()), &sizes);
        }
    }
}

fn adapted(mut weights: Weights) -> Weights {
    let shapes =
        [("self_attn.q_proj", [128, 64]), ("mlp.gate_proj", [96, 64]), ("mlp.down_proj", [64, 96])];
    let named = |layer| shapes.map(|(part, shape)| (format!("model.layers.{layer}.{part}"), shape));
    let layers = (0..4).flat_map(named).collect();
    let adapter = adapters::Adapter { rank: 4, alpha: 8.0, seed: 1, layers };
    let config = adapter.config().to_string();
    let adapter = Adapter::from_peft(config.as_bytes(), &adapter.safetensors()).unwrap();
    weights.adapt(AdapterId(0), &adapter).unwrap();
    weights
}

fn check(model: &str, weights: &dyn Fn() -> Weights, sizes: &[(usize, usize)]) {
    for numerics in [Numerics::Exact, Numerics::Fast] {
        for &(threads, sequences) in sizes {
            let mut decode = Decode::new(weights(), numerics, threads, sequences);
            decode.steps(40);
            let what = format!("{model}, {numerics:?}, {threads} threads, {sequences} sequences");
            assert_eq!(decode.steps(20), 0, "{what}");
        }
    }
}
