//! Pinned prompts stay on the disk, whatever wants their room.

use proptest::prelude::*;

use super::kit::*;
use crate::kv::key::BlockKey;
use crate::kv::layout::BLOCK;
use crate::kv::pin::{Lease, now};
use crate::store::{NoRoom, Pinned};

/// Bytes on disk of a prompt of two blocks and a tail.
const SMALL: u64 = 16_384 + 2 * PART as u64;

fn lease(kit: &Kit, tokens: &[u32], until: u64) -> Lease {
    Lease { fingerprint: kit.family.fingerprint, end: end(&kit.family, tokens), until }
}

fn later() -> u64 {
    now() + 3_600_000
}

fn pin(kit: &Kit, tokens: &[u32]) -> Result<Option<Pinned>, NoRoom> {
    kit.handle.pin(lease(kit, tokens, later()))
}

fn small() -> Kit {
    Kit::with(|settings, _| settings.disk_budget = 7 * SMALL)
}

#[test]
fn a_pinned_prompt_outlasts_everything_that_is_used_later_also_after_a_restart() {
    let mut kit = small();
    kit.save(&prompt(1, 70));
    let pinned = pin(&kit, &prompt(1, 70)).unwrap().unwrap();
    assert!(pinned.fresh && pinned.bytes > SMALL, "{pinned:?}");
    for seed in 2..20 {
        kit.save(&prompt(seed, 70));
    }
    assert_eq!(kit.found(&prompt(1, 70)), (2, true));
    kit.reopen();
    for seed in 20..40 {
        kit.save(&prompt(seed, 70));
    }
    kit.handle.gc();
    assert_eq!(kit.found(&prompt(1, 70)), (2, true));
    assert_eq!(kit.handle.leases().len(), 1);
    kit.handle.unpin(lease(&kit, &prompt(1, 70), 0).key());
    assert!(kit.files_with("tgpin").is_empty());
    for seed in 40..60 {
        kit.save(&prompt(seed, 70));
    }
    assert_eq!(kit.found(&prompt(1, 70)).0, 0);
}

#[test]
fn pins_hold_half_of_the_budget_at_most() {
    let kit = small();
    for seed in 1..=4 {
        kit.save(&prompt(seed, 70));
    }
    for seed in 1..=3 {
        assert!(pin(&kit, &prompt(seed, 70)).unwrap().is_some(), "{seed}");
    }
    let refused = pin(&kit, &prompt(4, 70)).unwrap_err();
    assert_eq!((refused.what, refused.limit), ("bytes on disk", 7 * SMALL / 2));
    assert!(refused.held > 3 * SMALL && refused.needed > SMALL, "{refused}");
    assert!(!pin(&kit, &prompt(3, 70)).unwrap().unwrap().fresh, "what is pinned is renewed");
}

#[test]
fn what_is_not_on_the_disk_is_not_pinned_there() {
    let kit = Kit::new();
    assert_eq!(pin(&kit, &prompt(1, 70)), Ok(None));
    kit.save(&prompt(1, 70));
    assert_eq!(pin(&kit, &prompt(1, 100)), Ok(None));
    assert_eq!(pin(&kit, &prompt(1, 71)), Ok(None), "no record has this tail");
    assert!(pin(&kit, &prompt(1, 64)).unwrap().is_some(), "a prefix without a record");
}

#[test]
fn a_lease_ends_by_itself() {
    let kit = small();
    kit.save(&prompt(1, 70));
    kit.handle.pin(lease(&kit, &prompt(1, 70), now() + 50)).unwrap().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(60));
    assert!(kit.handle.list().iter().all(|end| end.pinned_ms.is_none()));
    for seed in 2..20 {
        kit.save(&prompt(seed, 70));
    }
    assert_eq!(kit.found(&prompt(1, 70)).0, 0);
}

#[test]
fn the_clock_of_an_earlier_process_may_have_been_ahead() {
    let mut kit = Kit::new();
    kit.save(&prompt(1, 70));
    kit.handle.pin(lease(&kit, &prompt(1, 70), u64::MAX)).unwrap().unwrap();
    kit.reopen();
    let latest = now() + 30 * 24 * 3_600_000;
    assert!(kit.handle.leases()[0].until <= latest);
}

#[test]
fn a_damaged_file_of_pins_costs_the_pins_and_nothing_else() {
    let mut kit = Kit::new();
    kit.save(&prompt(1, 70));
    pin(&kit, &prompt(1, 70)).unwrap().unwrap();
    let path = kit.files_with("tgpin").remove(0);
    kit.close();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[50] ^= 1;
    for damaged in [bytes, Vec::new(), vec![7; 1 << 20]] {
        std::fs::write(&path, damaged).unwrap();
        kit.reopen();
        assert!(kit.handle.leases().is_empty() && !path.exists());
        assert_eq!(kit.found(&prompt(1, 70)), (2, true));
        kit.close();
    }
}

#[test]
fn a_removed_prompt_takes_its_pin_and_those_behind_it_along() {
    let mut kit = Kit::new();
    for len in [70, 100, 200] {
        kit.save(&prompt(1, len));
        pin(&kit, &prompt(1, len)).unwrap().unwrap();
    }
    let removed = kit.handle.remove(&kit.family.fingerprint, &end(&kit.family, &prompt(1, 100)));
    assert_eq!((removed.pins, removed.kept), (2, 0));
    kit.reopen();
    assert_eq!(kit.handle.leases().len(), 1);
    assert_eq!(kit.found(&prompt(1, 200)).0, 2);
    assert_eq!(kit.handle.remove_all().pins, 1);
    assert!(kit.handle.leases().is_empty() && kit.files_with("tgpin").is_empty());
}

#[test]
fn a_pinned_prompt_survives_the_removal_of_what_goes_on_from_it() {
    let kit = Kit::new();
    kit.save(&prompt(1, 10 * BLOCK));
    pin(&kit, &prompt(1, 4 * BLOCK)).unwrap().unwrap();
    let listed = |kit: &Kit| kit.handle.list().iter().any(|end| end.pinned_ms.is_some());
    assert!(listed(&kit), "though no file ends there");
    kit.handle.remove(&kit.family.fingerprint, &end(&kit.family, &prompt(1, 10 * BLOCK)));
    assert_eq!(kit.found(&prompt(1, 10 * BLOCK)).0, 4);
    assert!(listed(&kit));
}

#[test]
fn a_pinned_segment_does_not_grow() {
    let kit = Kit::with(|_, tuning| tuning.neighbours = 3);
    let long = prompt(1, 12 * BLOCK);
    kit.save(&long[..3 * BLOCK]);
    let bytes = pin(&kit, &long[..3 * BLOCK]).unwrap().unwrap().bytes;
    for blocks in 4..=12 {
        kit.save_with(&long[..blocks * BLOCK], |save| save.record = None);
    }
    assert_eq!(pin(&kit, &long[..3 * BLOCK]).unwrap().unwrap().bytes, bytes);
    kit.save_with(&long, |save| save.replace = true);
    assert_eq!(pin(&kit, &long[..3 * BLOCK]).unwrap().unwrap().bytes, bytes);
    assert_eq!(kit.found(&long).0, 12);
}

#[test]
fn a_smaller_budget_at_the_next_start_leaves_pins_half_of_it() {
    let mut kit = small();
    for seed in 1..=3 {
        kit.save(&prompt(seed, 70));
        pin(&kit, &prompt(seed, 70)).unwrap().unwrap();
    }
    kit.settings.disk_budget = 4 * SMALL;
    kit.reopen();
    for seed in 10..20 {
        kit.save(&prompt(seed, 70));
        let stats = kit.handle.stats();
        assert!(stats.bytes <= 4 * SMALL, "{stats:?}");
    }
    let found = (1..=3).filter(|seed| kit.found(&prompt(*seed, 70)) == (2, true)).count();
    assert_eq!(found, 1);
    assert!(kit.handle.stats().evictions > 0);
}

/// What someone does with the store.
#[derive(Debug, Clone)]
enum Act {
    Save(u32, usize),
    Restore(u32, usize),
    Pin(u32, usize, bool),
    Unpin(u32, usize),
    Remove(u32, usize),
    Reopen,
}

fn act() -> impl Strategy<Value = Act> {
    let lens = prop::sample::select(vec![64usize, 70, 96, 130, 260, 400]);
    let which = || (1..6u32, lens.clone());
    prop_oneof![
        6 => which().prop_map(|(seed, len)| Act::Save(seed, len)),
        2 => which().prop_map(|(seed, len)| Act::Restore(seed, len)),
        4 => (which(), prop::bool::weighted(0.2))
            .prop_map(|((seed, len), ended)| Act::Pin(seed, len, ended)),
        1 => which().prop_map(|(seed, len)| Act::Unpin(seed, len)),
        1 => which().prop_map(|(seed, len)| Act::Remove(seed, len)),
        1 => Just(Act::Reopen),
    ]
}

/// A prompt whose first 64 tokens are everyone's.
fn branch(seed: u32, len: usize) -> Vec<u32> {
    [&prompt(1, 64)[..], &prompt(seed + 1, len - 64)].concat()
}

/// Bytes of the files that pins hold, found by another way than the store's.
fn held(kit: &Kit, pinned: &[Vec<u32>]) -> u64 {
    let catalogue = kit.handle.shared.catalogue();
    let of = |(_, entry): &(_, &crate::store::catalogue::Entry)| {
        let contents = entry.contents.as_ref().unwrap();
        pinned.iter().any(|tokens| {
            let keys = crate::kv::key::chain(&kit.family.fingerprint, tokens);
            let end = end(&kit.family, tokens);
            let record = end.key(&kit.family.fingerprint).short();
            match entry.name {
                crate::store::name::Name::Record { key, .. } => key == record,
                _ => contents.keys().iter().any(|key: &BlockKey| keys.contains(key)),
            }
        })
    };
    catalogue.entries().filter(of).map(|(_, entry)| entry.bytes).sum()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn pinned_prompts_are_always_found_and_neither_the_budget_nor_its_half_is_exceeded(
        acts in prop::collection::vec(act(), 1..60),
        budget in 60_000..300_000u64,
    ) {
        let mut kit = Kit::with(|settings, tuning| {
            settings.disk_budget = budget;
            tuning.segment = 4 * PART as u64;
        });
        let mut pinned: Vec<Vec<u32>> = Vec::new();
        for act in acts {
            match act {
                Act::Save(seed, len) => kit.save(&branch(seed, len)),
                Act::Restore(seed, len) => _ = kit.restore(&branch(seed, len)),
                Act::Pin(seed, len, ended) => {
                    let tokens = branch(seed, len);
                    let until = if ended { 1 } else { later() };
                    let given = kit.handle.pin(lease(&kit, &tokens, until));
                    if !ended && matches!(given, Ok(Some(_))) && !pinned.contains(&tokens) {
                        pinned.push(tokens);
                    }
                }
                Act::Unpin(seed, len) => {
                    let tokens = branch(seed, len);
                    kit.handle.unpin(lease(&kit, &tokens, 0).key());
                    pinned.retain(|pinned| *pinned != tokens);
                }
                Act::Remove(seed, len) => {
                    let tokens = branch(seed, len);
                    kit.handle.remove(&kit.family.fingerprint, &end(&kit.family, &tokens));
                    pinned.retain(|pinned| !pinned.starts_with(&tokens));
                }
                Act::Reopen => kit.reopen(),
            }
            for tokens in &pinned {
                let whole = kit.restore(tokens).blocks.len() == tokens.len() / BLOCK;
                prop_assert!(whole, "{} tokens", tokens.len());
            }
            kit.handle.shared.read_all_headers();
            let stats = kit.handle.stats();
            prop_assert_eq!(stats.bytes - stats.unlinked_bytes, kit.bytes_on_disk());
            prop_assert!(stats.bytes <= budget, "{} of {budget} bytes", stats.bytes);
            prop_assert!(held(&kit, &pinned) <= budget / 2);
        }
    }
}
