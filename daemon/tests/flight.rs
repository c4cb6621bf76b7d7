//! Prompts that begin alike, asked for while each other is being computed: each block is computed
//! once, whenever the others come and wherever the prompts part.
#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::time::Duration;

use common::{Ask, Running, Setup, collect, prompt};
use proptest::prelude::*;
use tinygptd::engine::event::Verdict;
use tinygptd::engine::job::Policy;
use tinygptd::kv::layout::BLOCK;

/// A prompt: so much of one of two texts, then ids of its own.
#[derive(Debug, Clone)]
struct Member {
    text: u32,
    shared: usize,
    own: usize,
    pause: u64,
}

impl Member {
    fn prompt(&self, nth: usize) -> Vec<u32> {
        let mut ids = prompt(self.text, 900)[..self.shared].to_vec();
        ids.extend(prompt(1000 + nth as u32, self.own));
        ids
    }
}

fn member() -> impl Strategy<Value = Member> {
    (0..2_u32, 1..900_usize, 0..70_usize, 0..6_u64).prop_map(|(text, shared, own, pause)| Member {
        text,
        shared,
        own,
        pause,
    })
}

/// Prompt tokens that no cache and nobody else had.
fn computed(engine: &Running, crowd: &[Member]) -> Vec<usize> {
    let ask = |(nth, member): (usize, &Member)| {
        std::thread::sleep(Duration::from_millis(member.pause));
        engine.submit(&Ask::new(&member.prompt(nth)).tokens(1))
    };
    let told: Vec<_> = crowd.iter().enumerate().map(ask).collect();
    let reused = told.into_iter().map(|events| collect(events).unwrap().reuse.cached() as usize);
    let lengths = crowd.iter().map(|member| member.shared + member.own);
    lengths.zip(reused).map(|(length, reused)| length - reused).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    #[test]
    fn each_block_is_computed_once(crowd in prop::collection::vec(member(), 2..12)) {
        let engine = Setup::default().start();
        let computed = computed(&engine, &crowd);
        let text = |text| crowd.iter().filter(move |member| member.text == text);
        let union: usize = (0..2).map(|of| text(of).map(|one| one.shared).max().unwrap_or(0)).sum();
        // Of its own each has what it adds, and the shared rows of the block in which it parts.
        let own: usize = crowd.iter().map(|member| member.own + BLOCK).sum();
        prop_assert!(computed.iter().sum::<usize>() <= union + own, "{computed:?} {crowd:?}");
    }
}

#[test]
fn whoever_comes_in_the_middle_of_a_prefill_joins_it() {
    let engine = Setup { threads: 1, ..Setup::default() }.start();
    let ids = prompt(5, 1000);
    let leader = engine.submit(&Ask::new(&ids).tokens(1));
    let follow = |length: usize| {
        std::thread::sleep(Duration::from_millis(1));
        let ids = [&ids[..length], &[65, 66]].concat();
        let events = engine.submit(&Ask::new(&ids).tokens(2));
        (ids, events)
    };
    let followers = [999, 500, 37, 1000].map(follow);
    let leader = collect(leader).unwrap();
    assert_eq!(leader.reuse.verdict, Verdict::Cold);
    for (ids, events) in followers {
        let reply = collect(events).unwrap();
        let alone = engine.ask(&Ask::new(&ids).tokens(2).policy(Policy::Bypass));
        assert_eq!(reply.bits(), alone.bits(), "{}", ids.len());
        assert!(reply.reuse.cached() as usize >= ids.len() - 2 - BLOCK, "{:?}", reply.reuse);
    }
}
