//! Chains that part, and relatives that lend their beginning.

use super::kit::*;
use crate::kv::layout::BLOCK;

/// `tokens` up to `at`, then others.
fn parted(tokens: &[u32], at: usize, len: usize) -> Vec<u32> {
    [&tokens[..at], &prompt(9, len)].concat()
}

#[test]
fn a_chain_that_parts_in_the_middle_of_a_segment_is_found_whole() {
    let mut kit = Kit::new();
    let trunk = prompt(1, 10 * BLOCK);
    kit.save(&trunk);
    for at in 1..10 {
        let branch = parted(&trunk, at * BLOCK, 100 + at);
        kit.save(&branch);
        kit.reopen();
        assert_eq!(kit.found(&branch), (branch.len() / BLOCK, true));
        assert_eq!(kit.found(&trunk), (10, true));
    }
    let twig = [&parted(&trunk, 5 * BLOCK, 64)[..], &prompt(8, 70)].concat();
    kit.save(&twig);
    kit.reopen();
    assert_eq!(kit.found(&twig), (twig.len() / BLOCK, true));
}

#[test]
fn a_branch_writes_only_what_differs() {
    let kit = Kit::new();
    let trunk = prompt(1, 10 * BLOCK);
    kit.save(&trunk);
    let before: u64 =
        kit.files_with("tgkv").iter().map(|path| path.metadata().unwrap().len()).sum();
    kit.save(&parted(&trunk, 5 * BLOCK, BLOCK));
    let after: u64 = kit.files_with("tgkv").iter().map(|path| path.metadata().unwrap().len()).sum();
    assert_eq!(after - before, (16 * 1024 + PART) as u64);
}

#[test]
fn the_block_with_most_tokens_in_common_lends() {
    let mut kit = Kit::new();
    let trunk = prompt(1, 4 * BLOCK);
    kit.save(&trunk);
    for at in [65, 70, 90] {
        kit.save(&parted(&trunk, at, 70));
    }
    kit.reopen();
    for (at, lender) in [(64, None), (66, Some(66)), (71, Some(71)), (80, Some(80)), (95, Some(95))]
    {
        let asked = [&trunk[..at], &[7, 7, 7]].concat();
        let restored = kit.restore(&asked);
        assert_eq!(restored.blocks.len(), 2);
        let common = restored.partial.map(|block| {
            64 + block.tokens.iter().zip(&asked[64..]).take_while(|(a, b)| a == b).count()
        });
        assert_eq!(common, lender, "parting at {at}");
    }
}

#[test]
fn a_prompt_with_only_its_first_token_in_common_gets_that_one() {
    let mut kit = Kit::new();
    kit.save(&prompt(1, 100));
    kit.reopen();
    let asked = [&prompt(1, 1)[..], &prompt(2, 50)].concat();
    assert!(kit.may_have(&asked, 0));
    assert!(kit.restore(&asked).partial.is_some());
    // The background has read the header, or the restore has: now the catalogue knows better.
    assert!(!kit.may_have(&prompt(2, 50), 0));
}

#[test]
fn the_record_with_the_longest_tail_in_common_is_found() {
    let mut kit = Kit::new();
    let trunk = prompt(1, 64);
    for at in [66, 72, 80] {
        kit.save(&parted(&trunk, 64, at - 64));
        kit.save(&[&trunk[..], &prompt(9, at - 64)[..at - 65], &[1]].concat());
    }
    kit.reopen();
    let asked = [&trunk[..], &prompt(9, 12), &[5, 5]].concat();
    let record = kit.restore(&asked).record.unwrap();
    let common = record.tail.iter().zip(&asked[64..]).take_while(|(a, b)| a == b).count();
    assert_eq!(common, 12);
}

#[test]
fn the_exact_record_comes_before_longer_ones() {
    let mut kit = Kit::new();
    let longer = prompt(1, 80);
    kit.save(&longer);
    kit.save(&longer[..70]);
    kit.reopen();
    assert_eq!(kit.restore(&longer[..70]).record.unwrap().length, 70);
    assert_eq!(kit.restore(&longer[..75]).record.unwrap().length, 80);
}

#[test]
fn a_relative_is_found_behind_blocks_that_only_the_asker_has() {
    let mut kit = Kit::new();
    let tokens = prompt(1, 8 * BLOCK);
    kit.save(&tokens);
    kit.reopen();
    let asked = [&tokens[..100], &prompt(2, 100)].concat();
    let restored = kit.restore_from(&asked, 3);
    assert!(restored.blocks.is_empty());
    assert_eq!(restored.partial.unwrap().tokens[..4], tokens[96..100]);
}

#[test]
fn one_of_very_many_relatives_is_found_by_one_look() {
    let mut kit = Kit::new();
    for seed in 1..200 {
        kit.save(&[&[7][..], &prompt(seed, 70)].concat());
    }
    kit.reopen();
    kit.handle.list();
    let asked = [&[7][..], &prompt(150, 20), &[1, 2, 3]].concat();
    let restored = kit.restore(&asked);
    assert_eq!(restored.partial.unwrap().tokens[..21], asked[..21]);
}
