//! Segments made from segments.

use std::sync::mpsc;

use super::kit::*;
use crate::kv::layout::BLOCK;

/// Blocks `from..to` of a prompt without a record, as a generation saves them.
fn save_run(kit: &Kit, tokens: &[u32], from: usize, to: usize) -> usize {
    let (publish, published) = mpsc::channel();
    let mut save = save(&kit.family, tokens);
    save.blocks = save.blocks[from..to].to_vec();
    save.record = None;
    save.published = Box::new(move |blocks| publish.send(blocks).unwrap());
    kit.handle.save(save);
    let blocks = published.recv().unwrap();
    blocks.iter().for_each(|block| check_bytes(block));
    blocks.len()
}

#[test]
fn many_small_neighbours_become_one_segment() {
    let mut kit = Kit::new();
    let tokens = prompt(1, 30 * BLOCK);
    assert_eq!(save_run(&kit, &tokens, 0, 2), 2);
    for block in 2..9 {
        assert_eq!(save_run(&kit, &tokens, block, block + 1), 1);
    }
    assert_eq!(kit.files_with("tgkv").len(), 8);
    // The ninth neighbour comes with all others in one mapping.
    assert_eq!(save_run(&kit, &tokens, 9, 10), 10);
    assert_eq!(kit.files_with("tgkv").len(), 1);
    for block in 10..30 {
        save_run(&kit, &tokens, block, block + 1);
    }
    assert!(kit.files_with("tgkv").len() <= 9);
    kit.reopen();
    assert_eq!(kit.found(&tokens).0, 30);
}

#[test]
fn a_branch_between_neighbours_survives_their_merger() {
    let mut kit = Kit::new();
    let tokens = prompt(1, 20 * BLOCK);
    save_run(&kit, &tokens, 0, 2);
    save_run(&kit, &tokens, 2, 3);
    let branch = [&tokens[..3 * BLOCK], &prompt(2, 100)].concat();
    kit.save(&branch);
    for block in 3..20 {
        save_run(&kit, &tokens, block, block + 1);
    }
    kit.reopen();
    assert_eq!((kit.found(&tokens).0, kit.found(&branch)), (20, (6, true)));
}

#[test]
fn what_a_crash_between_publishing_and_unlinking_leaves_is_cleaned_up() {
    let mut kit = Kit::with(|_, tuning| tuning.neighbours = 1000);
    let tokens = prompt(1, 10 * BLOCK);
    for block in 0..5 {
        save_run(&kit, &tokens, 2 * block, 2 * block + 2);
    }
    let sources = kit.files_with("tgkv");
    let copies: Vec<_> = sources.iter().map(|path| std::fs::read(path).unwrap()).collect();
    kit.tuning.neighbours = 2;
    kit.reopen();
    let long = [&tokens[..], &prompt(2, 64)].concat();
    save_run(&kit, &long, 10, 12);
    assert_eq!(kit.files_with("tgkv").len(), 1);
    kit.close();
    for (path, bytes) in sources.iter().zip(copies) {
        std::fs::write(path, bytes).unwrap();
    }
    kit.reopen();
    kit.handle.list();
    // The background may have read a header first, and be about to unlink its file.
    kit.wait_until(|kit| kit.files_with("tgkv").len() == 1);
    assert_eq!(kit.found(&long).0, 12);
}

#[test]
fn a_large_run_is_cut_into_segments() {
    let mut kit = Kit::with(|_, tuning| tuning.segment = 4 * PART as u64);
    let tokens = prompt(1, 10 * BLOCK);
    kit.save(&tokens);
    assert_eq!(kit.files_with("tgkv").len(), 3);
    kit.reopen();
    assert_eq!(kit.found(&tokens), (10, true));
}

/// Spoils a prompt's file, so that only a rewritten one is right.
fn spoil(kit: &Kit, at: usize) {
    let path = kit.files_with("tgkv").remove(0);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[16_384 + at * PART] ^= 1;
    // A new file under the same name: the old one may be mapped.
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, bytes).unwrap();
}

#[test]
fn a_refreshed_block_takes_the_place_of_the_old_one_and_its_neighbours_stay() {
    let tokens = prompt(1, 10 * BLOCK);
    for (from, to) in [(0, 10), (0, 4), (3, 6), (9, 10)] {
        let mut kit = Kit::new();
        kit.save(&tokens);
        kit.close();
        spoil(&kit, from);
        kit.reopen();
        kit.save_with(&tokens, |save| {
            save.blocks = save.blocks[from..to].to_vec();
            save.replace = true;
        });
        kit.reopen();
        // Blocks behind the spoilt one are read up to it; the refreshed ones are right.
        let found = kit.found(&tokens).0;
        assert!(found == 10 || found == to, "{from}..{to}: {found}");
        assert_eq!(kit.handle.verify(false).bad, []);
    }
}

#[test]
fn refreshing_what_is_in_use_leaves_its_users_alone() {
    let mut kit = Kit::new();
    let tokens = prompt(1, 10 * BLOCK);
    kit.save(&tokens);
    let before = kit.restore(&tokens);
    kit.save_with(&tokens[..5 * BLOCK], |save| save.replace = true);
    before.blocks.iter().for_each(|block| check_bytes(block));
    assert_eq!(kit.files_with("tgkv").len(), 1);
    drop(before);
    assert_eq!(kit.handle.stats().unlinked_bytes, 0);
    kit.reopen();
    assert_eq!(kit.found(&tokens), (10, true));
}

#[test]
fn a_tail_that_a_block_covers_is_dropped_and_a_complete_record_is_not() {
    let kit = Kit::new();
    let tokens = prompt(1, 128);
    kit.save_with(&tokens[..70], |save| {
        save.record = Some(record(&save.family, &tokens[..70], false).into());
    });
    kit.save(&tokens[..80]);
    assert_eq!(kit.files_with("tgrec").len(), 2);
    kit.save_with(&tokens, |save| save.record = None);
    assert_eq!(kit.files_with("tgrec").len(), 1);
    assert_eq!(kit.found(&tokens[..80]), (2, true));
}

#[test]
fn a_tail_stays_when_the_block_that_covers_it_could_not_be_written() {
    let kit = Kit::new();
    let tokens = prompt(1, 128);
    kit.save_with(&tokens[..70], |save| {
        save.record = Some(record(&save.family, &tokens[..70], false).into());
    });
    kit.tuning.disk.store(0, std::sync::atomic::Ordering::Relaxed);
    kit.save_with(&tokens, |save| save.record = None);
    assert_eq!(kit.found(&tokens[..70]), (2, true));
}

#[test]
fn a_record_with_a_hidden_state_is_never_superseded_by_one_without() {
    let kit = Kit::new();
    let tokens = prompt(1, 70);
    let save = |complete| {
        kit.save_with(&tokens, |save| {
            save.record = Some(record(&save.family, &tokens, complete).into());
        });
        kit.restore(&tokens).record.unwrap().hidden.is_some()
    };
    assert_eq!([save(false), save(true), save(false)], [false, true, true]);
    assert_eq!(kit.files_with("tgrec").len(), 1);
}
