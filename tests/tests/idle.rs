//! A daemon that nobody asks anything uses no processor.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::time::Duration;

use tinygpt_tests::process::{Home, Started};

/// Hundredths of a second that a process has had a processor.
fn ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields = stat.rsplit_once(')').unwrap().1.split_whitespace();
    fields.skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}

#[test]
fn an_idle_daemon_uses_no_processor() {
    let home = Home::new();
    let daemon = Started::new(&mut home.daemon());
    let _ = home.run(&["wait", "--ready"]).ok();
    let _ = home.run(&["sample", "-n", "8", "--prompt", "First Citizen:"]).ok();
    // What it does behind an answer: it publishes, and writes.
    std::thread::sleep(Duration::from_secs(2));
    let before = ticks(daemon.pid());
    std::thread::sleep(Duration::from_secs(4));
    let used = ticks(daemon.pid()) - before;
    assert!(used <= 2, "{used} hundredths of a second in 4 seconds");
}
