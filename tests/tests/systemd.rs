//! The daemon under systemd: sockets handed over, words sent back, units installed.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "tests")]

use std::env;
use std::fs::{self, Permissions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::process::{Command, Output};

use tinygpt_tests::process::{Home, PATIENCE, Started, tinygptd, until};

#[tokio::test]
async fn a_socket_on_descriptor_three_is_served_and_never_unlinked() {
    let home = Home::new();
    let listener = UnixListener::bind(home.socket()).unwrap();
    let elsewhere = home.daemon_on(&home.path("nobody"));
    let mut daemon = Started::new(handed(&home, &listener, &elsewhere).stderr(home.log()));
    home.await_serving().await;
    let listens = home.socket().display().to_string();
    assert_eq!(home.run(&["status", "--json"]).json()["socket"], *listens);
    let lock = fs::read_to_string(home.path("cache/lock")).unwrap();
    assert_eq!(lock, format!("{}\n{listens}\n", daemon.pid()));
    assert!(daemon.terminate().success());
    assert!(home.socket().exists(), "the supervisor's socket was unlinked");
    assert!(!home.path("s.lock").exists(), "an inherited socket needs no lock of ours");
}

#[tokio::test]
async fn the_first_connection_starts_the_daemon() {
    let home = Home::new();
    let mut activate = Command::new("systemd-socket-activate");
    home.settle(&mut activate);
    let daemon = home.daemon();
    activate.arg("--listen").arg(home.socket()).arg(daemon.get_program()).args(daemon.get_args());
    activate.stderr(home.log());
    let Some(mut started) = Started::if_installed(&mut activate) else {
        return eprintln!("skipped: systemd-socket-activate is not installed");
    };
    until("a socket", || home.socket().exists());
    assert!(!home.path("cache").exists(), "the daemon runs before anybody connects");
    home.await_serving().await;
    assert!(started.terminate().success());
    assert!(home.path("cache").exists());
}

#[tokio::test]
async fn systemd_is_told_of_readiness_and_of_the_end() {
    let home = Home::new();
    let notified = Notified::new(&home);
    let mut daemon = Started::new(home.daemon().env("NOTIFY_SOCKET", home.path("notify")));
    assert_eq!(notified.next(), "READY=1");
    home.await_serving().await;
    assert!(daemon.terminate().success());
    assert_eq!(notified.next(), "STOPPING=1");
}

#[test]
fn the_watchdog_is_fed_while_the_engine_beats() {
    let home = Home::new();
    let notified = Notified::new(&home);
    let mut command = home.daemon();
    command.env("NOTIFY_SOCKET", home.path("notify")).env("WATCHDOG_USEC", "200000");
    let _daemon = Started::new(&mut command);
    let heard: Vec<_> = (0..4).map(|_| notified.next()).collect();
    assert_eq!(heard, ["READY=1", "WATCHDOG=1", "WATCHDOG=1", "WATCHDOG=1"]);
}

#[test]
fn installing_writes_absolute_paths_and_has_systemd_listen() {
    let home = Home::new();
    let installed = with_fake_systemctl(&home, &["install", "--model", "a=m.gguf"]);
    assert!(installed.status.success(), "{}", String::from_utf8_lossy(&installed.stderr));
    let units = home.path(".config/systemd/user");
    let service = fs::read_to_string(units.join("tinygptd.service")).unwrap();
    let start = service.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    assert!(start.contains(&tinygptd().canonicalize().unwrap().display().to_string()), "{start}");
    assert!(start.contains(&format!("--model=a={}", home.path("m.gguf").display())), "{start}");
    let calls = fs::read_to_string(home.path("calls")).unwrap();
    assert!(calls.ends_with("--user enable --now tinygptd.socket\n"), "{calls}");

    assert!(with_fake_systemctl(&home, &["uninstall"]).status.success());
    assert!(fs::read_dir(units).unwrap().next().is_none(), "a unit was left behind");
}

#[test]
fn uninstalling_works_under_a_configuration_that_does_not() {
    let home = Home::new();
    assert!(with_fake_systemctl(&home, &["install"]).status.success());
    fs::create_dir_all(home.path(".config/tinygpt")).unwrap();
    fs::write(home.path(".config/tinygpt/tinygptd.toml"), "cache-disc = 1").unwrap();
    assert_eq!(with_fake_systemctl(&home, &["install"]).status.code(), Some(64));
    assert!(with_fake_systemctl(&home, &["uninstall"]).status.success());
    let units = home.path(".config/systemd/user");
    assert!(fs::read_dir(units).unwrap().next().is_none(), "a unit was left behind");
}

#[test]
fn the_property_list_that_is_printed_has_the_flags_of_install() {
    let home = Home::new();
    let printed = with_fake_systemctl(&home, &["print-plist", "--model", "a=m.gguf"]);
    let model = format!("<string>--model=a={}</string>", home.path("m.gguf").display());
    let plist = String::from_utf8(printed.stdout).unwrap();
    assert!(plist.contains(&model), "{plist}");
}

#[test]
fn a_supervisor_that_refuses_is_no_mistake_of_the_user() {
    let home = Home::new();
    let refused = with_systemctl(&home, "echo no bus >&2; exit 1", &["install"]);
    assert_eq!(refused.status.code(), Some(73), "{}", String::from_utf8_lossy(&refused.stderr));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("no bus"));
}

/// The command, started as systemd would: with the listener on descriptor 3 and told so. It gets
/// there by way of the shell's standard output.
fn handed(home: &Home, listener: &UnixListener, command: &Command) -> Command {
    let script = "exec 3>&1 1>/dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec \"$0\" \"$@\"";
    let mut shell = Command::new("sh");
    home.settle(&mut shell);
    shell.arg("-c").arg(script).arg(command.get_program()).args(command.get_args());
    shell.stdout(OwnedFd::from(listener.try_clone().unwrap()));
    shell
}

/// systemd's end of the notification socket.
struct Notified(UnixDatagram);

impl Notified {
    fn new(home: &Home) -> Self {
        let socket = UnixDatagram::bind(home.path("notify")).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(socket)
    }

    fn next(&self) -> String {
        let mut buffer = [0; 256];
        let length = self.0.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..length]).trim().to_owned()
    }
}

/// Runs a daemon's command in a home of its own, beside a `systemctl` that writes down its calls.
fn with_fake_systemctl(home: &Home, arguments: &[&str]) -> Output {
    with_systemctl(home, &format!("echo \"$@\" >> {}", home.path("calls").display()), arguments)
}

/// The same beside a `systemctl` that is this script.
fn with_systemctl(home: &Home, script: &str, arguments: &[&str]) -> Output {
    let bin = home.path("bin");
    fs::create_dir_all(&bin).unwrap();
    fs::write(bin.join("systemctl"), format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(bin.join("systemctl"), Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", bin.display(), env::var("PATH").unwrap());
    let mut command = Command::new(tinygptd());
    home.settle(&mut command);
    command.args(arguments).current_dir(home.path("")).env("PATH", path).output().unwrap()
}
