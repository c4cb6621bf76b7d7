//! Budgets hold, and what goes first is what was used last the longest ago.

use std::collections::HashSet;
use std::thread;

use proptest::prelude::*;

use super::kit::*;
use crate::kv::key::BlockKey;
use crate::kv::layout::BLOCK;
use crate::store::catalogue::FileId;
use crate::store::contents::{Contents, examine};
use crate::store::shared::Shared;
use crate::sys::lock::LockId;

/// Bytes on disk of a prompt of two blocks and a tail.
const SMALL: u64 = 16_384 + 2 * PART as u64;

/// What someone does with the store.
#[derive(Debug, Clone)]
enum Act {
    Save { trunk: u32, shared: usize, len: usize },
    Restore { trunk: u32, len: usize },
    Remove { trunk: u32, len: usize },
    Reopen,
}

fn act() -> impl Strategy<Value = Act> {
    let len = 40..400usize;
    prop_oneof![
        6 => (1..6u32, 0..200usize, len.clone())
            .prop_map(|(trunk, shared, len)| Act::Save { trunk, shared, len }),
        3 => (1..6u32, len.clone()).prop_map(|(trunk, len)| Act::Restore { trunk, len }),
        1 => (1..6u32, len).prop_map(|(trunk, len)| Act::Remove { trunk, len }),
        1 => Just(Act::Reopen),
    ]
}

fn branch(trunk: u32, shared: usize, len: usize) -> Vec<u32> {
    [&prompt(1, shared.min(len))[..], &prompt(trunk, len.saturating_sub(shared))].concat()
}

/// Whatever a file follows is on the disk: eviction never makes a hole.
fn expect_no_orphans(kit: &Kit) {
    kit.handle.shared.read_all_headers();
    let catalogue = kit.handle.shared.catalogue();
    let contents = || catalogue.entries().filter_map(|(_, entry)| entry.contents.as_ref());
    let root = BlockKey::root(&kit.family.fingerprint);
    let blocks: HashSet<_> = contents().flat_map(Contents::keys).copied().chain([root]).collect();
    assert!(contents().all(|contents| blocks.contains(&contents.parent())));
    assert!(kit.files_with("tmp").is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn budgets_are_never_exceeded_and_nothing_wrong_is_ever_found(
        acts in prop::collection::vec(act(), 1..60),
        budget in 30_000..200_000u64,
    ) {
        let mut kit = Kit::with(|settings, tuning| {
            settings.disk_budget = budget;
            tuning.segment = 3 * PART as u64;
        });
        for act in acts {
            match act {
                Act::Save { trunk, shared, len } => kit.save(&branch(trunk, shared, len)),
                Act::Restore { trunk, len } => _ = kit.restore(&prompt(trunk, len)),
                Act::Remove { trunk, len } => {
                    let end = end(&kit.family, &prompt(trunk, len));
                    kit.handle.remove(&kit.family.fingerprint, &end);
                    prop_assert!(!kit.found(&prompt(trunk, len)).1);
                }
                Act::Reopen => kit.reopen(),
            }
            expect_no_orphans(&kit);
            let stats = kit.handle.stats();
            prop_assert_eq!(stats.bytes - stats.unlinked_bytes, kit.bytes_on_disk());
            prop_assert!(stats.bytes <= budget, "{} of {budget} bytes", stats.bytes);
            prop_assert!(stats.record_bytes <= budget / 20);
        }
    }
}

#[test]
fn what_is_told_of_a_budget_never_exceeds_it_while_something_is_written() {
    let budget = 20 * SMALL;
    let kit = Kit::with(|settings, _| settings.disk_budget = budget);
    thread::scope(|scope| {
        let saving = scope.spawn(|| (1..400).for_each(|seed| kit.save(&prompt(seed, 70))));
        let mut most = 0;
        while !saving.is_finished() {
            most = kit.handle.stats().bytes.max(most);
        }
        assert!(most > budget / 2 && most <= budget, "{most} of {budget} bytes");
    });
}

#[test]
fn a_record_is_not_written_when_its_own_blocks_had_to_make_room() {
    let tokens = prompt(1, 70);
    let kit = Kit::new();
    kit.save(&tokens);
    let all = kit.bytes_on_disk();
    let record = kit.files_with("tgrec")[0].metadata().unwrap().len();
    for missing in [1, record - 1, record] {
        let kit = Kit::with(|settings, _| settings.disk_budget = all - missing);
        kit.save(&tokens);
        expect_no_orphans(&kit);
        assert!(kit.files_with("tgrec").is_empty());
    }
}

#[test]
fn the_least_recently_used_prompt_goes_first_also_after_a_restart() {
    let mut kit = Kit::with(|settings, _| settings.disk_budget = 5 * SMALL);
    for seed in 1..=4 {
        kit.save(&prompt(seed, 70));
    }
    kit.restore(&prompt(1, 70));
    kit.reopen();
    kit.save(&prompt(5, 70));
    kit.save(&prompt(6, 70));
    let found: Vec<_> = (1..=6).filter(|seed| kit.found(&prompt(*seed, 70)).0 == 2).collect();
    assert_eq!(found, [1, 4, 5, 6]);
}

#[test]
fn a_chain_is_evicted_from_its_end() {
    let kit = Kit::with(|settings, tuning| {
        settings.disk_budget = 8 * SMALL;
        tuning.segment = 2 * PART as u64;
    });
    let long = prompt(1, 12 * BLOCK);
    kit.save(&long);
    let mut before = 12;
    for seed in 2..9 {
        kit.save(&prompt(seed, 70));
        let now = kit.found(&long).0;
        assert!(now <= before && now.is_multiple_of(2));
        // Asking touched it: the others go first from now on, and it is never holed.
        before = now;
    }
    assert!(kit.handle.stats().evictions > 0);
}

#[test]
fn a_segment_in_use_is_not_evicted() {
    let kit = Kit::with(|settings, _| settings.disk_budget = 3 * SMALL);
    kit.save(&prompt(1, 70));
    let used = kit.restore(&prompt(1, 70));
    for seed in 2..9 {
        kit.save(&prompt(seed, 70));
    }
    assert_eq!(kit.found(&prompt(1, 70)).0, 2);
    drop(used);
    for seed in 9..12 {
        kit.save(&prompt(seed, 70));
    }
    assert_eq!(kit.found(&prompt(1, 70)).0, 0);
}

#[test]
fn holders_of_mapped_blocks_are_asked_to_let_go_when_nothing_else_can_be_evicted() {
    use std::sync::{Arc, Mutex};
    let kit = Kit::with(|settings, _| settings.disk_budget = 3 * SMALL);
    let index = Arc::new(Mutex::new(Vec::new()));
    for seed in 1..=2 {
        kit.save(&prompt(seed, 70));
        index.lock().unwrap().extend(kit.restore(&prompt(seed, 70)).blocks);
    }
    kit.save(&prompt(3, 70));
    assert_eq!(kit.found(&prompt(3, 70)).0, 0);
    let held = Arc::clone(&index);
    kit.handle.on_pressure(move |keys| {
        held.lock().unwrap().retain(|block| !keys.contains(&block.key));
    });
    kit.save(&prompt(3, 70));
    assert_eq!(kit.found(&prompt(3, 70)).0, 2);
}

#[test]
fn a_prompt_larger_than_the_budget_evicts_nobody() {
    let kit = Kit::with(|settings, _| settings.disk_budget = 3 * SMALL);
    kit.save(&prompt(1, 70));
    kit.save(&prompt(2, 500 * BLOCK));
    assert_eq!(kit.found(&prompt(1, 70)), (2, true));
    let stats = kit.handle.stats();
    assert_eq!((stats.evictions, stats.dropped_writes, stats.paused), (0, 1, None));
}

#[test]
fn records_keep_to_a_twentieth() {
    let kit = Kit::with(|settings, _| settings.disk_budget = 200_000);
    let trunk = prompt(1, 64);
    for seed in 2..60 {
        kit.save(&[&trunk[..], &prompt(seed, 20)].concat());
        assert!(kit.handle.stats().record_bytes <= 10_000);
    }
    assert_eq!(kit.found(&[&trunk[..], &prompt(59, 20)].concat()), (2, true));
    assert_eq!(kit.found(&[&trunk[..], &prompt(2, 20)].concat()), (2, false));
}

#[test]
fn the_daily_budget_stops_writing_and_survives_a_restart() {
    let mut kit = Kit::with(|settings, _| settings.daily_writes = Some(4 * SMALL));
    for seed in 1..9 {
        kit.save(&prompt(seed, 70));
    }
    let stats = kit.handle.stats();
    assert!(stats.written_today <= 4 * SMALL && stats.dropped_writes >= 4);
    let files = kit.files();
    kit.reopen();
    kit.save(&prompt(20, 70));
    assert_eq!(kit.files(), files);
    assert_eq!(kit.found(&prompt(1, 70)), (2, true));
}

#[test]
fn a_file_whose_header_two_threads_read_counts_once_against_the_daily_budget() {
    let mut kit = Kit::new();
    (1..4).for_each(|seed| kit.save(&prompt(seed, 70)));
    kit.close();
    let lock = LockId::at(&kit.settings.dir.join("lock")).unwrap();
    let shared = Shared::new(kit.settings.clone(), kit.tuning.clone(), lock);
    shared.enter_names().unwrap();
    let unread = shared.catalogue().unread(10);
    let read = |id: &FileId| {
        let (family, name, path) = shared.locate(*id).unwrap();
        examine(&path, family, name).unwrap()
    };
    let (one, other): (Vec<_>, Vec<_>) = unread.iter().map(|id| (read(id), read(id))).unzip();
    for found in [one, other] {
        unread.iter().zip(found).for_each(|(id, found)| shared.enter_header(*id, found));
    }
    shared.read_headers(&unread);
    let digests = crate::store::fields::LEN as u64;
    assert_eq!(shared.tally.writes.today(), kit.bytes_on_disk() - digests);
}

#[test]
fn a_full_queue_drops_the_save_and_tells_who_waits() {
    let kit = Kit::with(|_, tuning| tuning.queue = 10_000);
    let (go, wait) = std::sync::mpsc::channel();
    // The writer stands still until it may go on.
    let mut first = save(&kit.family, &prompt(1, 70));
    first.published = Box::new(move |_| wait.recv().unwrap());
    assert!(kit.handle.save(first));
    while kit.handle.stats().queue_bytes > 0 {
        std::thread::yield_now();
    }
    let large = prompt(2, 100 * BLOCK);
    assert!(kit.handle.save(save(&kit.family, &large)), "an empty queue takes any save");
    assert!(!kit.save_durably(&prompt(3, 70)));
    assert_eq!(kit.handle.stats().dropped_writes, 1);
    go.send(()).unwrap();
    kit.handle.flush();
    assert_eq!(kit.handle.stats().queue_bytes, 0);
    assert_eq!((kit.found(&large), kit.found(&prompt(3, 70))), ((100, true), (0, false)));
}

#[test]
fn blocks_on_disk_do_not_fill_the_queue() {
    let kit = Kit::with(|_, tuning| tuning.queue = 10_000);
    let large = prompt(2, 100 * BLOCK);
    kit.save(&large);
    let (go, wait) = std::sync::mpsc::channel();
    let mut first = save(&kit.family, &prompt(1, 70));
    first.published = Box::new(move |_| wait.recv().unwrap());
    kit.handle.save(first);
    let longer = [&large[..], &prompt(3, 70)].concat();
    assert!(kit.handle.save(save(&kit.family, &longer)));
    assert!(kit.handle.save(save(&kit.family, &longer)));
    go.send(()).unwrap();
    kit.handle.flush();
    assert_eq!(kit.found(&longer), (102, true));
}

#[test]
fn a_durable_save_is_told_and_includes_what_was_written_behind() {
    let mut kit = Kit::new();
    let tokens = prompt(1, 300);
    kit.save(&tokens[..100]);
    assert!(kit.save_durably(&tokens));
    kit.reopen();
    assert!(kit.save_durably(&tokens));
    assert_eq!(kit.found(&tokens), (9, true));
    assert!(!kit.save_durably(&prompt(2, 40)), "below the minimum nothing is kept");
}

#[test]
fn no_more_segments_are_mapped_than_may_be() {
    let mut kit = Kit::with(|settings, _| settings.mappings = 3);
    for seed in 1..=6 {
        kit.save(&prompt(seed, 70));
    }
    kit.reopen();
    for seed in 1..=6 {
        assert_eq!(kit.found(&prompt(seed, 70)), (2, true));
        assert!(kit.handle.stats().mapped_segments <= 3);
    }
    let held: Vec<_> = (1..=6).map(|seed| kit.restore(&prompt(seed, 70))).collect();
    assert_eq!(kit.handle.stats().mapped_segments, 3);
    assert_eq!(held.iter().filter(|restored| restored.blocks.len() == 2).count(), 3);
    assert!(held.iter().all(|restored| !restored.corrupt && !restored.io_error));
}

#[test]
fn holders_of_the_oldest_mappings_are_asked_to_let_go_when_there_are_too_many() {
    use std::sync::{Arc, Mutex};
    let mut kit = Kit::with(|settings, _| settings.mappings = 3);
    for seed in 1..=6 {
        kit.save(&prompt(seed, 70));
    }
    kit.reopen();
    let index = Arc::new(Mutex::new(Vec::new()));
    let held = Arc::clone(&index);
    kit.handle.on_pressure(move |keys| {
        held.lock()
            .unwrap()
            .retain(|block: &Arc<crate::kv::block::Block>| !keys.contains(&block.key));
    });
    for seed in 1..=6 {
        let restored = kit.restore(&prompt(seed, 70));
        assert_eq!(restored.blocks.len(), 2);
        index.lock().unwrap().extend(restored.blocks);
        assert!(kit.handle.stats().mapped_segments <= 3);
    }
}
