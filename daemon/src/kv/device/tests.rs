#![expect(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use tinygpt_kernels::Shape;

use super::*;
use crate::kv::key::BlockKey;
use crate::kv::layout::{BLOCK, LayerShape, Layout, Window};
use crate::kv::seq::{KvSeq, Slabs};

const SHAPE: LayerShape = LayerShape { kv_heads: 2, k_dim: 3, v_dim: 4 };
const LAYERS: usize = 2;

/// Bytes of the smallest run in f16.
const RUN: usize = 128 * LAYERS * 2 * (3 + 4) * 2;

/// A device, a host, and a model that computes nothing.
struct Bench {
    tier: Tier,
    slabs: Slabs,
    layout: Arc<Layout>,
    /// Tells the prompts apart.
    prompt: u8,
}

/// Numbers that name their layer and place, some of them beyond f16.
fn numbers(layer: usize, first: usize, rows: usize, width: usize) -> Vec<f32> {
    let number = |i: usize| {
        let seed = ((layer * 1_000 + first) * width + i) as u32;
        let noise = seed.wrapping_mul(2_654_435_761) >> 8;
        if noise.is_multiple_of(50) { 1e6 } else { noise as f32 / 1e6 - 8.0 }
    };
    (0..rows * width).map(number).collect()
}

fn tensor(numbers: &[f32], width: usize) -> Tensor {
    Tensor::from_slice(numbers, (numbers.len() / width, width), &Device::Cpu).unwrap()
}

/// Two query heads for each of the keys' and values'.
fn shape(layout: &Layout, layer: usize) -> Shape {
    let LayerShape { kv_heads, k_dim, v_dim } = layout.shape(layer);
    Shape {
        heads: 2 * kv_heads,
        kv_heads,
        k_dim,
        v_dim,
        element: layout.codec().element(),
        scale: 1.0 / (k_dim as f32).sqrt(),
        softcap: None,
        window: layout.window(layer).tokens(),
    }
}

impl Bench {
    fn new(codec: Codec, budget: usize) -> Self {
        let layout = Arc::new(Layout::new(codec, &[(SHAPE, Window::Full); LAYERS]));
        let (tier, slabs) = (Tier::new(Device::Cpu, budget), Slabs::new(&layout));
        Self { tier, slabs, layout, prompt: 0 }
    }

    fn seq(&self) -> KvSeq {
        KvSeq::new(Arc::clone(&self.layout))
    }

    /// A step of `rows` rows, as an executor does it; seals and keeps what is complete. Returns
    /// what each layer attended.
    fn step(&mut self, seq: &mut KvSeq, rows: usize) -> Result<Vec<Tensor>, DeviceError> {
        seq.reserve(seq.len() + rows, &mut self.slabs).unwrap();
        Resident::prepare(&self.tier, seq, rows)?;
        let mut attended = Vec::new();
        for layer in 0..LAYERS {
            let (k, v) = (numbers(layer, seq.len(), rows, 6), numbers(layer, seq.len(), rows, 8));
            seq.resident().write(&self.layout, layer, [&tensor(&k, 6), &tensor(&v, 8)])?;
            let shape = shape(&self.layout, layer);
            let q = tensor(&numbers(7, seq.len(), rows, 12), 12);
            attended.push(seq.resident().attend(
                &self.layout,
                layer,
                &(q / 1e6).unwrap(),
                &shape,
            )?);
            seq.write(layer, &k, &v);
        }
        seq.advance_resident();
        seq.advance(rows);
        while seq.tail_len() >= BLOCK {
            let index = u8::try_from(seq.sealed().len()).unwrap();
            let key = |n| BlockKey([self.prompt * 64 + n; 32]);
            let block = seq.seal(key(index + 1), key(index), [0; BLOCK]);
            seq.swap_last(block);
        }
        Ok(attended)
    }

    /// A sequence of `len` rows, computed in steps of `rows`.
    fn computed(&mut self, len: usize, rows: usize) -> KvSeq {
        let mut seq = self.seq();
        while seq.len() < len {
            let rows = rows.min(len - seq.len());
            self.step(&mut seq, rows).unwrap();
        }
        seq
    }

    /// Another sequence that begins with the sealed blocks and the tail of `seq`.
    fn restored(&mut self, seq: &KvSeq) -> KvSeq {
        let mut restored = self.seq();
        seq.sealed().iter().for_each(|block| restored.attach(Arc::clone(block)));
        let rows = seq.tail_len();
        restored.restore_tail(&seq.tail_rows(), rows, rows, &mut self.slabs).unwrap();
        restored
    }
}

/// Every number of a sequence on the device, layer by layer, keys and values.
fn on_device(seq: &KvSeq) -> Vec<f32> {
    let mut numbers = Vec::new();
    for layer in 0..LAYERS {
        let stretches = seq.resident().stretches(0..seq.len());
        let pieces: Vec<[Tensor; 2]> =
            stretches.map(|s| s.run.rows(layer, s.rows).unwrap()).collect();
        for kv in 0..2 {
            let rows: Vec<_> = pieces.iter().map(|piece| &piece[kv]).collect();
            let rows = Tensor::cat(&rows, 1).unwrap().to_dtype(DType::F32).unwrap();
            numbers.extend(rows.flatten_all().unwrap().to_vec1::<f32>().unwrap());
        }
    }
    numbers
}

fn moved(bench: &Bench) -> u64 {
    bench.tier.usage().uploaded
}

#[test]
fn rows_that_come_back_from_the_host_have_the_bits_of_rows_that_stayed() {
    for codec in Codec::ALL {
        for len in [1, 31, 32, 33, 64, 300, 417] {
            let mut bench = Bench::new(codec, 1 << 30);
            let mut stayed = bench.computed(len, 100);
            bench.tier.clear();
            let mut back = bench.restored(&stayed);
            bench.step(&mut stayed, 5).unwrap();
            assert_eq!(moved(&bench), 0);
            bench.step(&mut back, 5).unwrap();
            assert_eq!(moved(&bench), len as u64, "{codec} {len}");
            assert_eq!(on_device(&stayed), on_device(&back), "{codec} {len}");
        }
    }
}

#[test]
fn what_is_there_is_read_there_and_not_moved_again() {
    let mut bench = Bench::new(Codec::F16, 1 << 30);
    let first = bench.computed(330, 64);
    assert_eq!(moved(&bench), 0, "computed rows never cross");
    let before = bench.tier.usage().bytes;
    let mut second = bench.restored(&first);
    bench.step(&mut second, 1).unwrap();
    assert_eq!(moved(&bench), 10, "the tail is copied, ten blocks are shared");
    assert_eq!(bench.tier.usage().bytes - before, RUN as u64, "room for its own rows only");
    for _ in 0..100 {
        bench.step(&mut second, 1).unwrap();
    }
    assert_eq!(moved(&bench), 10, "a step moves nothing that is there");
    let mut third = bench.restored(&second);
    drop((first, second));
    bench.step(&mut third, 1).unwrap();
    assert_eq!(moved(&bench), 10 + (330 + 101) % 32, "whoever computed them may be gone");
}

#[test]
fn rows_in_many_pieces_are_attended_as_rows_in_one() {
    let mut bench = Bench::new(Codec::F32, 1 << 30);
    let mut pieces = bench.computed(500, 7);
    bench.tier.clear();
    let mut whole = bench.restored(&pieces);
    for rows in [1, 40] {
        let steps = [&mut pieces, &mut whole].map(|seq| bench.step(seq, rows).unwrap());
        for (ours, theirs) in steps[0].iter().zip(&steps[1]) {
            let most = (ours - theirs).unwrap().abs().unwrap().max_all().unwrap();
            let most = most.to_scalar::<f32>().unwrap();
            assert!(most < 1.0, "{most}, among numbers up to a million");
        }
    }
}

#[test]
fn rows_that_nobody_reads_make_room() {
    let mut bench = Bench::new(Codec::F16, 2 * RUN);
    let oldest = bench.computed(128, 64);
    let kept = bench.restored(&oldest);
    drop(oldest);
    bench.prompt = 1;
    let reading = bench.computed(100, 50);
    let mut third = bench.computed(100, 50);
    assert_eq!(bench.tier.usage().bytes, 2 * RUN as u64);
    let refused = bench.step(&mut third, 40).unwrap_err().to_string();
    for word in [RUN.to_string(), (2 * RUN).to_string(), "--device-memory".to_owned()] {
        assert!(refused.contains(&word), "{refused}");
    }
    drop((third, reading));
    bench.prompt = 0;
    let mut back = kept;
    bench.step(&mut back, 1).unwrap();
    assert_eq!(moved(&bench), 128, "what made room is uploaded again");
}

#[test]
fn a_sequence_that_found_no_room_goes_on_when_there_is_some() {
    let mut bench = Bench::new(Codec::F16, 2 * RUN);
    let others = bench.computed(10, 10);
    let mut seq = bench.computed(100, 50);
    assert!(bench.step(&mut seq, 60).is_err());
    drop(others);
    let refused = bench.step(&mut seq, 150);
    assert!(matches!(refused, Err(DeviceError::Full { .. })), "{refused:?}");
    bench.step(&mut seq, 60).unwrap();
    assert_eq!(seq.len(), 160);
    let elsewhere = Bench::new(Codec::F16, 1 << 30).computed(160, 50);
    assert_eq!(on_device(&seq), on_device(&elsewhere));
}
