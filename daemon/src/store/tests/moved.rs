//! A cache directory that is taken away from under the daemon.

use std::fs;
use std::os::unix::fs::FileExt;

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

#[test]
fn nothing_of_another_daemon_is_removed_collected_or_set_aside() {
    let mut kit = Kit::new();
    let (shared, others) = (prompt(1, 100), prompt(2, 100));
    kit.save(&shared);
    kit.save(&prompt(3, 100));
    kit.reopen();
    fs::remove_dir_all(&kit.settings.dir).unwrap();
    let (other, _threads) = take_over(&kit.settings, &kit.tuning);
    for tokens in [&shared, &others] {
        other.save(save(&kit.family, tokens));
    }
    other.flush();
    let files = kit.files();
    assert_eq!(files.len(), 5, "two segments, two records and the digests: {files:?}");
    for file in &files {
        // Whoever reads it would set it aside.
        let file = fs::File::options().write(true).open(file).unwrap();
        file.write_all_at(b"damaged!", 0).unwrap();
    }
    assert_eq!(kit.found(&shared), (0, false));
    kit.handle.verify(true);
    kit.handle.gc();
    let removed = [
        kit.handle.remove(&kit.family.fingerprint, &end(&kit.family, &prompt(3, 100))),
        kit.handle.remove_all(),
    ];
    assert!(removed.iter().all(|removed| removed.moved), "{removed:?}");
    kit.close();
    assert_eq!(kit.files(), files);
    assert!(kit.settings.dir.join("lock").exists());
}

#[test]
fn an_empty_directory_of_another_daemon_stays() {
    let kit = Kit::new();
    kit.save(&prompt(1, 100));
    fs::remove_dir_all(&kit.settings.dir).unwrap();
    let _other = take_over(&kit.settings, &kit.tuning);
    let family = kit.settings.dir.join("v1").join(kit.family.fingerprint.short().to_string());
    fs::create_dir(&family).unwrap();
    assert!(kit.handle.remove_all().moved);
    assert!(family.exists());
}

#[test]
fn a_removal_while_the_directory_is_away_is_told_and_forgets_all_the_same() {
    for all in [true, false] {
        let mut kit = Kit::new();
        let tokens = prompt(1, 100);
        kit.save(&tokens);
        let (dir, away) = (kit.settings.dir.clone(), kit.settings.dir.with_file_name("away"));
        fs::rename(&dir, &away).unwrap();
        let removed = match all {
            true => kit.handle.remove_all(),
            false => kit.handle.remove(&kit.family.fingerprint, &end(&kit.family, &tokens)),
        };
        assert!(removed.moved, "{removed:?}");
        assert_eq!(kit.found(&tokens), (0, false));
        fs::rename(&away, &dir).unwrap();
        kit.reopen();
        assert_eq!(kit.found(&tokens), (3, true), "the files were left where they are");
        let again = kit.handle.remove_all();
        assert_eq!((again.moved, again.kept, kit.files().len()), (false, 0, 0));
    }
}

#[test]
fn directories_that_somebody_removed_are_made_again_for_the_next_save() {
    for depth in ["v1", "v1/family"] {
        let mut kit = Kit::new();
        let (old, new) = (prompt(1, 100), prompt(2, 100));
        kit.save(&old);
        let family = kit.family.fingerprint.short().to_string();
        fs::remove_dir_all(kit.settings.dir.join(depth.replace("family", &family))).unwrap();
        // The old one is not on the disk any more, whatever was known of it.
        assert!(kit.save_durably(&new) && kit.save_durably(&old), "{depth}");
        let stats = kit.handle.stats();
        assert!(!stats.lost && stats.dropped_writes == 0, "{stats:?}");
        assert_eq!(kit.files_with("tgfp").len(), 1, "{depth}");
        assert_eq!(stats.bytes, kit.bytes_on_disk(), "{depth}");
        kit.reopen();
        assert_eq!((kit.found(&old), kit.found(&new)), ((3, true), (3, true)), "{depth}");
    }
}

#[test]
fn files_that_are_gone_are_neither_sound_nor_damaged_and_are_forgotten() {
    let kit = Kit::new();
    kit.save(&prompt(1, 100));
    let counts = || {
        let report = kit.handle.verify(true);
        assert_eq!(report.bad, []);
        (report.segments, report.records, report.gone)
    };
    assert_eq!(counts(), (1, 1, 0));
    fs::remove_file(kit.files_with("tgrec").remove(0)).unwrap();
    assert_eq!(counts(), (1, 0, 1));
    assert_eq!(counts(), (1, 0, 0));
    assert_eq!(kit.handle.stats().records, 0);
    fs::rename(&kit.settings.dir, kit.settings.dir.with_file_name("away")).unwrap();
    assert_eq!(counts(), (0, 0, 0));
}
