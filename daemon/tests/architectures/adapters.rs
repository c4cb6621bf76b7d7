//! Adapters on every architecture: what they add is what merged weights add, in their own rows and
//! in no others.

use tinygpt_kernels::{Convention, Matrix};
use tinygpt_tests::adapters::Adapter;
use tinygptd::model::load::{Linear, LlamaBlock, Mlp, RopeConfig, Weights};
use tinygptd::model::{AdapterId, load};

use super::*;

/// Further from merged weights no number may be, of the largest.
const FAR: f32 = 2e-4;

/// An adapter of everything that can be adapted, under the names that the architecture's
/// checkpoints have.
fn adapter(name: &str, weights: &Weights, seed: u64) -> Adapter {
    let shape = |linear: &Linear| [linear.weight.n(), linear.weight.k()];
    let fused =
        |linears: &[&Linear]| [linears.iter().map(|it| it.weight.n()).sum(), linears[0].weight.k()];
    let attention = |at: &load::Attention| {
        let names = [("q", &at.q), ("k", &at.k), ("v", &at.v), ("o", &at.o)];
        names.map(|(part, linear)| (format!("{part}_proj"), shape(linear)))
    };
    let decoder = |layer: usize, at: &load::Attention, mlp: [&Linear; 3]| {
        let root = format!("model.layers.{layer}");
        let [gate, up, down] = mlp;
        let own = attention(at).map(|(part, shape)| (format!("{root}.self_attn.{part}"), shape));
        let mlp = [("gate", gate), ("up", up), ("down", down)]
            .map(|(part, linear)| (format!("{root}.mlp.{part}_proj"), shape(linear)));
        own.into_iter().chain(mlp).collect::<Vec<_>>()
    };
    let llama = |layer: usize, block: &LlamaBlock| {
        decoder(layer, &block.attention, [&block.gate, &block.up, &block.down])
    };
    let layers: Vec<_> = match weights {
        Weights::Gpt(weights) => {
            let block = |(layer, block): (usize, &load::GptBlock)| -> Vec<(String, [usize; 2])> {
                let at = &block.attention;
                let Mlp::Dense(mlp) = &block.mlp else {
                    let root = format!("blocks.{layer}.attn");
                    return attention(at)
                        .map(|(part, shape)| (format!("{root}.{part}"), shape))
                        .into();
                };
                if name == "gpt2" {
                    return [
                        ("attn.c_attn", fused(&[&at.q, &at.k, &at.v])),
                        ("attn.c_proj", shape(&at.o)),
                        ("mlp.c_fc", shape(&mlp.fc_in)),
                        ("mlp.c_proj", shape(&mlp.fc_out)),
                    ]
                    .map(|(part, shape)| (format!("transformer.h.{layer}.{part}"), shape))
                    .to_vec();
                }
                let root = format!("blocks.{layer}");
                let own = attention(at).map(|(part, it)| (format!("{root}.attn.{part}"), it));
                let mlp = [("fc_in", &mlp.fc_in), ("fc_out", &mlp.fc_out)]
                    .map(|(part, linear)| (format!("{root}.mlp.{part}"), shape(linear)));
                own.into_iter().chain(mlp).collect()
            };
            weights.blocks.iter().enumerate().flat_map(block).collect()
        }
        // Only some elements of each of its heads turn, side by side, which no checkpoint has.
        Weights::Llama(weights) if name == "phi3" => {
            let block = |(layer, block): (usize, &LlamaBlock)| {
                [
                    ("self_attn.v_proj", shape(&block.attention.v)),
                    ("self_attn.o_proj", shape(&block.attention.o)),
                    ("mlp.gate_up_proj", fused(&[&block.gate, &block.up])),
                    ("mlp.down_proj", shape(&block.down)),
                ]
                .map(|(part, shape)| (format!("model.layers.{layer}.{part}"), shape))
            };
            weights.blocks.iter().enumerate().flat_map(block).collect()
        }
        Weights::Llama(weights) => {
            weights.blocks.iter().enumerate().flat_map(|(at, it)| llama(at, it)).collect()
        }
        Weights::Gemma(weights) => {
            let block = |(layer, it): (usize, &load::GemmaBlock)| {
                decoder(layer, &it.attention, [&it.gate, &it.up, &it.down])
            };
            weights.blocks.iter().enumerate().flat_map(block).collect()
        }
    };
    Adapter { rank: 3 + seed as usize % 3, alpha: 5.0, seed: 100 * seed, layers }
}

fn read(adapter: &Adapter) -> load::Adapter {
    match adapter.layers[0].0.starts_with("blocks.") {
        true => load::Adapter::from_lora(&adapter.lora()).unwrap(),
        false => {
            let config = adapter.config().to_string();
            load::Adapter::from_peft(config.as_bytes(), &adapter.safetensors()).unwrap()
        }
    }
}

/// A model with adapters 0 and 1.
fn adapted(name: &str, mut weights: Weights) -> Weights {
    for id in 0..2 {
        let adapter = adapter(name, &weights, 1 + id);
        weights.adapt(AdapterId(id as usize), &read(&adapter)).unwrap();
    }
    weights
}

/// The layers that a name stands for.
fn layers<'w>(weights: &'w mut Weights, name: &str) -> Vec<&'w mut Linear> {
    let mut words = name.rsplit('.');
    let (part, _, layer) = (words.next().unwrap(), words.next(), words.next().unwrap());
    let layer: usize = layer.parse().unwrap();
    let (attention, mlp) = match weights {
        Weights::Gpt(weights) => {
            let block = &mut weights.blocks[layer];
            let mlp: Vec<_> = match &mut block.mlp {
                Mlp::Dense(dense) => vec![&mut dense.fc_in, &mut dense.fc_out],
                Mlp::Experts(_) => Vec::new(),
            };
            (&mut block.attention, mlp)
        }
        Weights::Llama(weights) => {
            let block = &mut weights.blocks[layer];
            (&mut block.attention, vec![&mut block.gate, &mut block.up, &mut block.down])
        }
        Weights::Gemma(weights) => {
            let block = &mut weights.blocks[layer];
            (&mut block.attention, vec![&mut block.gate, &mut block.up, &mut block.down])
        }
    };
    let numbers = match (part, name.contains("attn")) {
        ("c_attn" | "qkv_proj", _) => 0..3,
        ("q_proj", _) => 0..1,
        ("k_proj", _) => 1..2,
        ("v_proj", _) => 2..3,
        ("o_proj", _) | ("c_proj", true) => 3..4,
        ("gate_up_proj", _) => 4..6,
        ("gate_proj" | "fc_in" | "c_fc", _) => 4..5,
        ("up_proj" | "fc_out", _) | ("c_proj", false) => 5..6,
        ("down_proj", _) => 6..7,
        _ => panic!("{name}"),
    };
    let all = [&mut attention.q, &mut attention.k, &mut attention.v, &mut attention.o];
    let all = all.into_iter().chain(mlp).enumerate();
    all.filter(|(at, _)| numbers.contains(at)).map(|(_, linear)| linear).collect()
}

/// A model whose weights are what an adapter makes of them.
fn merged(mut weights: Weights, adapter: &Adapter) -> Weights {
    for (at, (name, _)) in adapter.layers.iter().enumerate() {
        let delta = adapter.delta(at);
        let mut rest = &delta[..];
        for linear in layers(&mut weights, name) {
            let (n, k) = (linear.weight.n(), linear.weight.k());
            let mut numbers = vec![0.0; n * k];
            numbers.chunks_exact_mut(k).enumerate().for_each(|(n, row)| linear.weight.row(n, row));
            let (delta, behind) = rest.split_at(n * k);
            rest = behind;
            numbers.iter_mut().zip(delta).for_each(|(number, more)| *number += more);
            linear.weight = Matrix::from_f32(n, k, &numbers);
        }
        assert!(rest.is_empty(), "{name}");
    }
    weights
}

fn model(kept: Kept, index: usize) -> (&'static str, Weights) {
    seeded::all(kept).swap_remove(index)
}

/// The logits of a text that carries an adapter.
fn carried(mut runner: Runner, id: Option<AdapterId>) -> Vec<f32> {
    let mut seq = runner.seq();
    numbers(&runner.step_with(&mut [&mut seq], &[&text(1)], &[id]).remove(0))
}

/// How far two texts' logits are from each other, over the largest.
fn far(ours: &[f32], theirs: &[f32]) -> f32 {
    let far = ours.iter().zip(theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    far / theirs.iter().fold(1.0, |most: f32, x| most.max(x.abs()))
}

#[test]
fn an_adapter_adds_what_merged_weights_add_on_the_processor_and_on_a_device() {
    for (kept, choice) in [
        (Kept::Plain, Choice::Cpu),
        (Kept::FourBits, Choice::Cpu),
        (Kept::Plain, Choice::CandleCpu),
    ] {
        for index in 0..seeded::all(kept).len() {
            let (name, weights) = model(kept, index);
            let run = |weights| Runner::on(choice, 2, weights, Numerics::Exact, Codec::F32);
            let bare = carried(run(model(kept, index).1), None);
            for id in 0..2 {
                let merged = merged(model(kept, index).1, &adapter(name, &weights, 1 + id));
                let want = carried(run(merged), None);
                let id = Some(AdapterId(id as usize));
                let got = carried(run(adapted(name, model(kept, index).1)), id);
                let (off, change) = (far(&got, &want), far(&bare, &want));
                assert!(off < FAR && change > 20.0 * FAR, "{name}: {off}, of {change}");
            }
        }
    }
}

/// Both adapters and none at once, cut differently in each round, on weights of every kind.
#[test]
fn rows_have_the_bits_of_their_adapter_alone_whoever_travels_with_them() {
    everywhere_with(adapted, |what, start, bare| {
        let texts = [1, 2, 1, 1].map(text);
        let ids = [None, Some(AdapterId(0)), Some(AdapterId(1)), Some(AdapterId(0))];
        let alone = |(tokens, id): (&Vec<u32>, &Option<AdapterId>)| {
            let mut runner = start(1);
            let mut seq = runner.seq();
            runner.step_with(&mut [&mut seq], &[tokens], &[*id]).remove(0)
        };
        let want: Vec<Logits> = texts.iter().zip(&ids).map(alone).collect();
        assert_eq!(want[0], whole(&mut bare(1), &texts[0]), "{what}, without an adapter");
        assert!(want[0] != want[2] && want[2] != want[3], "{what}, the adapters change nothing");
        let mut runner = start(2);
        let mut seqs: Vec<_> = ids.iter().map(|_| runner.seq()).collect();
        for step in 0.. {
            let cuts: Vec<_> = (0..4)
                .map(|at| {
                    let most = [1.0, 20.0, 90.0][(step as usize + at as usize) % 3];
                    let rows = 1 + (uniform(7, at, step) * most) as usize;
                    let first = seqs[at as usize].len();
                    first..LEN.min(first + rows)
                })
                .collect();
            if cuts.iter().any(std::ops::Range::is_empty) {
                break;
            }
            let rows: Vec<_> =
                cuts.iter().zip(&texts).map(|(cut, text)| &text[cut.clone()]).collect();
            let mut kv: Vec<_> = seqs.iter_mut().collect();
            for (at, got) in runner.step_with(&mut kv, &rows, &ids).iter().enumerate() {
                assert_eq!(*got, want[at][cuts[at].clone()], "{what}, text {at}, step {step}");
            }
        }
    });
}

/// Rows of queries and keys as files have them whose pairs lie side by side.
fn side_by_side(linear: &mut Linear, head_dim: usize) {
    let (n, k) = (linear.weight.n(), linear.weight.k());
    let mut numbers = vec![0.0; n * k];
    for (row, to) in numbers.chunks_exact_mut(k).enumerate() {
        let (head, at) = (row / head_dim, row % head_dim);
        linear.weight.row(head * head_dim + at / 2 + at % 2 * (head_dim / 2), to);
    }
    linear.weight = Matrix::from_f32(n, k, &numbers);
}

#[test]
fn an_adapter_fits_a_file_of_the_same_model_whose_pairs_lie_side_by_side() {
    let plain = || seeded::llama(seeded::llama_config(), Kept::Plain);
    let mut turned = plain();
    for block in &mut turned.blocks {
        side_by_side(&mut block.attention.q, 32);
        side_by_side(&mut block.attention.k, 32);
    }
    for RopeConfig { convention, .. } in &mut turned.config.ropes {
        *convention = Convention::Interleaved;
    }
    let run = |weights, id| carried(Runner::host(weights, Numerics::Exact, Codec::F32), id);
    let id = Some(AdapterId(0));
    let want = run(adapted("llama", Weights::Llama(plain())), id);
    let got = run(adapted("llama", Weights::Llama(turned)), id);
    let off = far(&got, &want);
    assert!(off < FAR, "{off}");
}

#[test]
fn fused_projections_are_those_that_they_are_made_of() {
    let weights = || Weights::Llama(seeded::llama(seeded::llama_config(), Kept::Plain));
    let fused = [("self_attn.qkv_proj", [256, 64]), ("mlp.gate_up_proj", [192, 64])];
    let layers = (0..4).flat_map(|layer| {
        fused.map(|(part, shape)| (format!("model.layers.{layer}.{part}"), shape))
    });
    let adapter = Adapter { rank: 4, alpha: 4.0, seed: 9, layers: layers.collect() };
    let run = |weights, id| carried(Runner::host(weights, Numerics::Exact, Codec::F32), id);
    let mut ours = weights();
    ours.adapt(AdapterId(0), &read(&adapter)).unwrap();
    let (got, want) = (run(ours, Some(AdapterId(0))), run(merged(weights(), &adapter), None));
    let (off, change) = (far(&got, &want), far(&run(weights(), None), &want));
    assert!(off < FAR && change > 20.0 * FAR, "{off} of {change}");
}
