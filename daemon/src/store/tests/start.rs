//! Opening a directory, whatever is in it.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::kit::*;
use crate::kv::key::ShortKey;
use crate::store::name::Name;
use crate::store::{OpenError, open};
use crate::sys::directory::DirectoryError;
use crate::sys::lock::LockError;

#[test]
fn a_chain_tells_when_it_was_written_at_once_and_after_a_restart() {
    let mut kit = Kit::new();
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
    let before = now();
    kit.save(&prompt(1, 100));
    for _ in 0..2 {
        let [entry] = &kit.handle.list()[..] else { panic!("one chain was saved") };
        // Some file systems do not know.
        let created = entry.created_ms.map_or(before, u128::from);
        assert!((before.saturating_sub(20)..=now()).contains(&created), "{created}");
        kit.reopen();
    }
}

#[test]
fn directories_and_files_are_for_their_owner_only() {
    let kit = Kit::new();
    kit.save(&prompt(1, 100));
    let mode = |path: &std::path::Path| path.metadata().unwrap().permissions().mode() & 0o777;
    for path in kit.files() {
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700), "{path:?}");
    }
    assert_eq!((mode(&kit.settings.dir), mode(&kit.settings.dir.join("lock"))), (0o700, 0o600));
}

#[test]
fn an_open_directory_that_others_may_read_is_closed_to_them() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let _store = open(settings(dir.path())).unwrap();
    assert_eq!(dir.path().metadata().unwrap().permissions().mode() & 0o777, 0o700);
}

#[test]
fn the_second_daemon_is_told_who_was_first() {
    let kit = Kit::new();
    let error = open(settings(&kit.settings.dir)).unwrap_err();
    assert!(matches!(&error, OpenError::Lock(LockError::Held { holder: Some(holder), .. })
        if holder.pid == std::process::id() && holder.socket == kit.settings.socket));
    let words = error.to_string();
    assert!(words.contains("/run/test.sock") && words.contains("cache"), "{words}");
}

#[test]
fn a_directory_that_cannot_be_used_is_named_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("no/such");
    let error = open(settings(&missing)).unwrap_err().to_string();
    assert!(error.contains("no/such") && error.contains("No such file"), "{error}");
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let error = open(settings(&file)).unwrap_err();
    assert!(matches!(error, OpenError::Directory(DirectoryError::NotADirectory { .. })), "{error}");
    let error = open(settings(&file.join("below"))).unwrap_err();
    assert!(matches!(error, OpenError::Directory(DirectoryError::Create { .. })), "{error}");
}

#[test]
fn a_file_where_a_directory_of_the_cache_belongs_is_named() {
    for stray in ["v1", "v1/0123456789abcdef"] {
        let dir = tempfile::tempdir().unwrap();
        let stray = dir.path().join(stray);
        fs::create_dir_all(stray.parent().unwrap()).unwrap();
        fs::write(&stray, "").unwrap();
        let error = open(settings(dir.path())).unwrap_err().to_string();
        assert!(error.contains(&stray.display().to_string()), "{error}");
        assert!(error.to_lowercase().contains("not a directory"), "{error}");
    }
}

#[test]
fn handles_that_outlive_the_store_find_and_save_nothing() {
    let mut kit = Kit::new();
    let tokens = prompt(1, 100);
    kit.save(&tokens);
    kit.close();
    assert!(kit.restore(&tokens).blocks.is_empty());
    assert!(!kit.handle.save(save(&kit.family, &prompt(2, 100))));
    kit.handle.flush();
    assert_eq!(kit.handle.remove_all(), crate::store::Removed::default());
}

#[test]
fn closing_writes_what_is_queued() {
    let mut kit = Kit::new();
    for seed in 1..50 {
        kit.handle.save(save(&kit.family, &prompt(seed, 100)));
    }
    kit.reopen();
    assert!((1..50).all(|seed| kit.found(&prompt(seed, 100)) == (3, true)));
}

#[test]
fn what_should_not_be_there_is_removed_and_strangers_are_left_alone() {
    let mut kit = Kit::new();
    kit.save(&prompt(1, 100));
    kit.close();
    let family = kit.files_with("tgkv")[0].parent().unwrap().to_owned();
    let dir = kit.settings.dir.clone();
    let root = dir.join("v1");
    fs::write(family.join("0-1-2.tgkv.tmp"), "half").unwrap();
    fs::write(root.join("0123456789abcdef.tgfp.tmp"), "half").unwrap();
    fs::create_dir(root.join("0123456789abcdef")).unwrap();
    fs::create_dir_all(dir.join("v0/family")).unwrap();
    fs::create_dir(dir.join("v2")).unwrap();
    fs::create_dir(dir.join("vault")).unwrap();
    fs::write(family.join("notes.txt"), "mine").unwrap();
    kit.reopen();
    kit.handle.gc();
    let exists = |path: &str| dir.join(path).exists();
    assert!(kit.files_with("tmp").is_empty());
    assert!(!exists("v0") && !exists("v2") && !exists("v1/0123456789abcdef"));
    assert!(exists("vault") && family.join("notes.txt").exists());
    assert_eq!(kit.found(&prompt(1, 100)), (3, true));
}

#[test]
fn future_times_are_clamped_to_now() {
    let mut kit = Kit::new();
    kit.save(&prompt(1, 100));
    kit.close();
    let future = SystemTime::now() + Duration::from_secs(1 << 30);
    for path in kit.files() {
        File::open(path).unwrap().set_modified(future).unwrap();
    }
    kit.reopen();
    let entries = kit.handle.list();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis();
    assert!(entries.len() == 1 && u128::from(entries[0].used_ms) <= now);
}

#[test]
fn digest_files_of_families_without_files_are_bounded() {
    let mut kit = Kit::new();
    kit.close();
    for seed in 0..300 {
        let family = family(&seed.to_string());
        let path = kit.settings.dir.join("v1").join(format!("{}.tgfp", family.fingerprint.short()));
        fs::write(path, crate::store::fields::encode(&family.fields)).unwrap();
    }
    kit.reopen();
    kit.wait_until(|kit| kit.files_with("tgfp").len() == 256);
}

/// Fifty thousand prompts of other days, of which only the names are real: one file bears them all.
#[test]
fn fifty_thousand_segments_are_entered_quickly_and_nobody_waits_for_their_headers() {
    let mut kit = Kit::in_memory();
    let tokens = prompt(1, 100);
    kit.save(&tokens);
    kit.close();
    let file = kit.files_with("tgkv").remove(0);
    for i in 0..50_000 {
        let name = Name::Segment { parent: ShortKey(1), first: ShortKey(i), blocks: 3 };
        fs::hard_link(&file, file.with_file_name(name.to_string())).unwrap();
    }
    let start = Instant::now();
    kit.reopen();
    let opened = start.elapsed();
    assert_eq!(kit.found(&tokens), (3, true));
    let served = start.elapsed();
    assert!(kit.handle.stats().unread > 0, "the survey was already over");
    // A second or two on a busy machine; reading headers first would take many.
    assert!(opened < Duration::from_secs(10), "opened in {opened:?}");
    assert!(served < Duration::from_secs(11), "served in {served:?}");
}
