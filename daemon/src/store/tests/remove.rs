//! Removed means gone, and nothing else is.

use std::sync::Arc;

use proptest::prelude::*;

use super::kit::*;
use crate::kv::index::{Budget, Index, Origin};
use crate::kv::key::chain;
use crate::kv::layout::BLOCK;
use crate::store::{Lookalike, head_digest};

fn remove(kit: &Kit, tokens: &[u32]) -> (u64, u64) {
    let removed = kit.handle.remove(&kit.family.fingerprint, &end(&kit.family, tokens));
    (removed.blocks, removed.records)
}

fn expect(kit: &mut Kit, expected: &[(&[u32], (usize, bool))]) {
    for _ in 0..2 {
        for (tokens, found) in expected {
            assert_eq!(kit.found(tokens), *found);
        }
        kit.reopen();
    }
}

/// Whoever removes prompts must not be told that they are gone when they are not.
#[test]
fn files_that_cannot_be_unlinked_are_counted_as_kept() {
    let kit = Kit::new();
    let (stuck, gone) = (prompt(1, 100), prompt(2, 100));
    kit.save(&stuck);
    let path = kit.files_with("tgkv").remove(0);
    kit.save(&gone);
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    assert_eq!(kit.handle.remove(&kit.family.fingerprint, &end(&kit.family, &gone)).kept, 0);
    assert_eq!(kit.handle.remove_all().kept, 1);
    assert!(path.exists());
}

#[test]
fn a_removed_prompt_leaves_nothing_behind() {
    let mut kit = Kit::new();
    let tokens = prompt(1, 100);
    kit.save(&tokens);
    assert_eq!(remove(&kit, &tokens), (3, 1));
    assert!(!kit.may_have(&tokens, 0));
    assert_eq!((kit.files_with("tgkv").len(), kit.files_with("tgrec").len()), (0, 0));
    let dir = kit.settings.dir.join("v1").join(kit.family.fingerprint.short().to_string());
    assert!(!dir.exists());
    let (fields, head) = (kit.family.fields, head_digest(&tokens));
    assert_eq!(kit.handle.relative(&Lookalike { fields, head, text: None }), None);
    expect(&mut kit, &[(&tokens, (0, false))]);
    assert_eq!(remove(&kit, &tokens), (0, 0));
}

#[test]
fn descendants_go_with_their_ancestor() {
    let mut kit = Kit::new();
    let long = prompt(1, 200);
    let other = [&long[..100], &prompt(2, 100)].concat();
    let unrelated = prompt(3, 100);
    for tokens in [&long[..100], &long[..150], &long, &other, &unrelated] {
        kit.save(tokens);
    }
    assert_eq!(remove(&kit, &long[..100]), (3 + 3 + 3, 4));
    expect(&mut kit, &[(&long, (0, false)), (&other, (0, false)), (&unrelated, (3, true))]);
}

#[test]
fn blocks_that_another_chain_needs_stay() {
    let mut kit = Kit::new();
    let long = prompt(1, 320);
    let other = [&long[..160], &prompt(2, 100)].concat();
    kit.save(&long);
    kit.save(&other);
    assert_eq!(remove(&kit, &long), (5, 1));
    expect(&mut kit, &[(&long, (5, false)), (&other, (8, true))]);
    assert_eq!(remove(&kit, &other), (8, 1));
    expect(&mut kit, &[(&long, (0, false))]);
}

#[test]
fn a_record_keeps_the_blocks_before_it() {
    let mut kit = Kit::new();
    let long = prompt(1, 320);
    kit.save(&long);
    kit.save(&long[..170]);
    assert_eq!(remove(&kit, &long), (5, 1));
    expect(&mut kit, &[(&long[..170], (5, true))]);
}

#[test]
fn two_prompts_that_differ_in_the_tail_only_go_one_by_one() {
    let mut kit = Kit::new();
    let system = prompt(1, 64);
    let a = [&system[..], &prompt(2, 100)].concat();
    let b = [&system[..], &prompt(3, 10)].concat();
    let c = [&system[..], &prompt(4, 10)].concat();
    for tokens in [&a, &b, &c] {
        kit.save(tokens);
    }
    assert_eq!(remove(&kit, &b), (0, 1));
    expect(&mut kit, &[(&a, (5, true)), (&b, (2, false)), (&c, (2, true))]);
}

#[test]
fn what_goes_on_from_a_removed_tail_goes_too() {
    let mut kit = Kit::new();
    let long = prompt(1, 200);
    kit.save(&long[..70]);
    kit.save(&long);
    kit.save(&[&long[..64], &prompt(2, 20)].concat());
    assert_eq!(remove(&kit, &long[..70]), (4, 2));
    expect(&mut kit, &[(&long, (2, false))]);
}

#[test]
fn the_tokens_of_removed_blocks_are_in_no_file() {
    let kit = Kit::new();
    let long = prompt(1, 320);
    kit.save(&long);
    kit.save(&long[..170]);
    remove(&kit, &long);
    let secret: Vec<u8> = long[200..208].iter().flat_map(|token| token.to_le_bytes()).collect();
    for path in kit.files() {
        let bytes = std::fs::read(&path).unwrap();
        assert!(!bytes.windows(secret.len()).any(|window| window == secret), "{}", path.display());
    }
}

#[test]
fn a_chain_end_without_a_record_has_a_key_too() {
    let mut kit = Kit::new();
    let tokens = prompt(1, 4 * BLOCK);
    kit.save_with(&tokens, |save| save.record = None);
    let entries = kit.handle.list();
    assert_eq!((entries.len(), entries[0].tokens, entries[0].complete), (1, 128, false));
    assert_eq!(entries[0].key, record(&kit.family, &tokens, false).key);
    assert_eq!(remove(&kit, &tokens), (4, 0));
    expect(&mut kit, &[(&tokens, (0, false))]);
}

#[test]
fn everything_can_be_removed() {
    let mut kit = Kit::new();
    let (tokens, other) = (prompt(1, 100), family("b"));
    kit.save(&tokens);
    kit.handle.save(save(&other, &tokens));
    let removed = kit.handle.remove_all();
    assert_eq!((removed.blocks, removed.records), (6, 2));
    assert_eq!(kit.files(), Vec::<std::path::PathBuf>::new());
    let stats = kit.handle.stats();
    assert_eq!((stats.bytes, stats.segments, stats.records), (0, 0, 0));
    kit.save(&tokens);
    kit.reopen();
    assert_eq!(kit.found(&tokens), (3, true));
}

#[test]
fn a_removal_comes_after_what_was_saved_before() {
    let kit = Kit::new();
    let tokens = prompt(1, 100);
    kit.handle.save(save(&kit.family, &tokens));
    assert_eq!(remove(&kit, &tokens), (3, 1));
    assert_eq!(kit.found(&tokens), (0, false));
}

#[test]
fn blocks_in_use_keep_their_bytes_when_they_are_removed() {
    let kit = Kit::new();
    let tokens = prompt(1, 100);
    kit.save(&tokens);
    let restored = kit.restore(&tokens);
    remove(&kit, &tokens);
    restored.blocks.iter().for_each(|block| check_bytes(block));
    assert!(kit.handle.stats().unlinked_bytes > 0);
    drop(restored);
    assert_eq!(kit.handle.stats().unlinked_bytes, 0);
}

#[test]
fn the_list_has_every_chain_end_with_its_tokens_and_bytes() {
    let mut kit = Kit::new();
    let long = prompt(1, 200);
    let branch = [&long[..100], &prompt(2, 50)].concat();
    for tokens in [&long[..], &long[..70], &branch] {
        kit.save(tokens);
    }
    kit.reopen();
    let mut entries = kit.handle.list();
    entries.sort_by_key(|entry| entry.tokens);
    assert_eq!(entries.iter().map(|entry| entry.tokens).collect::<Vec<_>>(), [70, 150, 200]);
    for (entry, tokens) in entries.iter().zip([&long[..70], &branch, &long]) {
        let fingerprint = &kit.family.fingerprint;
        assert_eq!(kit.handle.tokens(fingerprint, &entry.key).as_deref(), Some(tokens));
        assert!(entry.bytes > (tokens.len() / BLOCK * PART) as u64 && entry.complete);
    }
}

#[test]
fn an_end_that_only_memory_has_a_record_of_takes_its_descendants_from_the_disk() {
    let mut kit = Kit::new();
    let long = prompt(1, 170);
    kit.save(&long);
    assert_eq!(remove(&kit, &long[..70]), (5, 1));
    expect(&mut kit, &[(&long, (0, false))]);
}

/// Prompts of one trunk that part from it anywhere.
fn relative() -> impl Strategy<Value = Vec<u32>> {
    let parts = (2..5u32, 60..140usize, 64..200usize);
    parts.prop_map(|(seed, shared, len)| {
        [&prompt(1, shared.min(len))[..], &prompt(seed, len.saturating_sub(shared))].concat()
    })
}

fn remember(index: &mut Index, kit: &Kit, tokens: &[u32]) {
    for block in blocks(&kit.family, tokens) {
        index.insert(block, Origin::Memory);
    }
    index.insert_record(Arc::new(record(&kit.family, tokens, true)), Origin::Memory);
}

/// What [`Kit::found`] says of the disk.
fn reached(index: &Index, kit: &Kit, tokens: &[u32]) -> (usize, bool) {
    let record = record(&kit.family, tokens, true);
    let blocks = index.longest(&chain(&kit.family.fingerprint, tokens), tokens).len();
    let whole = blocks == tokens.len() / BLOCK;
    (blocks, whole && index.record(&record.key, &record.tail).is_some())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn memory_and_disk_forget_the_same(
        prompts in prop::collection::vec((relative(), any::<bool>()), 1..8),
        which in any::<prop::sample::Index>(),
        cut in 1..200usize,
    ) {
        let kit = Kit::new();
        let budget = Budget { heap: 1 << 30, mappings: 10 };
        let (mut all, mut some) = (Index::new(budget), Index::new(budget));
        for (tokens, loaded) in &prompts {
            kit.save(tokens);
            remember(&mut all, &kit, tokens);
            if *loaded {
                remember(&mut some, &kit, tokens);
            }
        }
        // The end of a prompt, or any place before it.
        let (removed, _) = which.get(&prompts);
        let removed = &removed[..cut.min(removed.len())];
        let end = end(&kit.family, removed);
        kit.handle.remove(&kit.family.fingerprint, &end);
        all.remove_chain(&end);
        some.remove_chain(&end);
        for (tokens, _) in &prompts {
            let found = kit.found(tokens);
            prop_assert_eq!(reached(&all, &kit, tokens), found);
            let reached = reached(&some, &kit, tokens);
            prop_assert!(reached.0 <= found.0 && reached.1 <= found.1);
            let gone = found.0 <= removed.len() / BLOCK && !found.1;
            prop_assert!(!tokens.starts_with(removed) || gone);
        }
    }
}
