//! Clients that go away: the daemon stops working for them and keeps what it has computed.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::io::Read;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tinygpt_tests::process::{Home, until};
use tinygpt_tests::prompts::long;

/// A client in the middle of a long generation: its first character has come.
fn generating(home: &Home) -> Child {
    let mut command = home.client();
    command.args(["sample", "-n", "800", "--prompt", &long(200)]);
    let mut client = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    client.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    client
}

fn signal(client: &Child, signal: Signal) {
    kill_process(Pid::from_child(client), signal).unwrap();
}

fn status(home: &Home) -> Value {
    home.run(&["status", "--json"]).json()
}

#[test]
fn ctrl_c_cancels_the_generation_in_the_daemon() {
    let home = Home::new();
    let _daemon = home.serve(&[]);
    let client = generating(&home);
    signal(&client, Signal::INT);
    let output = client.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert!(String::from_utf8_lossy(&output.stderr).ends_with("tinygpt-client: interrupted\n"));
    until("idle", || status(&home)["running"] == 0);
    let counters = &status(&home)["counters"];
    assert_eq!(counters["requests_cancelled"], 1, "{counters}");
}

#[test]
fn a_client_that_is_killed_cancels_too_and_its_prompt_stays() {
    let home = Home::new();
    let _daemon = home.serve(&[]);
    let mut client = generating(&home);
    signal(&client, Signal::KILL);
    client.wait().unwrap();
    until("cancelled", || status(&home)["counters"]["requests_cancelled"] == 1);
    let again = home.run(&["sample", "--json", "-n", "1", "--prompt", &long(200)]).json();
    assert_eq!(again["verdict"], "FULL_MEMORY", "{again}");
}

#[test]
fn ctrl_c_is_heard_while_nobody_reads_what_was_generated() {
    let home = Home::new();
    let _daemon = home.serve(&[]);
    let mut command = home.client();
    // More than a pipe holds, if only its reader would read.
    command.args(["sample", "--json-stream", "--logprobs", "20", "-n", "800", "--prompt", "x"]);
    let mut client = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    client.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    until("finished", || status(&home)["running"] == 0);
    sleep(Duration::from_millis(100));
    assert!(client.try_wait().unwrap().is_none(), "the client is blocked on its pipe");
    signal(&client, Signal::INT);
    until("gone", || client_is_gone(&client));
    let _unread = client.stdout.take();
    assert_eq!(client.wait().unwrap().code(), Some(130));
}

/// A process that has ended and was not waited for is a zombie.
fn client_is_gone(client: &Child) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", client.id())).unwrap();
    stat.rsplit(')').next().unwrap().trim_start().starts_with('Z')
}
