//! A daemon that may open no more files.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use tinygpt_tests::process::{Home, Started, tinygptd, until};

/// Open files that the daemon may have: enough to serve, and soon used up.
const MOST: usize = 48;

#[tokio::test]
async fn out_of_descriptors_it_says_so_once_and_serves_again_when_they_come_back() {
    let home = Home::new();
    let mut command = Command::new("sh");
    home.settle(&mut command);
    let limited = format!("ulimit -n {MOST} && exec \"$0\" \"$@\"");
    command.args(["-c", &limited]).arg(tinygptd()).args(["--no-persist", "--socket"]);
    command.arg(home.socket()).stdin(Stdio::null()).stderr(home.log());
    let mut daemon = Started::new(&mut command);
    home.await_serving().await;

    let log = || fs::read_to_string(home.path("log")).unwrap();
    let complaints = || log().matches("cannot accept connections").count();
    let crowd: Vec<_> = (0..MOST).map(|_| UnixStream::connect(home.socket()).unwrap()).collect();
    until("told", || complaints() > 0);
    let before = processor_ticks(daemon.pid());
    std::thread::sleep(std::time::Duration::from_millis(500));
    let spent = processor_ticks(daemon.pid()) - before;
    assert!(spent < 20, "spent {spent} hundredths of a second waiting for half a second");
    drop(crowd);
    home.await_serving().await;
    assert_eq!(complaints(), 1, "{}", log());
    assert_eq!(daemon.terminate().code(), Some(0));
}

/// Processor time of a process, in hundredths of a second.
fn processor_ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11..13].iter().map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}
