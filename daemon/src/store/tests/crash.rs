//! kill -9 at any moment of a save costs that save and nothing else.

use std::process::{Command, Stdio};
use std::time::Duration;

use super::kit::*;
use crate::kv::layout::BLOCK;
use crate::store::shared::Tuning;

const CHILD: &str = "TINYGPT_TEST_CRASH_DIR";
const KILLS: u32 = 200;

fn tuning() -> Tuning {
    // Small enough that every life evicts, merges and cuts.
    Tuning { segment: 8 * PART as u64, neighbours: 2, ..Tuning::default() }
}

fn crash_settings(dir: &std::path::Path) -> crate::store::Settings {
    crate::store::Settings { disk_budget: 400_000, ..settings(dir) }
}

/// Prompts that share beginnings, so that every kind of segment comes up.
fn prompts(round: u32) -> impl Iterator<Item = Vec<u32>> {
    (0..).map(move |i: u32| {
        let mix = (round * 7919 + i * 104_729) as usize;
        let trunk = prompt(1 + mix as u32 % 3, 320);
        [&trunk[..mix % 320], &prompt(10 + mix as u32 % 5, 33 + mix % 100)].concat()
    })
}

/// The process that is killed: saves, refreshes and removes until the end.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(CHILD) else { return };
    let round = std::process::id();
    let (handle, _threads) = take_over(&crash_settings(dir.as_ref()), &tuning());
    let family = family("a");
    std::io::Write::write_all(&mut std::io::stdout(), b"ready\n").unwrap();
    for (i, tokens) in prompts(round).enumerate() {
        let mut save = save(&family, &tokens);
        save.replace = i % 5 == 0;
        handle.save(save);
        if i % 7 == 0 {
            handle.remove(&family.fingerprint, &end(&family, &tokens));
        }
        if i % 16 == 0 {
            handle.flush();
        }
    }
}

#[test]
fn a_killed_writer_never_leaves_anything_wrong_behind() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("cache");
    let mut found = 0;
    for round in 0..KILLS {
        kill_a_child(&cache, round);
        let (handle, threads) = take_over(&crash_settings(&cache), &tuning());
        let family = family("a");
        for tokens in prompts(round).take(20) {
            // `restore` compares every byte.
            found += restore(&handle, &family, &tokens, 0).blocks.len();
        }
        let report = handle.verify(false);
        assert_eq!(report.bad, [], "round {round}");
        let stats = handle.stats();
        assert!(stats.quarantined == 0 && stats.bytes <= 400_000, "round {round}: {stats:?}");
        drop(threads);
    }
    assert!(found > 1000 * BLOCK / 32, "only {found} blocks were ever found");
}

fn kill_a_child(cache: &std::path::Path, round: u32) {
    use std::io::{BufRead, BufReader};
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "store::tests::crash::child", "--nocapture"])
        .env(CHILD, cache)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.contains("ready")), "round {round}");
    std::thread::sleep(Duration::from_micros(u64::from(round * 2_654_435 % 30_000)));
    child.kill().unwrap();
    child.wait().unwrap();
}
