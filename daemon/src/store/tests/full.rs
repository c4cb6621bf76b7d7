//! A full disk stops writing and nothing else.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::kit::*;

#[test]
fn a_full_disk_pauses_writing_and_serving_goes_on() {
    let mut kit = Kit::with(|_, tuning| tuning.pause = Duration::from_millis(300));
    kit.save(&prompt(1, 100));
    kit.tuning.disk.store(16_500, Ordering::Relaxed);
    kit.save(&prompt(2, 100));
    let stats = kit.handle.stats();
    assert!(stats.paused.is_some());
    assert_eq!((stats.write_errors, stats.dropped_writes), (1, 1));
    assert!(kit.files_with("tmp").is_empty());
    assert_eq!(kit.found(&prompt(1, 100)), (3, true));
    kit.tuning.disk.store(u64::MAX, Ordering::Relaxed);
    kit.save(&prompt(3, 100));
    assert_eq!(kit.found(&prompt(3, 100)), (0, false));
    std::thread::sleep(Duration::from_millis(320));
    kit.save(&prompt(3, 100));
    assert_eq!(kit.found(&prompt(3, 100)), (3, true));
    assert_eq!(kit.handle.stats().paused, None);
    kit.reopen();
    assert_eq!((kit.found(&prompt(1, 100)), kit.found(&prompt(2, 100))), ((3, true), (0, false)));
}

#[test]
fn nothing_is_written_below_the_free_space_floor() {
    let kit = Kit::with(|settings, _| settings.free_floor = u64::MAX);
    kit.save(&prompt(1, 100));
    assert!(kit.files_with("tgkv").is_empty());
    let stats = kit.handle.stats();
    assert!(stats.paused.is_some_and(|left| left > Duration::from_secs(50)));
    assert_eq!(stats.dropped_writes, 1);
    assert!(stats.free > 0 && stats.free_floor == u64::MAX, "{stats:?}");
}

/// On a real file system of 128 KiB.
#[test]
fn a_file_system_that_is_full_is_noticed_and_nothing_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let mount = |command: &str, arguments: &[&str]| {
        let mut command = std::process::Command::new(command);
        command.args(arguments).arg(dir.path()).status().is_ok_and(|status| status.success())
    };
    if !mount("mount", &["-t", "tmpfs", "-o", "size=128k", "tmpfs"]) {
        return eprintln!("skipped: a small file system needs the right to mount");
    }
    let settings = settings(&dir.path().join("cache"));
    let (handle, threads) = crate::store::open(settings.clone()).unwrap();
    let family = family("a");
    for seed in 1..10 {
        handle.save(save(&family, &prompt(seed, 100)));
    }
    handle.flush();
    let stats = handle.stats();
    let found = |seed| restore(&handle, &family, &prompt(seed, 100), 0).blocks.len();
    let whole = (1..10).filter(|seed| found(*seed) == 3).count();
    drop(threads);
    let temporary =
        files(&settings.dir).iter().any(|path| path.extension().is_some_and(|e| e == "tmp"));
    mount("umount", &["--lazy"]);
    assert!(stats.paused.is_some() && stats.dropped_writes >= 4, "{stats:?}");
    assert!((2..9).contains(&whole) && !temporary, "{whole} prompts");
}
