//! What was saved is found, by this process and by the next.

use std::sync::mpsc;

use super::kit::*;
use crate::kv::block::Part;
use crate::kv::layout::BLOCK;

#[test]
fn what_was_saved_is_found_bit_for_bit() {
    let mut kit = Kit::new();
    for (seed, len) in [64, 65, 95, 96, 97, 255, 256, 257, 1000].into_iter().enumerate() {
        let tokens = prompt(seed as u32 + 1, len);
        kit.save(&tokens);
        assert_eq!(kit.found(&tokens), (len / BLOCK, true), "{len} tokens");
        kit.reopen();
        assert!(kit.may_have(&tokens, 0));
        assert_eq!(kit.found(&tokens), (len / BLOCK, true), "{len} tokens after a restart");
    }
}

#[test]
fn a_short_chain_is_not_written() {
    let kit = Kit::new();
    for len in [0, 1, 31, 32, 33, 63] {
        kit.save(&prompt(1, len));
    }
    assert_eq!(kit.files(), Vec::<std::path::PathBuf>::new());
    assert_eq!(kit.handle.stats().dropped_writes, 0);
}

#[test]
fn the_asker_gets_only_what_it_lacks() {
    let mut kit = Kit::new();
    let tokens = prompt(1, 300);
    kit.save(&tokens);
    for from in 0..=9 {
        kit.reopen();
        let restored = kit.restore_from(&tokens, from);
        assert_eq!((restored.blocks.len(), restored.record.is_some()), (9 - from, true));
    }
}

#[test]
fn published_blocks_are_mapped_and_have_the_same_bytes() {
    let kit = Kit::new();
    let (publish, published) = mpsc::channel();
    kit.save_with(&prompt(1, 100), |save| {
        let publish = publish.clone();
        save.published = Box::new(move |blocks| publish.send(blocks).unwrap());
    });
    let blocks = published.recv().unwrap();
    assert_eq!(blocks.len(), 3);
    for block in &blocks {
        check_bytes(block);
        assert!(block.parts.iter().all(|part| matches!(**part, Part::Mapped(..))));
    }
}

#[test]
fn a_block_on_disk_is_not_written_again() {
    let mut kit = Kit::new();
    let tokens = prompt(1, 200);
    kit.save(&tokens);
    let written = kit.handle.stats().written_today;
    kit.save(&tokens);
    assert_eq!(kit.handle.stats().written_today, written);
    kit.reopen();
    kit.save(&tokens);
    assert_eq!(kit.files_with("tgkv").len(), 1);
}

#[test]
fn a_segment_is_mapped_once_however_often_it_is_asked_for() {
    let mut kit = Kit::new();
    let tokens = prompt(1, 200);
    kit.save(&tokens);
    kit.reopen();
    let restored: Vec<_> = (0..5).map(|_| kit.restore(&tokens)).collect();
    assert_eq!(kit.handle.stats().mapped_segments, 1);
    drop(restored);
}
