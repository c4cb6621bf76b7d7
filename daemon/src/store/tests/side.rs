//! Side files are found again, count like everything else, and go like everything else.

use std::fs;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use super::kit::*;
use crate::kv::key::ShortKey;
use crate::store::Side;

/// Two pieces that depend on the key, written last to first.
fn side(key: u64, bytes: usize) -> Side {
    let content = content(key, bytes);
    let (first, last) = content.split_at(bytes / 2);
    let pieces = vec![(first.len() as u64, last.to_vec()), (0, first.to_vec())];
    Side { key: ShortKey(key), bytes: bytes as u64, pieces: Box::new(pieces.into_iter()) }
}

fn content(key: u64, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i as u64 * 7 + key) as u8).collect()
}

impl Kit {
    fn keep(&self, key: u64, bytes: usize) {
        self.handle.keep_side(side(key, bytes));
        self.handle.flush();
    }

    fn has(&self, key: u64) -> bool {
        let path = self.settings.dir.join(format!("v1/{key:016x}.tgpk"));
        let counted = self.handle.shared.catalogue().sides.keys().contains(&ShortKey(key));
        assert_eq!(path.exists(), counted, "side file {key}");
        counted
    }
}

#[test]
fn a_side_file_is_found_by_the_process_that_wrote_it_and_by_the_next() {
    let mut kit = Kit::new();
    kit.keep(1, 5000);
    for _ in 0..2 {
        assert_eq!(kit.handle.side(ShortKey(1)).unwrap()[..], content(1, 5000));
        assert!(kit.handle.side(ShortKey(2)).is_none());
        kit.reopen();
    }
    assert!(kit.files_with("tmp").is_empty());
}

#[test]
fn side_files_count_against_the_disk_budget_and_are_told() {
    let mut kit = Kit::new();
    kit.save(&prompt(1, 100));
    let before = kit.handle.stats().bytes;
    kit.keep(1, 5000);
    for _ in 0..2 {
        let stats = kit.handle.stats();
        assert_eq!((stats.side_files, stats.side_bytes), (1, 5000));
        kit.save(&prompt(1, 100));
        assert_eq!(kit.handle.stats().bytes, before + 5000);
        kit.reopen();
    }
    assert!(kit.handle.stats().written_today >= 5000);
}

#[test]
fn the_least_recently_used_goes_first_whatever_it_is() {
    let kit = Kit::with(|settings, _| settings.disk_budget = 53_500);
    kit.keep(1, 10_000);
    kit.keep(2, 10_000);
    assert!(kit.handle.side(ShortKey(1)).is_some());
    kit.save(&prompt(1, 100));
    kit.save(&prompt(2, 100));
    assert_eq!([1, 2].map(|key| kit.has(key)), [true, false]);
    kit.save(&prompt(3, 100));
    assert!(!kit.has(1));
    assert_eq!(kit.found(&prompt(1, 100)), (3, true));
    assert!(kit.handle.stats().bytes <= 53_500);
}

#[test]
fn side_files_hold_half_of_the_budget_at_most() {
    let kit = Kit::with(|settings, _| settings.disk_budget = 20_000);
    kit.keep(1, 6_000);
    kit.keep(2, 6_000);
    assert_eq!([1, 2].map(|key| kit.has(key)), [false, true]);
    kit.keep(3, 10_001);
    assert_eq!([2, 3].map(|key| kit.has(key)), [true, false]);
}

#[test]
fn a_side_file_for_which_a_smaller_budget_has_no_room_is_not_mapped() {
    let mut kit = Kit::new();
    kit.keep(1, 9_000);
    kit.keep(2, 9_000);
    kit.settings.disk_budget = 20_000;
    kit.reopen();
    assert!(kit.handle.side(ShortKey(2)).is_some());
    assert_eq!([1, 2].map(|key| kit.has(key)), [false, true]);
    kit.settings.disk_budget = 10_000;
    kit.reopen();
    assert!(kit.handle.side(ShortKey(2)).is_none());
    assert!(!kit.has(2));
}

#[test]
fn a_side_file_in_use_is_not_evicted_and_counts_for_as_long_as_it_is_mapped() {
    let kit = Kit::with(|settings, _| settings.disk_budget = 20_000);
    kit.keep(1, 6_000);
    let map = kit.handle.side(ShortKey(1)).unwrap();
    kit.keep(2, 6_000);
    assert_eq!([1, 2].map(|key| kit.has(key)), [true, false]);
    kit.handle.remove_all();
    assert!(!kit.has(1));
    assert_eq!(kit.handle.stats().bytes, 6_000);
    assert_eq!(map[..], content(1, 6_000));
    drop(map);
    assert_eq!(kit.handle.stats().bytes, 0);
}

#[test]
fn removing_everything_removes_side_files_and_those_being_written() {
    let kit = Kit::new();
    kit.keep(1, 5000);
    kit.handle.keep_side(side(2, 5000));
    let removed = kit.handle.remove_all();
    assert!(removed.bytes >= 5000 && removed.kept == 0, "{removed:?}");
    kit.handle.flush();
    assert_eq!(kit.files(), [] as [std::path::PathBuf; 0]);
}

#[test]
fn a_collection_takes_side_files_that_nobody_used_for_a_month() {
    let mut kit = Kit::new();
    kit.keep(1, 5000);
    kit.keep(2, 5000);
    kit.close();
    let old = fs::File::open(kit.settings.dir.join("v1/0000000000000001.tgpk")).unwrap();
    old.set_modified(SystemTime::now() - Duration::from_hours(31 * 24)).unwrap();
    kit.reopen();
    let collected = kit.handle.gc();
    assert_eq!((collected.files, collected.bytes), (1, 5000));
    assert_eq!([1, 2].map(|key| kit.has(key)), [false, true]);
}

#[test]
fn a_full_disk_leaves_no_side_file_and_nothing_behind() {
    let kit = Kit::new();
    kit.tuning.disk.store(4_000, Ordering::Relaxed);
    kit.keep(1, 5000);
    assert!(!kit.has(1));
    assert_eq!(kit.files(), [] as [std::path::PathBuf; 0]);
    let stats = kit.handle.stats();
    assert_eq!((stats.write_errors, stats.bytes), (1, 0));
}

#[test]
fn what_does_not_fit_above_the_floor_is_not_written_and_stops_nothing_else() {
    let kit = Kit::with(|settings, _| settings.free_floor = u64::MAX);
    kit.keep(1, 5000);
    assert!(!kit.has(1));
    assert_eq!(kit.handle.stats().paused, None);
}

#[test]
fn what_a_killed_writer_left_is_removed_at_the_next_start() {
    let mut kit = Kit::new();
    kit.close();
    fs::write(kit.settings.dir.join("v1/0000000000000001.tgpk.tmp"), "half").unwrap();
    kit.reopen();
    assert!(kit.handle.side(ShortKey(1)).is_none());
    assert_eq!(kit.files(), [] as [std::path::PathBuf; 0]);
}

#[test]
fn a_directory_with_the_name_of_one_is_in_nobodys_way() {
    for theirs in [false, true] {
        let mut kit = Kit::new();
        kit.close();
        let stray = kit.settings.dir.join("v1/0000000000000001.tgpk");
        fs::create_dir_all(&stray).unwrap();
        if theirs {
            fs::write(stray.join("theirs"), "what somebody may miss").unwrap();
        }
        kit.reopen();
        assert!(kit.handle.side(ShortKey(1)).is_none());
        kit.keep(1, 5000);
        kit.reopen();
        assert_eq!(kit.handle.side(ShortKey(1)).unwrap()[..], content(1, 5000));
        assert_eq!(stray.with_added_extension("bad").join("theirs").exists(), theirs);
    }
}

#[test]
fn one_that_somebody_else_removed_is_forgotten_and_written_again() {
    let kit = Kit::new();
    kit.keep(1, 5000);
    fs::remove_file(kit.settings.dir.join("v1/0000000000000001.tgpk")).unwrap();
    assert!(kit.handle.side(ShortKey(1)).is_none());
    kit.keep(1, 5000);
    assert!(kit.has(1));
}

#[test]
fn saves_come_before_the_next_piece() {
    let kit = Kit::new();
    let endless = std::iter::repeat((0, vec![0]));
    kit.handle.keep_side(Side { key: ShortKey(1), bytes: 1, pieces: Box::new(endless) });
    assert!(kit.save_durably(&prompt(1, 100)));
    kit.handle.remove_all();
    assert!(!kit.has(1));
}
