//! A cache directory that is taken away from under the daemon.

use std::fs;

use super::kit::*;

#[test]
fn a_directory_that_was_moved_is_written_to_again_when_it_is_back() {
    let mut kit = Kit::new();
    kit.save(&prompt(1, 100));
    let (dir, away) = (kit.settings.dir.clone(), kit.settings.dir.with_file_name("away"));
    fs::rename(&dir, &away).unwrap();
    assert!(!kit.save_durably(&prompt(2, 100)));
    let stats = kit.handle.stats();
    assert!(stats.lost && stats.dropped_writes == 1 && stats.write_errors == 0, "{stats:?}");
    assert!(!dir.exists(), "it was made again");
    fs::rename(&away, &dir).unwrap();
    assert!(kit.save_durably(&prompt(3, 100)));
    assert!(!kit.handle.stats().lost);
    kit.reopen();
    let found = |seed| kit.found(&prompt(seed, 100));
    assert_eq!((found(1), found(2), found(3)), ((3, true), (0, false), (3, true)));
}

#[test]
fn a_directory_of_another_daemon_at_its_path_is_left_alone() {
    let kit = Kit::new();
    kit.save(&prompt(1, 100));
    fs::remove_dir_all(&kit.settings.dir).unwrap();
    let (other, _threads) = take_over(&kit.settings, &kit.tuning);
    let others = prompt(2, 100);
    other.save(save(&kit.family, &others));
    other.flush();
    let half = kit.files_with("tgkv")[0].with_extension("tgkv.tmp");
    fs::write(&half, "being written").unwrap();
    let files = kit.files();
    kit.save(&prompt(3, 100));
    assert_eq!(kit.handle.gc(), crate::store::Collected::default());
    assert!(kit.handle.stats().lost && !other.stats().lost);
    assert_eq!(kit.files(), files);
    // Mapped bytes outlive their file; what is found at all is right.
    kit.restore(&prompt(1, 100));
    assert_eq!(restore(&other, &kit.family, &others, 0).blocks.len(), 3);
}

/// Without it another daemon can lock the directory, too.
#[test]
fn a_directory_without_its_lock_is_not_written_to() {
    let kit = Kit::new();
    fs::remove_file(kit.settings.dir.join("lock")).unwrap();
    kit.save(&prompt(1, 100));
    assert!(kit.handle.stats().lost && kit.files().is_empty());
}
