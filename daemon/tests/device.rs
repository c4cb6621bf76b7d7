//! A model on a device: the same cache around other arithmetic.
//!
//! The device is candle's processor, which runs what a GPU would run.
#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Ask, Reply, Running, Setup, collect, prompt, rest, submit_slow, wait_for};
use tinygptd::engine::event::{Failure, Reason, Verdict};
use tinygptd::engine::job::{Persist, Policy};
use tinygptd::kv::codec::Codec;
use tinygptd::kv::device::Usage;
use tinygptd::model::device::Choice;

/// Log-probabilities this far apart are the same choice: a device's sums depend on how many rows
/// run together.
const TOLERANCE: f32 = 2e-3;

fn on_device(setup: Setup) -> Setup {
    Setup { device: Choice::CandleCpu, ..setup }
}

fn usage(engine: &Running) -> Usage {
    engine.handle.report().unwrap().device.unwrap()
}

fn miss(engine: &Running, ask: &Ask) -> Reply {
    engine.ask(&ask.clone().policy(Policy::Bypass))
}

/// The same text, from the same probabilities.
fn assert_same(ours: &Reply, theirs: &Reply, what: &str) {
    assert_eq!(ours.ids(), theirs.ids(), "{what}");
    for (ours, theirs) in ours.tokens.iter().zip(&theirs.tokens) {
        let far = (ours.logprob.unwrap() - theirs.logprob.unwrap()).abs();
        assert!(far < TOLERANCE, "{what}: {far}");
    }
}

#[test]
fn a_prompt_is_continued_alike_cold_warm_and_part_warm() {
    let engine = on_device(Setup::default()).start();
    for codec in Codec::ALL {
        for (seed, len) in (20..).zip([1, 31, 32, 33, 64, 257, 600]) {
            let what = format!("{codec} {len}");
            let long = prompt(seed, len + 20);
            let ask = Ask::new(&long[..len]).codec(codec);
            let (never, cold, warm) = (miss(&engine, &ask), engine.ask(&ask), engine.ask(&ask));
            assert_same(&cold, &never, &what);
            assert_same(&warm, &never, &what);
            assert_eq!(warm.reuse.verdict, Verdict::FullMemory, "{what}");
            let more = Ask::new(&long).codec(codec);
            let (never, part) = (miss(&engine, &more), engine.ask(&more));
            assert_same(&part, &never, &what);
            assert!(part.reuse.memory as usize >= len, "{what}");
        }
    }
}

#[test]
fn it_computes_what_the_processor_computes() {
    let (device, host) = (on_device(Setup::default()).start(), Setup::default().start());
    for (seed, len) in (40..).zip([1, 40, 300, 900]) {
        let ask = Ask::new(&prompt(seed, len)).codec(Codec::F32).tokens(16);
        assert_same(&device.ask(&ask), &host.ask(&ask), &format!("{len}"));
    }
    assert_eq!(host.handle.report().unwrap().device, None);
}

#[test]
fn what_a_device_computed_is_moved_to_it_only_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let ask = Ask::new(&prompt(2, 500)).tokens(20).persist(Persist::Durable);
    let mut first = on_device(Setup::on_disk(dir.path())).start();
    let cold = first.ask(&ask);
    let mut longer = ask.prompt.clone();
    longer.extend(cold.ids());
    longer.extend(prompt(3, 40));
    let next = Ask::new(&longer).policy(Policy::ReadOnly);
    let warm = first.ask(&next);
    // 519 rows were computed, of which 7 are no whole block: those were copied on the host.
    assert_eq!(usage(&first).uploaded, 519 % 32, "whole blocks stay");
    assert_eq!(usage(&first).downloaded, 519 + (560 - 519) + 3, "each row once");
    first.flush();
    first.handle.drain(std::time::Instant::now());
    assert!(first.wait_for_end());
    drop(first);

    let second = on_device(Setup::on_disk(dir.path())).start();
    let again = second.ask(&ask);
    assert_eq!(again.reuse.verdict, Verdict::FullDisk);
    assert_same(&again, &cold, "restart");
    assert_eq!(usage(&second).uploaded, 500, "once");
    assert_same(&second.ask(&next), &warm, "restart, goes on");
    assert_eq!(usage(&second).uploaded, 500 + 519 % 32, "sealed blocks stay");
}

#[test]
fn four_requests_with_one_cold_prompt_cost_one_prefill() {
    let engine = on_device(Setup::default()).start();
    let ask = Ask::new(&prompt(5, 700)).tokens(8);
    let never = miss(&engine, &ask);
    let before = usage(&engine);
    let waiting: Vec<_> = (0..4).map(|_| engine.submit(&ask)).collect();
    let replies: Vec<Reply> = waiting.into_iter().map(|events| collect(events).unwrap()).collect();
    replies.iter().for_each(|reply| assert_same(reply, &never, "of four"));
    let after = usage(&engine);
    assert_eq!(after.downloaded - before.downloaded, 700 + 4 * 7, "one prefill");
    assert!(after.uploaded - before.uploaded <= 3 * (700 % 32), "tails at most");
}

#[test]
fn companions_of_any_length_change_no_text() {
    let engine = on_device(Setup::default()).start();
    let asks: Vec<_> = (60..66).map(|seed| Ask::new(&prompt(seed, seed as usize * 3))).collect();
    let alone: Vec<_> = asks.iter().map(|ask| miss(&engine, &ask.clone().tokens(24))).collect();
    let together: Vec<_> = asks.iter().map(|ask| engine.submit(&ask.clone().tokens(24))).collect();
    for (together, alone) in together.into_iter().zip(&alone) {
        assert_same(&collect(together).unwrap(), alone, "together");
    }
}

#[test]
fn a_cancelled_request_frees_its_room_and_leaves_its_rows() {
    let engine = on_device(Setup::default()).start();
    let ask = Ask::new(&prompt(7, 200)).tokens(200);
    let events = submit_slow(&engine, &ask);
    wait_for("some text", || usage(&engine).downloaded > 200);
    drop(events);
    wait_for("the cancel", || engine.handle.report().unwrap().running == 0);
    let bytes = usage(&engine).bytes;
    let whole = engine.ask(&ask);
    assert_eq!(whole.reuse.memory, 200);
    assert_same(&whole, &miss(&engine, &ask), "after a cancel");
    assert!(usage(&engine).bytes >= bytes);
}

#[test]
fn requests_that_do_not_fit_on_the_device_fail_with_the_numbers_and_harm_nobody() {
    let token = Setup::default().start().info().layout(Codec::F16).token_bytes();
    let engine = Setup { device_memory: token * 512, ..on_device(Setup::default()) }.start();
    let small = Ask::new(&prompt(8, 100)).tokens(30);
    let alone = engine.ask(&small);
    let events = submit_slow(&engine, &small.clone().policy(Policy::Bypass));
    let failed = collect(engine.submit(&Ask::new(&prompt(9, 700)))).unwrap_err();
    assert!(matches!(&failed, Failure::Memory(why) if why.contains("--device-memory")), "{failed}");
    let (ids, done) = rest(events);
    assert!(done.is_ok() && ids == alone.ids());
    for seed in 100..110 {
        engine.ask(&Ask::new(&prompt(seed, 200)));
        assert!(usage(&engine).bytes <= (token * 512) as u64);
    }
    assert_same(&engine.ask(&small), &alone, "after it made room");
}

#[test]
fn a_device_and_the_processor_share_no_cache() {
    let dir = tempfile::tempdir().unwrap();
    let ask = Ask::new(&prompt(11, 200)).persist(Persist::Durable);
    on_device(Setup::on_disk(dir.path())).start().ask(&ask);
    let host = Setup::on_disk(dir.path()).start();
    let cold = host.ask(&ask);
    assert_eq!(
        (cold.reuse.verdict, cold.reuse.reason),
        (Verdict::Cold, Some(Reason::NumericsVersion))
    );
}

#[test]
fn what_is_removed_is_removed_from_the_device() {
    let engine = on_device(Setup::default()).start();
    engine.ask(&Ask::new(&prompt(12, 300)));
    assert!(usage(&engine).bytes > 0);
    engine.handle.remove(tinygptd::engine::handle::Removal::All).unwrap();
    assert_eq!(usage(&engine).bytes, 0);
}
