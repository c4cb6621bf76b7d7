//! Clients that find no daemon and start one.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::Path;
use std::thread;

use rustix::process::{Pid, Signal, getpgid, kill_process};
use tinygpt_client::exit::Exit;
use tinygpt_tests::client::{Answer, Installed, finish};
use tinygpt_tests::process::{Home, until};

const SAMPLE: [&str; 5] = ["sample", "-n", "4", "--prompt", "ROMEO:"];

/// How many daemons a program's file runs as.
fn daemons(program: &Path) -> usize {
    let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    processes
        .filter(|process| fs::read_link(process.path().join("exe")).is_ok_and(|exe| exe == program))
        .count()
}

#[test]
fn the_first_client_starts_the_daemon_and_the_next_uses_it() {
    let home = Home::new();
    let installed = Installed::in_home(&home);
    let first = installed.run(&SAMPLE).ok();
    assert!(first.stderr.starts_with("starting "), "{}", first.stderr);
    let pid = Installed::daemon_on(&installed.socket()).unwrap();
    let next = installed.run(&SAMPLE).ok();
    assert!(next.stderr.starts_with("FULL_MEMORY"), "{}", next.stderr);
    assert_eq!(Installed::daemon_on(&installed.socket()), Some(pid));
    let log = fs::read_to_string(home.path(".local/state/tinygpt/tinygptd.log")).unwrap();
    assert!(log.contains("listening"), "{log}");
    let group = getpgid(Pid::from_raw(pid)).unwrap();
    assert_eq!(group.as_raw_nonzero().get(), pid, "Ctrl-C at the terminal must not reach it");
}

#[test]
fn clients_that_race_start_one_daemon() {
    let home = Home::new();
    let installed = Installed::in_home(&home);
    let answers: Vec<Answer> = thread::scope(|scope| {
        let clients: Vec<_> = (0..4).map(|_| scope.spawn(|| installed.run(&SAMPLE))).collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    for answer in answers {
        let _ = answer.ok();
    }
    let program = home.path("bin/tinygptd").canonicalize().unwrap();
    assert_eq!(daemons(&program), 1);
}

#[test]
fn only_what_needs_a_model_starts_a_daemon() {
    let home = Home::new();
    let installed = Installed::in_home(&home);
    for command in [
        &["status"][..],
        &["models"],
        &["cache", "ls"],
        &["tokenize", "--prompt", "x"],
        &["score", "--prompt", "x"],
    ] {
        installed.run(command).failed(Exit::NoDaemon, "`sample` and `warm` do so by themselves");
    }
    let doctor = installed.run(&["doctor"]).ok();
    assert!(doctor.stdout.contains("warn  daemon"), "{}", doctor.stdout);
    assert!(doctor.stdout.contains(&home.path("bin/tinygptd").display().to_string()));
    assert_eq!(Installed::daemon_on(&installed.socket()), None);
    let _ = installed.run(&["warm", "--prompt", "ROMEO:"]).ok();
    assert!(Installed::daemon_on(&installed.socket()).is_some());
}

#[test]
fn a_socket_that_was_named_starts_nothing_unless_asked_to() {
    let home = Home::new();
    let installed = Installed::in_home(&home);
    let socket = home.socket().display().to_string();
    let named = ["--socket", &socket];
    installed.run(&[&named[..], &SAMPLE].concat()).failed(Exit::NoDaemon, "do so with --start");
    let in_environment =
        finish(installed.client().env("TINYGPT_SOCKET", &socket).args(SAMPLE), b"");
    in_environment.failed(Exit::NoDaemon, "do so with --start");
    let _ = installed.run(&[&named[..], &SAMPLE, &["--start"]].concat()).ok();
    assert!(Installed::daemon_on(&home.socket()).is_some());
    assert_eq!(Installed::daemon_on(&installed.socket()), None);
}

#[test]
fn a_client_that_finds_the_cache_taken_goes_to_whoever_has_it() {
    let home = Home::new();
    let installed = Installed::in_home(&home);
    let socket = home.socket().display().to_string();
    let elsewhere = ["--socket", &socket, "sample", "--start", "-n", "4", "--prompt", "ROMEO:"];
    let _ = installed.run(&elsewhere).ok();
    let answer = installed.run(&SAMPLE).ok();
    assert!(answer.stderr.contains("FULL_MEMORY"), "the same daemon answered: {}", answer.stderr);
    assert!(answer.stderr.contains(&held(&home)), "it is said where: {}", answer.stderr);
    assert_eq!(daemons(&home.path("bin/tinygptd").canonicalize().unwrap()), 1);
}

/// What a client says of the daemon on the home's own socket, when it holds the default cache.
fn held(home: &Home) -> String {
    let pid = Installed::daemon_on(&home.socket()).unwrap();
    let (cache, socket) = (home.path(".cache/tinygpt"), home.socket());
    let (cache, socket) = (cache.display(), socket.display());
    format!("the cache in {cache} is held by process {pid}, which answers on {socket}")
}

#[test]
fn whoever_asks_at_a_socket_without_a_daemon_is_told_of_the_one_that_holds_the_cache() {
    let home = Home::new();
    let installed = Installed::in_home(&home);
    let socket = home.socket().display().to_string();
    let _ = installed.run(&["--socket", &socket, "warm", "--start", "--prompt", "ROMEO:"]).ok();
    let words = held(&home);
    for command in [&["status"][..], &["cache", "ls"], &["wait", "--timeout", "0.1"]] {
        let answer = installed.run(command);
        answer.failed(Exit::NoDaemon, &words);
        answer.failed(Exit::NoDaemon, &format!("use `--socket {socket}`"));
    }
    let doctor = installed.run(&["doctor"]).ok().stdout;
    assert!(doctor.contains("warn  daemon") && doctor.contains(&words), "{doctor}");
    assert!(!doctor.contains("start one"), "it would only meet the other: {doctor}");
    let pid = Pid::from_raw(Installed::daemon_on(&home.socket()).unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    until("gone", || daemons(&home.path("bin/tinygptd").canonicalize().unwrap()) == 0);
    let answer = installed.run(&["status"]);
    answer.failed(Exit::NoDaemon, "start one with `tinygptd`");
    assert!(!answer.stderr.contains("is held by"), "words outlive their daemon: {}", answer.stderr);
}

#[test]
fn a_daemon_that_cannot_start_is_quoted() {
    let home = Home::new();
    let installed = Installed::in_home(&home);
    fs::write(home.path("t.toml"), "cache-disc = 1").unwrap();
    let mut command = installed.client();
    command.env("TINYGPT_CONFIG", home.path("t.toml")).args(SAMPLE);
    let answer = finish(&mut command, b"");
    answer.failed(Exit::NoDaemon, "ended at once (exit status: 64)");
    answer.failed(Exit::NoDaemon, "cache-disc");
}

#[test]
fn without_the_program_that_is_said() {
    let home = Home::new();
    let installed = Installed::in_home(&home);
    fs::remove_file(home.path("bin/tinygptd")).unwrap();
    let answer = finish(installed.client().env("PATH", home.path("")).args(SAMPLE), b"");
    answer.failed(Exit::NoDaemon, "cannot find tinygptd");
}
