//! Whatever was cached, and whoever ran beside it, every probability has the same bits.
#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::path::Path;

use common::{Ask, Reply, Running, Setup, collect, prompt};
use tinygpt_tests::directory;
use tinygpt_tests::seeded::Shape;
use tinygptd::engine::Source;
use tinygptd::engine::event::{Reason, Verdict};
use tinygptd::engine::job::{Persist, Policy};
use tinygptd::kv::codec::Codec;
use tinygptd::model::Numerics;

/// The lengths at which something begins or ends: rows, blocks, chunks.
const LENGTHS: [usize; 14] = [1, 2, 31, 32, 33, 63, 64, 65, 127, 255, 256, 257, 600, 1000];

/// What a machine that has never seen the prompt says.
fn miss(engine: &Running, ask: &Ask) -> Reply {
    engine.ask(&ask.clone().policy(Policy::Bypass))
}

fn assert_same(ours: &Reply, theirs: &Reply, what: &str) {
    assert_eq!(ours.ids(), theirs.ids(), "{what}");
    assert_eq!(ours.bits(), theirs.bits(), "{what}");
}

#[test]
fn a_repeated_prompt_runs_no_layer_and_gives_the_same_bits() {
    let engine = Setup::default().start();
    for codec in Codec::ALL {
        for len in LENGTHS {
            let ask = Ask::new(&prompt(1, len)).codec(codec);
            let (never, cold, warm) = (miss(&engine, &ask), engine.ask(&ask), engine.ask(&ask));
            assert_same(&cold, &never, &format!("{codec} {len} cold"));
            assert_same(&warm, &never, &format!("{codec} {len} warm"));
            assert_eq!(never.reuse.verdict, Verdict::Bypassed);
            assert_eq!(warm.reuse.verdict, Verdict::FullMemory, "{codec} {len}");
            assert_eq!(warm.reuse.memory as usize, len);
            assert_eq!(warm.reuse.reason, None);
            assert!(warm.done.times.prefill.is_zero());
        }
    }
}

#[test]
fn a_prompt_that_goes_on_reuses_all_of_the_shorter_one() {
    let engine = Setup::default().start();
    for (seed, len) in (10..).zip(LENGTHS) {
        let long = prompt(seed, len + 20);
        engine.ask(&Ask::new(&long[..len]).tokens(0));
        let ask = Ask::new(&long);
        let warm = engine.ask(&ask);
        assert_same(&warm, &miss(&engine, &ask), &format!("{len}"));
        assert_eq!(warm.reuse.memory as usize, len);
        assert_eq!(warm.reuse.verdict, Verdict::PartialMemory);
        assert_eq!(warm.reuse.reason, Some(Reason::Extended), "{len}");
    }
}

#[test]
fn a_prompt_inside_a_longer_one_recomputes_one_token() {
    let engine = Setup::default().start();
    let long = prompt(3, 300);
    engine.ask(&Ask::new(&long).tokens(0));
    for len in [2, 31, 32, 33, 64, 65, 200, 256, 257, 299] {
        let ask = Ask::new(&long[..len]).policy(Policy::ReadOnly);
        let warm = engine.ask(&ask);
        assert_same(&warm, &miss(&engine, &ask), &format!("{len}"));
        assert_eq!(warm.reuse.memory as usize, if len > 288 { 288.max(len - 1) } else { len - 1 });
        assert_eq!(warm.reuse.reason, Some(Reason::NoRecord), "{len}");
    }
}

#[test]
fn a_prompt_that_parts_anywhere_reuses_everything_up_to_there() {
    let engine = Setup::default().start();
    let first = prompt(4, 200);
    engine.ask(&Ask::new(&first).tokens(0));
    for at in [1, 5, 31, 32, 33, 70, 95, 96, 127, 191, 195, 199] {
        let mut second = first.clone();
        second[at] = 65;
        let ask = Ask::new(&second).policy(Policy::ReadOnly);
        let warm = engine.ask(&ask);
        assert_same(&warm, &miss(&engine, &ask), &format!("{at}"));
        assert_eq!(warm.reuse.memory as usize, at);
        match warm.reuse.reason {
            Some(Reason::Diverged(parting)) => {
                assert_eq!((parting.at as usize, parting.ours[0]), (at, 65));
                assert_eq!(parting.theirs[0], first[at]);
            }
            other => panic!("parted at {at}, told {other:?}"),
        }
    }
}

#[test]
fn a_reply_becomes_the_cached_beginning_of_the_next_turn() {
    let engine = Setup::default().start();
    for len in [5, 30, 60, 250] {
        let ask = Ask::new(&prompt(5, len)).tokens(40);
        let reply = engine.ask(&ask);
        let next = [ask.prompt, reply.ids(), prompt(6, 9)].concat();
        let ask = Ask::new(&next);
        let warm = engine.ask(&ask);
        assert_same(&warm, &miss(&engine, &ask), &format!("{len}"));
        // The last token of a reply was sampled and never run.
        assert_eq!(warm.reuse.memory as usize, len + 39);
    }
}

#[test]
fn companions_slices_and_threads_change_no_bit() {
    let one = Setup { threads: 1, ..Setup::default() }.start();
    let two = Setup::default().start();
    let asks: Vec<Ask> = [(20, 700), (21, 33), (22, 512), (23, 1)]
        .iter()
        .map(|(seed, len)| Ask::new(&prompt(*seed, *len)).tokens(12).policy(Policy::Bypass))
        .collect();
    let alone: Vec<Reply> = asks.iter().map(|ask| one.ask(ask)).collect();
    for engine in [&one, &two] {
        for rotation in 0..asks.len() {
            let mut order: Vec<usize> = (0..asks.len()).collect();
            order.rotate_left(rotation);
            let streams: Vec<_> = order.iter().map(|i| (*i, engine.submit(&asks[*i]))).collect();
            for (i, stream) in streams {
                assert_same(&collect(stream).unwrap(), &alone[i], &format!("{i} at {rotation}"));
            }
        }
    }
}

#[test]
fn four_requests_with_one_cold_prompt_cost_one_prefill() {
    let engine = Setup::default().start();
    let asks: Vec<Ask> = vec![Ask::new(&prompt(30, 900)); 4];
    let streams: Vec<_> = asks.iter().map(|ask| engine.submit(ask)).collect();
    let replies: Vec<Reply> = streams.into_iter().map(|s| collect(s).unwrap()).collect();
    let never = miss(&engine, &asks[0]);
    for reply in &replies {
        assert_same(reply, &never, "one of four");
    }
    let computed: u32 = replies.iter().map(|reply| 900 - reply.reuse.cached()).sum();
    assert_eq!(computed, 900, "{replies:?}");
    assert!(replies[1..].iter().all(|reply| reply.reuse.verdict == Verdict::Joined));
}

#[test]
fn requests_that_want_no_token_take_no_logits_from_those_that_do() {
    let engine = Setup::default().start();
    let tokens = |seed: u32| if seed.is_multiple_of(2) { 0 } else { 12 };
    let ask = |seed| Ask::new(&prompt(seed, 40)).tokens(tokens(seed)).policy(Policy::Bypass);
    let asks: Vec<Ask> = (0..8).map(ask).collect();
    let alone: Vec<Reply> = asks.iter().map(|ask| engine.ask(ask)).collect();
    let streams: Vec<_> = asks.iter().map(|ask| engine.submit(ask)).collect();
    for (stream, alone) in streams.into_iter().zip(&alone) {
        assert_same(&collect(stream).unwrap(), alone, "in company");
    }
}

#[test]
fn a_follower_takes_over_when_its_leader_is_cancelled() {
    let engine = Setup::default().start();
    let ask = Ask::new(&prompt(31, 1000));
    for wait in [0, 1, 5, 20, 60] {
        let leader = engine.submit(&ask.clone().persist(Persist::No));
        let follower = engine.submit(&ask);
        std::thread::sleep(std::time::Duration::from_millis(wait));
        drop(leader);
        let reply = collect(follower).unwrap();
        assert_same(&reply, &miss(&engine, &ask), "taken over");
        engine.handle.remove(tinygptd::engine::handle::Removal::All).unwrap();
    }
}

#[test]
fn everything_comes_back_after_a_restart_with_the_same_bits() {
    let dir = tempfile::tempdir().unwrap();
    let mut never = Vec::new();
    let asks: Vec<Ask> = [64, 65, 95, 96, 97, 255, 256, 257, 1000]
        .iter()
        .map(|len| Ask::new(&prompt(40, *len)[..]).persist(Persist::Durable))
        .map(|ask| Ask {
            prompt: [vec![ask.prompt.len() as u32 % 251], ask.prompt].concat(),
            ..ask
        })
        .map(|ask| ask.tokens(3))
        .collect();
    {
        let engine = Setup::on_disk(dir.path()).start();
        for ask in &asks {
            let cold = engine.ask(ask);
            assert_eq!(cold.done.durable, Some(true));
            never.push(miss(&engine, ask));
            assert_same(&cold, never.last().unwrap(), "cold");
        }
    }
    let engine = Setup::on_disk(dir.path()).start();
    for (ask, never) in asks.iter().zip(&never) {
        let restored = engine.ask(&ask.clone().persist(Persist::Behind));
        let len = ask.prompt.len();
        assert_same(&restored, never, &format!("{len} restored"));
        assert_eq!(restored.reuse.verdict, Verdict::FullDisk, "{len}: {:?}", restored.reuse);
        assert_eq!(restored.reuse.cached() as usize, len);
        assert!(restored.done.times.prefill.is_zero());
        assert_eq!(engine.ask(ask).reuse.verdict, Verdict::FullMemory);
    }
}

#[test]
fn eviction_changes_speed_only() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Setup { heap: 1 << 20, ..Setup::on_disk(dir.path()) }.start();
    for round in 0..3 {
        for seed in 50..56 {
            let ask = Ask::new(&prompt(seed, 400)).tokens(2);
            let reply = engine.ask(&ask);
            assert_same(&reply, &miss(&engine, &ask), &format!("{seed} in round {round}"));
        }
    }
    engine.flush();
    assert!(engine.handle.report().unwrap().heap_bytes <= 1 << 20);
}

/// Quantised weights and 8-bit activations: what the built-in model, whose weights are plain
/// numbers, does not show.
#[test]
fn eight_bit_activations_have_the_bits_of_a_miss_on_every_way() {
    for file in ["llama-Q5_K", "llama-Q6_K", "llama3rope-Q4_1", "llama3rope-Q5_0"] {
        let path = format!("{}/../tests/golden/gguf/{file}.gguf", env!("CARGO_MANIFEST_DIR"));
        check_every_way(Path::new(&path), file);
    }
}

#[test]
fn windows_shared_heads_and_experts_have_the_bits_of_a_miss_on_every_way() {
    let dir = tempfile::tempdir().unwrap();
    let plain = Shape::new(3, 4, 64, 300);
    let shapes = [
        Shape { window: Some(70), ..plain },
        Shape { kv_heads: 2, ..plain },
        Shape { experts: 4, ..plain },
        Shape { kv_heads: 1, experts: 3, window: Some(33), ..plain },
    ];
    for (number, shape) in shapes.into_iter().enumerate() {
        let path = dir.path().join(number.to_string());
        shape.write(&path).unwrap();
        check_every_way(&path, &format!("{shape:?}"));
    }
}

#[test]
fn blocks_with_a_part_for_each_window_have_the_bits_of_a_miss_on_every_way() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("gemma");
    directory::write_gemma(&path).unwrap();
    let layout = Setup::default().model(&path).start().info().layout(Codec::F16).clone();
    assert_eq!(layout.parts().len(), 2);
    check_every_way(&path, "gemma");
}

/// Together, on a part, and after a restart.
fn check_every_way(path: &Path, what: &str) {
    let dir = tempfile::tempdir().unwrap();
    let one = Setup { threads: 1, ..Setup::default() }.model(path).start();
    let length = one.info().context.min(300) - 20;
    let long = Ask::new(&prompt(60, length)).persist(Persist::Durable);
    let short = Ask::new(&prompt(61, 70));
    let parted = Ask::new(&[&long.prompt[..length - 50], &[65, 66, 67][..]].concat());
    let never = [&long, &short, &parted].map(|ask| miss(&one, ask));
    {
        let two = Setup::on_disk(dir.path()).model(path).start();
        let streams = [&long, &short, &long].map(|ask| two.submit(ask));
        for (stream, never) in streams.into_iter().zip([&never[0], &never[1], &never[0]]) {
            assert_same(&collect(stream).unwrap(), never, &format!("{what} together"));
        }
        let warm = two.ask(&parted);
        assert_eq!(warm.reuse.memory as usize, length - 50, "{what}");
        assert_same(&warm, &never[2], &format!("{what} parted"));
    }
    let again = Setup::on_disk(dir.path()).model(path).start();
    let restored = again.ask(&long);
    assert_eq!(restored.reuse.verdict, Verdict::FullDisk, "{what}");
    assert_same(&restored, &never[0], &format!("{what} restored"));
}

#[test]
fn the_two_arithmetics_share_no_cache() {
    let path = format!("{}/../tests/golden/gguf/llama-Q5_K.gguf", env!("CARGO_MANIFEST_DIR"));
    let (path, dir) = (Path::new(&path), tempfile::tempdir().unwrap());
    let ask = Ask::new(&prompt(62, 100)).persist(Persist::Durable);
    let with = |numerics| {
        let setup = Setup::on_disk(dir.path()).model(path);
        let source = Source { numerics, ..setup.source };
        Setup { source, ..setup }.start().ask(&ask)
    };
    let (fast, exact) = (with(Numerics::Fast), with(Numerics::Exact));
    assert_eq!(fast.reuse.verdict, Verdict::Cold);
    assert_eq!(exact.reuse.verdict, Verdict::Cold);
    assert_eq!(exact.reuse.reason, Some(Reason::NumericsVersion));
    assert_ne!(fast.bits(), exact.bits());
    assert_eq!(with(Numerics::Fast).reuse.verdict, Verdict::FullDisk);
}
