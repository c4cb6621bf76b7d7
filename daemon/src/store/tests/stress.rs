//! Everyone at once: whatever is found while others save, refresh, remove and verify is right.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::kit::*;

#[test]
fn readers_never_see_anything_wrong_while_others_write_and_remove() {
    let kit = Kit::with(|settings, tuning| {
        settings.disk_budget = 300_000;
        settings.mappings = 12;
        tuning.segment = 6 * PART as u64;
        tuning.neighbours = 2;
    });
    let tokens = |mix: usize| {
        let trunk = prompt(1 + mix as u32 % 3, 320);
        [&trunk[..mix % 320], &prompt(10 + mix as u32 % 5, 33 + mix % 100)].concat()
    };
    // Readers keep step with the writer, or a busy machine lets them end before there is anything.
    let written = &AtomicUsize::new(0);
    thread::scope(|scope| {
        for reader in 0..3 {
            let (handle, family) = (kit.handle.clone(), Arc::clone(&kit.family));
            scope.spawn(move || {
                let mut held = Vec::new();
                for i in 0..400 {
                    while written.load(Ordering::Acquire) < i {
                        thread::yield_now();
                    }
                    let asked = tokens(reader * 7919 + i * 104_729);
                    held.push(restore(&handle, &family, &asked, i % 3 % (asked.len() / 32 + 1)));
                    held.truncate(8);
                }
                held.iter().flat_map(|found| &found.blocks).for_each(|block| check_bytes(block));
            });
        }
        let (handle, family) = (kit.handle.clone(), Arc::clone(&kit.family));
        scope.spawn(move || {
            for i in 0..400 {
                let tokens = tokens(i * 15_485_863);
                let mut save = save(&family, &tokens);
                save.replace = i % 4 == 0;
                handle.save(save);
                if i % 9 == 0 {
                    handle.remove(&family.fingerprint, &end(&family, &tokens));
                }
                handle.flush();
                written.store(i + 1, Ordering::Release);
            }
        });
        let handle = kit.handle.clone();
        scope.spawn(move || {
            for _ in 0..10 {
                assert_eq!(handle.verify(true).bad, []);
                handle.gc();
                handle.list();
            }
        });
    });
    kit.handle.flush();
    let stats = kit.handle.stats();
    assert_eq!((stats.quarantined, stats.read_errors, stats.write_errors), (0, 0, 0));
    assert!(stats.hits > 100 && stats.evictions > 0, "{stats:?}");
}
