//! Every architecture, with every way of its layers to differ: a row's bits depend on the tokens of
//! its own sequence alone, and on all that the configuration says.
#![expect(clippy::unwrap_used, reason = "tests")]

mod adapters;
mod runner;
mod seeded;

use runner::{Logits, Runner, numbers, prompt};
use seeded::{CONTEXT, Kept, VOCAB};
use tinygpt_kernels::Matrix;
use tinygpt_kernels::sample::uniform;
use tinygptd::kv::codec::Codec;
use tinygptd::kv::layout::Window;
use tinygptd::model::Numerics;
use tinygptd::model::device::Choice;
use tinygptd::model::load::{
    Dense, ExpertsConfig, Gelu, GemmaConfig, GptConfig, Linear, LlamaConfig, Mlp, RopeConfig,
    Weights,
};

/// Longer than any window and any chunk.
const LEN: usize = 300;

fn text(seed: u64) -> Vec<u32> {
    prompt(seed, LEN, VOCAB)
}

/// Every model in both arithmetics, with weights that both treat alike and weights that they do
/// not.
fn everywhere(mut check: impl FnMut(&str, &dyn Fn(usize) -> Runner)) {
    everywhere_with(|_, weights| weights, |what, start, _| check(what, start));
}

/// The same of what `make` makes of each model, and of the models as they are.
fn everywhere_with(
    make: impl Fn(&str, Weights) -> Weights,
    mut check: impl FnMut(&str, &dyn Fn(usize) -> Runner, &dyn Fn(usize) -> Runner),
) {
    for (kept, numerics) in [
        (Kept::Plain, Numerics::Exact),
        (Kept::FourBits, Numerics::Exact),
        (Kept::FourBits, Numerics::Fast),
    ] {
        for index in 0..seeded::all(kept).len() {
            let (name, _) = seeded::all(kept).swap_remove(index);
            let what = format!("{name}, {kept:?}, {numerics:?}");
            let weights = || seeded::all(kept).swap_remove(index).1;
            let run =
                |threads, weights| Runner::on(Choice::Cpu, threads, weights, numerics, Codec::F16);
            check(&what, &|threads| run(threads, make(name, weights())), &|threads| {
                run(threads, weights())
            });
        }
    }
}

/// All rows of a sequence in one slice.
fn whole(runner: &mut Runner, tokens: &[u32]) -> Logits {
    let mut seq = runner.seq();
    runner.rows(&mut seq, tokens)
}

#[test]
fn rows_have_the_same_bits_in_one_slice_and_one_by_one() {
    everywhere(|what, start| {
        let tokens = text(1);
        let want = whole(&mut start(1), &tokens);
        let mut runner = start(2);
        let mut seq = runner.seq();
        for (position, token) in tokens.iter().enumerate() {
            let got = runner.rows(&mut seq, &[*token]);
            assert_eq!(got[0], want[position], "{what}, position {position}");
        }
    });
}

#[test]
fn rows_have_the_same_bits_however_they_are_cut_and_whoever_travels_with_them() {
    everywhere(|what, start| {
        let (ours, theirs) = (text(1), text(2));
        let [want, of_theirs] = [&ours, &theirs].map(|tokens| whole(&mut start(1), tokens));
        for seed in 0..3 {
            let mut runner = start(2);
            let [mut a, mut b] = [runner.seq(), runner.seq()];
            for step in 0.. {
                let cut = |at: usize, to: u32| {
                    let most = [1.0, 20.0, 150.0][(seed as usize + to as usize) % 3];
                    let rows = 1 + (uniform(seed, to, step) * most) as usize;
                    at..LEN.min(at + rows)
                };
                let (ours_now, theirs_now) = (cut(a.len(), 0), cut(b.len(), 1));
                if ours_now.is_empty() || theirs_now.is_empty() {
                    break;
                }
                let rows = [&ours[ours_now.clone()], &theirs[theirs_now.clone()]];
                let got = runner.step(&mut [&mut a, &mut b], &rows);
                assert_eq!(got[0], want[ours_now], "{what}, cut {seed}.{step}");
                assert_eq!(got[1], of_theirs[theirs_now], "{what}, cut {seed}.{step}");
            }
        }
    });
}

/// As many requests do that begin alike: windows end inside what they share.
#[test]
fn branches_of_one_prompt_have_the_bits_of_each_alone() {
    everywhere(|what, start| {
        let tokens = text(1);
        let mut runner = start(2);
        let mut trunk = runner.seq();
        runner.rows(&mut trunk, &tokens);
        for len in [31, 32, 33, 65, 256, 257, 287] {
            let own: Vec<Vec<u32>> = (3..8).map(|seed| text(seed)[..5].to_vec()).collect();
            let mut seqs: Vec<_> = own.iter().map(|_| runner.branch(&trunk, len)).collect();
            let want: Vec<Logits> = own
                .iter()
                .map(|own| whole(&mut runner, &[&tokens[..len], own].concat()).split_off(len))
                .collect();
            for position in 0..5 {
                let mut kv: Vec<_> = seqs.iter_mut().collect();
                let rows: Vec<_> = own.iter().map(|own| &own[position..=position]).collect();
                for (got, want) in runner.step(&mut kv, &rows).iter().zip(&want) {
                    assert_eq!(got[0], want[position], "{what}, {len} shared, {position}");
                }
            }
        }
    });
}

/// The other executor is candle's arithmetic, which shares no code with ours.
#[test]
fn a_device_computes_what_the_processor_computes() {
    for index in 0..seeded::all(Kept::Plain).len() {
        let run = |choice, slices: &[usize]| {
            let (_, weights) = seeded::all(Kept::Plain).swap_remove(index);
            let mut runner = Runner::on(choice, 2, weights, Numerics::Exact, Codec::F32);
            let (mut seq, mut rows, tokens) = (runner.seq(), Vec::new(), text(1));
            for &slice in slices {
                let next = seq.len()..seq.len() + slice;
                rows.extend(runner.rows(&mut seq, &tokens[next]));
            }
            numbers(&rows)
        };
        let (name, _) = seeded::all(Kept::Plain).swap_remove(index);
        let host = run(Choice::Cpu, &[LEN]);
        for slices in [&[LEN][..], &[1, 30, 2, 100, 1, 166]] {
            let device = run(Choice::CandleCpu, slices);
            let far = host.iter().zip(&device).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            let size = host.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
            assert!(far < 2e-4 * size.max(1.0), "{name}: {far} of {size}");
        }
    }
}

/// The logits of a text in exact arithmetic over plain rows.
fn logits(weights: Weights) -> Vec<f32> {
    numbers(&whole(&mut Runner::host(weights, Numerics::Exact, Codec::F32), &text(1)))
}

fn gemma(config: GemmaConfig) -> Weights {
    Weights::Gemma(seeded::gemma(config, Kept::Plain))
}

fn llama(config: LlamaConfig) -> Weights {
    Weights::Llama(seeded::llama(config, Kept::Plain))
}

fn gpt(config: GptConfig) -> Weights {
    Weights::Gpt(seeded::gpt(config, Kept::Plain))
}

#[test]
fn every_number_of_a_configuration_changes_the_logits_and_the_digest() {
    let changed_gemma = |change: &dyn Fn(&mut GemmaConfig)| {
        let mut config = seeded::gemma_config();
        change(&mut config);
        gemma(config)
    };
    let changed_rope = |change: &dyn Fn(&mut RopeConfig)| {
        let mut config = seeded::phi3_config();
        change(&mut config.ropes[0]);
        llama(config)
    };
    let gemmas: [&dyn Fn(&mut GemmaConfig); 9] = [
        &|_| {},
        &|c| c.query_scale = 0.3,
        &|c| c.embedding_scale = 1.0,
        &|c| c.attention_softcap = None,
        &|c| c.final_softcap = Some(2.0),
        &|c| c.llama.plan[0].window = Window::Sliding(32),
        &|c| c.llama.plan[2].window = Window::Sliding(250),
        &|c| c.llama.plan[1].rope = None,
        &|c| c.llama.plan[2].rope = Some(0),
    ];
    let ropes: [&dyn Fn(&mut RopeConfig); 6] = [
        &|_| {},
        &|r| r.base = 20_000.0,
        &|r| r.factors = None,
        &|r| r.attention_factor = 1.0,
        &|r| (r.dims, r.factors) = (32, None),
        &|r| r.convention = tinygpt_kernels::Convention::HalfSplit,
    ];
    let experts = |count, top| Some(ExpertsConfig { count, top });
    let gpts = [
        seeded::gpt_config(),
        GptConfig { activation: Gelu::Tanh, ..seeded::gpt_config() },
        GptConfig { kv_heads: 2, ..seeded::gpt_config() },
        GptConfig { window: Window::Sliding(64), ..seeded::gpt_config() },
        GptConfig { experts: experts(4, 1), ..seeded::gpt_config() },
        GptConfig { experts: experts(4, 2), ..seeded::gpt_config() },
    ];
    let mut seen: Vec<(Vec<f32>, Vec<u8>)> = Vec::new();
    let gemmas = gemmas.into_iter().map(changed_gemma);
    let models = gemmas.chain(ropes.into_iter().map(changed_rope)).chain(gpts.map(gpt));
    for (number, weights) in models.enumerate() {
        let digest = weights.config_digest_input();
        let logits = logits(weights);
        assert!(logits.iter().all(|x| x.is_finite()), "model {number}");
        let like = seen.iter().position(|(l, d)| *l == logits || *d == digest);
        assert_eq!(like, None, "model {number}");
        seen.push((logits, digest));
    }
}

#[test]
fn a_window_as_long_as_the_context_has_the_bits_of_none() {
    let full = seeded::llama_config();
    let mut all = full.clone();
    all.plan.iter_mut().for_each(|plan| plan.window = Window::Sliding(CONTEXT));
    assert_eq!(logits(llama(full)), logits(llama(all)));
}

/// Each of four layers sees 39 tokens further back.
#[test]
fn what_lies_before_the_windows_of_all_layers_changes_nothing() {
    let reach = 4 * 39;
    let mut runner = Runner::host(llama(seeded::mistral_config()), Numerics::Exact, Codec::F16);
    let ours = text(1);
    let mut theirs = ours.clone();
    theirs[100] = (theirs[100] + 1) % VOCAB;
    let [ours, theirs] = [ours, theirs].map(|tokens| whole(&mut runner, &tokens));
    assert_eq!(ours[..100], theirs[..100]);
    assert_eq!(ours[100 + reach + 1..], theirs[100 + reach + 1..]);
    assert_ne!(ours[100 + reach], theirs[100 + reach]);
}

#[test]
fn keys_and_values_that_are_the_same_for_two_heads_are_shared_with_the_same_bits() {
    let config = GptConfig { kv_heads: 2, ..seeded::gpt_config() };
    let shared = seeded::gpt(config, Kept::Plain);
    let mut each = seeded::gpt(shared.config.clone(), Kept::Plain);
    each.config.kv_heads = each.config.heads;
    let dim = each.config.width / each.config.heads;
    // Head h of four reads head h / 2 of two.
    let double = |of: &Linear| {
        let rows: Vec<usize> = (0..4 * dim).map(|row| row / dim / 2 * dim + row % dim).collect();
        let mut weights = vec![0.0; rows.len() * of.weight.k()];
        for (row, to) in rows.iter().zip(weights.chunks_exact_mut(of.weight.k())) {
            of.weight.row(*row, to);
        }
        let bias = of.bias.as_ref().map(|bias| rows.iter().map(|row| bias[*row]).collect());
        Linear::new(Matrix::from_f32(rows.len(), of.weight.k(), &weights), bias)
    };
    for block in &mut each.blocks {
        block.attention.k = double(&block.attention.k);
        block.attention.v = double(&block.attention.v);
    }
    assert_eq!(logits(Weights::Gpt(shared)), logits(Weights::Gpt(each)));
}

#[test]
fn experts_that_are_all_the_same_are_one_mlp_when_their_weights_sum_to_one() {
    let config =
        GptConfig { experts: Some(ExpertsConfig { count: 4, top: 3 }), ..seeded::gpt_config() };
    let mut mixed = seeded::gpt(config, Kept::Plain);
    let mut single = seeded::gpt(mixed.config.clone(), Kept::Plain);
    single.config.experts = None;
    for (mixed, single) in mixed.blocks.iter_mut().zip(&mut single.blocks) {
        let (Mlp::Experts(all), Mlp::Experts(one)) = (&mut mixed.mlp, &mut single.mlp) else {
            panic!("experts")
        };
        let first = one.experts.swap_remove(0);
        for expert in &mut all.experts {
            expert.fc_in.weight = first.fc_in.weight.clone();
            expert.fc_out.weight = first.fc_out.weight.clone();
            expert.fc_in.bias.clone_from(&first.fc_in.bias);
            expert.fc_out.bias.clone_from(&first.fc_out.bias);
        }
        single.mlp = Mlp::Dense(first);
    }
    let (ours, theirs) = (logits(Weights::Gpt(mixed)), logits(Weights::Gpt(single)));
    let far = ours.iter().zip(theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(far < 1e-4, "{far}");
}

/// A router of zeros finds all experts alike, so the first two share each row: they are one MLP
/// of twice the size, whose outputs are halved.
#[test]
fn two_experts_are_one_mlp_of_both() {
    let config =
        GptConfig { experts: Some(ExpertsConfig { count: 4, top: 2 }), ..seeded::gpt_config() };
    let mut mixed = seeded::gpt(config, Kept::Plain);
    let mut single = seeded::gpt(mixed.config.clone(), Kept::Plain);
    single.config.experts = None;
    for (mixed, single) in mixed.blocks.iter_mut().zip(&mut single.blocks) {
        let Mlp::Experts(experts) = &mut mixed.mlp else { panic!("experts") };
        let (n, k) = (experts.router.weight.n(), experts.router.weight.k());
        experts.router.weight = Matrix::from_f32(n, k, &vec![0.0; n * k]);
        single.mlp = Mlp::Dense(both(&experts.experts[0], &experts.experts[1]));
    }
    let (ours, theirs) = (logits(Weights::Gpt(mixed)), logits(Weights::Gpt(single)));
    let far = ours.iter().zip(theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(far < 1e-4, "{far}");
}

/// `(a(x) + b(x)) / 2`
fn both(a: &Dense, b: &Dense) -> Dense {
    let rows = |of: &Linear| -> Vec<Vec<f32>> {
        let mut rows = vec![vec![0.0; of.weight.k()]; of.weight.n()];
        rows.iter_mut().enumerate().for_each(|(n, row)| of.weight.row(n, row));
        rows
    };
    let bias = |of: &Linear| of.bias.clone().unwrap();
    let inner = [rows(&a.fc_in), rows(&b.fc_in)].concat();
    let outer = rows(&a.fc_out).into_iter().zip(rows(&b.fc_out)).map(|(a, b)| [a, b].concat());
    let halved: Vec<f32> = outer.flatten().map(|x| x / 2.0).collect();
    let (m, c) = (inner.len(), inner[0].len());
    let biases = bias(&a.fc_out).into_iter().zip(bias(&b.fc_out)).map(|(a, b)| (a + b) / 2.0);
    Dense {
        fc_in: Linear::new(
            Matrix::from_f32(m, c, &inner.concat()),
            Some([bias(&a.fc_in), bias(&b.fc_in)].concat()),
        ),
        fc_out: Linear::new(Matrix::from_f32(c, m, &halved), Some(biases.collect())),
    }
}
