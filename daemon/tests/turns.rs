//! Who is served when: priorities, turns between clients, preemption, several texts for a prompt.
#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::time::{Duration, Instant};

use common::{Ask, Events, Running, Setup, collect, collect_choices, greedy, prompt};
use proptest::prelude::*;
use tinygpt_tests::seeded::Shape;
use tinygptd::engine::event::{Done, Event, Failure, Finish, Verdict};
use tinygptd::engine::job::{Policy, Priority, Sampling, Task};

use Priority::{High, Low, Normal};

/// Bytes of a block of the built-in model.
fn block_bytes(engine: &Running) -> usize {
    let info = engine.info();
    info.layout(info.default_codec).block_bytes()
}

/// An engine whose active budget holds `blocks` blocks.
fn of_blocks(blocks: usize) -> Running {
    let bytes = block_bytes(&Setup::default().start());
    Setup { active: blocks * bytes, ..Setup::default() }.start()
}

/// A request, with the moment it was made.
type Sent = (Instant, Events);

fn send(engine: &Running, ask: &Ask) -> Sent {
    (Instant::now(), engine.submit(ask))
}

/// When each request ended by the engine's own clock, in the order they are given.
fn ends(all: Vec<Sent>) -> Vec<Instant> {
    let end = |(sent, events): Sent| sent + collect(events).unwrap().done.times.total;
    all.into_iter().map(end).collect()
}

/// Waits for the first token.
fn await_token(events: &mut Events) -> u32 {
    loop {
        match events.blocking_recv().unwrap() {
            Event::Token(token) => return token.id,
            Event::Failed(failure) => panic!("{failure}"),
            _ => {}
        }
    }
}

/// The tokens after those that were read already, and the end.
fn rest(events: &mut Events) -> (Vec<u32>, Done) {
    let mut ids = Vec::new();
    loop {
        match events.blocking_recv().unwrap() {
            Event::Token(token) => ids.push(token.id),
            Event::Done(done) => return (ids, done),
            other => panic!("{other:?}"),
        }
    }
}

fn alone(ask: &Ask) -> Vec<u32> {
    Setup::default().start().ask(&ask.clone().policy(Policy::Bypass)).ids()
}

#[test]
fn a_client_with_many_requests_holds_another_up_for_one_turn() {
    let engine = of_blocks(4);
    let ask = |pid, seed| Ask::new(&prompt(seed, 40)).tokens(24).by(pid, Normal);
    let mut all: Vec<_> = (0..20).map(|seed| send(&engine, &ask(1, seed))).collect();
    all.push(send(&engine, &ask(2, 99)));
    let ends = ends(all);
    let before = ends[..20].iter().filter(|end| **end < ends[20]).count();
    assert!(before <= 2, "{before} of the first client's requests ended before");
}

#[test]
fn a_higher_priority_leaves_the_queue_first() {
    let engine = of_blocks(4);
    let ask = |seed, priority| Ask::new(&prompt(seed, 40)).tokens(24).by(1, priority);
    let order = [High, Low, Normal, High];
    let all = (0..).zip(order).map(|(seed, priority)| send(&engine, &ask(seed, priority)));
    let ends = ends(all.collect());
    assert!(ends[3] < ends[2] && ends[2] < ends[1], "{ends:?}");
}

#[test]
fn a_high_request_takes_the_memory_of_a_low_one_which_goes_on_to_the_same_tokens() {
    for policy in [Policy::Use, Policy::ReadOnly, Policy::Bypass] {
        let engine = of_blocks(6);
        let low = Ask::new(&prompt(1, 70)).tokens(90).by(1, Low).policy(policy);
        let mut first = engine.submit(&low);
        let begin = await_token(&mut first);
        let high = Ask::new(&prompt(2, 70)).tokens(60).by(2, High);
        let reply = engine.ask(&high);
        assert_eq!(reply.ids(), alone(&high));
        let (ids, done) = rest(&mut first);
        assert_eq!([&[begin], &ids[..]].concat(), alone(&low), "{policy:?}");
        assert_eq!(done.completion, 90);
        assert!(done.times.queue >= Duration::from_millis(1), "it waited: {:?}", done.times);
        assert_eq!(done.reuse.cached(), 0, "what it computed itself is no reuse");
        let report = engine.handle.report().unwrap();
        assert_eq!((report.running, report.waiting, report.active_bytes), (0, 0, 0));
    }
}

#[test]
fn equals_do_not_take_each_others_memory() {
    let engine = of_blocks(6);
    let ask = |seed, pid| Ask::new(&prompt(seed, 70)).tokens(60).by(pid, Normal);
    let mut first = engine.submit(&ask(1, 1));
    await_token(&mut first);
    let (sent, second) = send(&engine, &ask(2, 2));
    let (_, done) = rest(&mut first);
    assert!(done.times.queue < Duration::from_millis(1), "nobody took its memory");
    let later = collect(second).unwrap().done;
    assert!(later.times.queue > Duration::ZERO && sent.elapsed() >= later.times.total);
}

#[test]
fn memory_is_taken_once_from_a_request_and_never_in_vain() {
    let engine = of_blocks(6);
    let low = Ask::new(&prompt(1, 70)).tokens(90).by(1, Low);
    let mut first = engine.submit(&low);
    await_token(&mut first);
    let huge = Ask::new(&prompt(3, 400)).tokens(60).by(2, High);
    let failure = collect(engine.submit(&huge)).unwrap_err();
    assert!(matches!(failure, Failure::TooLarge { .. }), "{failure}");
    let highs: Vec<_> = (10..14)
        .map(|seed| send(&engine, &Ask::new(&prompt(seed, 70)).tokens(60).by(seed, High)))
        .collect();
    ends(highs);
    assert_eq!(rest(&mut first).1.completion, 90);
}

#[test]
fn an_urgent_follower_lifts_its_leader() {
    // Slow enough for requests that come one after the other to meet.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("slow.tinygpt");
    Shape::new(8, 4, 256, 4096).write(&path).unwrap();
    let engine = Setup::default().model(&path).start();
    // What the leader has beyond what is shared is more than one slice.
    let (leader, other) = (prompt(1, 2400), prompt(2, 1500));
    let fill = |prompt: &[u32], pid, priority| {
        send(&engine, &Ask::new(prompt).tokens(0).by(pid, priority))
    };
    let all = vec![
        fill(&leader, 1, Low),
        fill(&other, 2, Normal),
        fill(&[&leader[..1500], &[65]].concat(), 3, High),
    ];
    let ends = ends(all);
    assert!(ends[2] < ends[1], "what is computed for an urgent request is urgent");
    assert!(ends[1] < ends[0], "and no longer than that");
}

#[test]
fn the_texts_of_one_request_share_its_prompt_and_part_by_their_draws() {
    let engine = Setup::default().start();
    for len in [1, 31, 32, 33, 100] {
        let ask = Ask::new(&prompt(7, len)).tokens(40);
        let draw = |choices, policy| {
            let (events, told) = tokio::sync::mpsc::channel(1024);
            let mut job = engine.job(&ask.clone().policy(policy), events);
            let hot = Sampling { temperature: 1.5, seed: 11, choices, ..greedy(40) };
            job.task = Task::Sample(hot);
            engine.handle.submit(job).unwrap();
            let replies = collect_choices(told, choices as usize).unwrap();
            replies.iter().map(common::Reply::bits).collect::<Vec<_>>()
        };
        let (never, cold) = (draw(4, Policy::Bypass), draw(4, Policy::Use));
        assert_eq!(never, cold, "{len} cold");
        assert_eq!(draw(4, Policy::Use), cold, "{len} warm");
        assert_eq!(draw(1, Policy::Use)[0], cold[0], "{len}: the first is what one alone would be");
        let parted = cold.iter().skip(1).filter(|text| **text != cold[0]).count();
        assert_eq!(parted, 3, "{len}");
    }
}

#[test]
fn several_texts_take_the_memory_of_one_prompt() {
    let engine = of_blocks(9);
    let ask = Ask::new(&prompt(8, 100)).tokens(20).choices(3);
    let replies = collect_choices(engine.submit(&ask), 3).unwrap();
    assert!(replies.iter().all(|reply| reply.done.finish == Finish::Length));
    assert!(replies.iter().all(|reply| reply.reuse.verdict == Verdict::Cold));
    let failure = collect_choices(engine.submit(&ask.choices(4)), 4).unwrap_err();
    assert!(matches!(failure, Failure::TooLarge { .. }), "{failure}");
    assert_eq!(engine.handle.report().unwrap().active_bytes, 0);
}

#[test]
fn a_client_leaves_room_in_the_queue_for_others() {
    let engine = Setup { queue: 16, ..Setup::default() }.start();
    let engine = Setup { queue: 16, active: 4 * block_bytes(&engine), ..Setup::default() }.start();
    let ask = |pid| Ask::new(&prompt(pid, 40)).tokens(40).by(pid, Normal);
    let all: Vec<_> = (0..16).map(|_| engine.submit(&ask(1))).collect();
    let failed = |events: Events| matches!(collect(events), Err(Failure::Share { limit: 14, .. }));
    let failures = all.into_iter().filter_map(|events| failed(events).then_some(())).count();
    assert!((1..=2).contains(&failures), "{failures}");
}

/// A request of a random crowd.
#[derive(Debug, Clone)]
struct Member {
    client: u32,
    priority: Priority,
    prompt: usize,
    cut: usize,
    tokens: u32,
    choices: u32,
    policy: Policy,
    leaves: bool,
    pause: u64,
}

fn member() -> impl Strategy<Value = Member> {
    let priority = prop_oneof![Just(Low), Just(Normal), Just(High)];
    let policy = prop_oneof![
        4 => Just(Policy::Use),
        1 => Just(Policy::ReadOnly),
        1 => Just(Policy::Bypass),
    ];
    let shape = (0..3_usize, 1..130_usize, 0..40_u32, 1..4_u32);
    (0..3_u32, priority, shape, policy, prop::bool::weighted(0.2), 0..4_u64).prop_map(
        |(client, priority, (prompt, cut, tokens, choices), policy, leaves, pause)| Member {
            client,
            priority,
            prompt,
            cut,
            tokens,
            choices,
            policy,
            leaves,
            pause,
        },
    )
}

impl Member {
    fn ask(&self) -> Ask {
        let ids = prompt(self.prompt as u32, 130);
        let ask = Ask::new(&ids[..self.cut]).tokens(self.tokens).choices(self.choices);
        ask.by(self.client, self.priority).policy(self.policy)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn whoever_comes_leaves_or_is_preempted_each_text_is_what_it_would_be_alone(
        crowd in prop::collection::vec(member(), 1..14),
        blocks in 10..24_usize,
    ) {
        let engine = of_blocks(blocks);
        let budget = (blocks * block_bytes(&engine)) as u64;
        let mut told = Vec::new();
        for member in &crowd {
            std::thread::sleep(Duration::from_millis(member.pause));
            let events = engine.submit(&member.ask());
            told.push((!member.leaves).then_some(events));
            prop_assert!(engine.handle.report().unwrap().active_bytes <= budget);
        }
        let solo = Setup::default().start();
        for (member, events) in crowd.iter().zip(told) {
            let Some(events) = events else { continue };
            match collect_choices(events, member.choices as usize) {
                Ok(replies) => for reply in replies {
                    let alone = solo.ask(&member.ask().policy(Policy::Bypass).choices(1));
                    prop_assert_eq!(reply.bits(), alone.bits(), "{:?}", member);
                },
                Err(Failure::TooLarge { .. }) => {}
                Err(failure) => prop_assert!(false, "{failure}: {member:?}"),
            }
        }
        let report = engine.handle.report().unwrap();
        prop_assert_eq!((report.waiting, report.active_bytes), (0, 0));
    }
}
