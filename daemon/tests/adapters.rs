//! Adapters in an engine: no block of one is ever another's, and none is served that is no longer
//! what its file is.
#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::panic::AssertUnwindSafe;
use std::path::Path;

use common::{Ask, Running, Setup, assert_same, collect, miss, prompt, wait_for};
use tinygpt_tests::adapters::Adapter;
use tinygptd::engine::AdapterSource;
use tinygptd::engine::event::{Reason, Verdict};
use tinygptd::engine::job::Policy;
use tinygptd::model::Numerics;

/// An adapter of the attention of the built-in model.
fn adapter(seed: u64) -> Adapter {
    let parts = ["q_proj", "v_proj", "o_proj"];
    let named = |layer| parts.map(|part| (format!("blocks.{layer}.attn.{part}"), [192, 192]));
    Adapter { rank: 4, alpha: 16.0, seed, layers: (0..6).flat_map(named).collect() }
}

/// An engine with adapters `one` and `two`.
fn start(dir: &Path, numerics: Numerics) -> Running {
    let mut setup = Setup::on_disk(&dir.join("cache"));
    setup.source.numerics = numerics;
    for name in ["one", "two"] {
        let path = dir.join(name);
        setup.source.adapters.push(AdapterSource { name: name.into(), path });
    }
    setup.start()
}

fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("cache")).unwrap();
    fs::write(dir.path().join("one"), adapter(1).lora()).unwrap();
    adapter(2).write_peft(&dir.path().join("two")).unwrap();
    dir
}

fn asks() -> [Ask; 3] {
    ["", "one", "two"].map(|name| Ask::new(&prompt(1, 150)).tokens(24).adapter(name))
}

#[test]
fn each_adapter_has_its_own_bits_alone_in_company_cached_and_after_a_restart() {
    for numerics in [Numerics::Exact, Numerics::Fast] {
        let dir = folder();
        let engine = start(dir.path(), numerics);
        let alone = asks().map(|ask| miss(&engine, &ask));
        assert!(alone[0].bits() != alone[1].bits() && alone[1].bits() != alone[2].bits());
        let together = asks().map(|ask| engine.submit(&ask));
        for (events, alone) in together.into_iter().zip(&alone) {
            let reply = collect(events).unwrap();
            assert_same(&reply, alone);
            assert_eq!(reply.reuse.verdict, Verdict::Cold, "nothing is shared");
        }
        for (ask, alone) in asks().iter().zip(&alone) {
            let hit = engine.ask(ask);
            assert_same(&hit, alone);
            assert_eq!(hit.reuse.verdict, Verdict::FullMemory);
        }
        engine.flush();
        drop(engine);
        let engine = start(dir.path(), numerics);
        for (ask, alone) in asks().iter().zip(&alone) {
            let hit = engine.ask(ask);
            assert_same(&hit, alone);
            assert_eq!(hit.reuse.verdict, Verdict::FullDisk);
        }
    }
}

#[test]
fn a_relative_under_another_adapter_is_named_as_the_reason() {
    let dir = folder();
    let engine = start(dir.path(), Numerics::Fast);
    let [none, one, two] = asks();
    assert_eq!(engine.ask(&one).reuse.reason, Some(Reason::NoEntry));
    for ask in [none, two] {
        let ask = ask.policy(Policy::ReadOnly);
        assert_eq!(engine.ask(&ask).reuse.reason, Some(Reason::Adapter));
    }
    engine.flush();
    drop(engine);
    let engine = start(dir.path(), Numerics::Fast);
    let [none, ..] = asks();
    assert_eq!(engine.ask(&none).reuse.reason, Some(Reason::Adapter), "after a restart");
}

#[test]
fn the_same_numbers_under_another_name_and_in_another_format_hit() {
    let dir = folder();
    fs::remove_dir_all(dir.path().join("two")).unwrap();
    adapter(1).write_peft(&dir.path().join("two")).unwrap();
    let engine = start(dir.path(), Numerics::Fast);
    let [_, one, two] = asks();
    let first = engine.ask(&one);
    let second = engine.ask(&two);
    assert_eq!(second.reuse.verdict, Verdict::FullMemory);
    assert_same(&first, &second);
}

#[test]
fn an_adapter_trained_on_while_it_is_served_is_noticed_and_misses() {
    let dir = folder();
    let engine = start(dir.path(), Numerics::Fast);
    let [none, one, _] = asks();
    let (before, bare) = (engine.ask(&one), engine.ask(&none));
    let old = engine.info().generation;
    fs::write(dir.path().join("one"), adapter(3).lora()).unwrap();
    wait_for("the new adapter", || {
        matches!(&*engine.handle.state().borrow(), tinygptd::engine::State::Ready(info)
            if info.generation > old)
    });
    let after = engine.ask(&one);
    assert_ne!(after.bits(), before.bits());
    assert_same(&after, &miss(&engine, &one));
    assert_same(&engine.ask(&none), &bare);
}

#[test]
fn an_adapter_whose_file_is_gone_is_served_on() {
    let dir = folder();
    let engine = start(dir.path(), Numerics::Fast);
    let [_, one, _] = asks();
    let before = engine.ask(&one);
    fs::remove_file(dir.path().join("one")).unwrap();
    assert_same(&engine.ask(&one), &before);
    assert_same(&miss(&engine, &one), &before);
}

#[test]
fn an_adapter_that_does_not_fit_is_the_failure_of_its_model_with_both_shapes() {
    let dir = folder();
    let mut wrong = adapter(1);
    wrong.layers[0].1 = [192, 64];
    fs::write(dir.path().join("one"), wrong.lora()).unwrap();
    let failed = std::panic::catch_unwind(AssertUnwindSafe(|| start(dir.path(), Numerics::Fast)));
    let words = *failed.err().unwrap().downcast::<String>().unwrap();
    for part in ["adapter one", "blocks.0.attn.q_proj", "[192, 64]", "[192, 192]"] {
        assert!(words.contains(part), "{words}");
    }
}
