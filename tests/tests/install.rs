//! `tinygptd install` where something is in its way.
#![expect(clippy::unwrap_used, reason = "tests")]

#[cfg(target_os = "linux")]
use std::fs;
use std::process::Command;

use tinygpt_tests::client::{Answer, finish};
use tinygpt_tests::process::{Home, tinygptd};

fn run(home: &Home, words: &[&str], change: impl FnOnce(&mut Command)) -> Answer {
    let mut command = Command::new(tinygptd());
    home.settle(&mut command);
    // Nobody's bus, and certainly not that of the user who runs the tests.
    command.env_remove("DBUS_SESSION_BUS_ADDRESS").args(words);
    change(&mut command);
    finish(&mut command, b"")
}

#[cfg(target_os = "linux")]
#[test]
fn without_a_systemd_of_the_user_it_writes_the_units_and_says_how_to_go_on() {
    let home = Home::new();
    let installed = run(&home, &["install"], |_| {});
    assert_eq!(installed.code, 73, "{}", installed.stderr);
    for words in ["systemctl --user enable --now tinygptd.socket", "loginctl enable-linger"] {
        assert!(installed.stderr.contains(words), "{}", installed.stderr);
    }
    let units = home.path(".config/systemd/user");
    assert_eq!(fs::read_dir(&units).unwrap().count(), 2);
    assert_eq!(run(&home, &["uninstall"], |_| {}).code, 0);
    assert_eq!(fs::read_dir(&units).unwrap().count(), 0);
}

#[test]
fn an_argument_that_no_service_file_can_hold_is_refused_and_nothing_is_written() {
    let home = Home::new();
    let model = "--model=/a.gguf\nExecStartPost=/bin/evil";
    for command in ["install", "print-plist"] {
        let refused = run(&home, &[command, model], |_| {});
        assert_eq!(refused.code, 64, "{}", refused.stderr);
        assert!(refused.stderr.contains(r"--model=/a.gguf\nExecStartPost"), "{}", refused.stderr);
    }
    assert!(!home.path(".config").exists());
}

#[test]
fn a_relative_home_is_refused_and_relative_xdg_directories_are_ignored() {
    let home = Home::new();
    for command in ["install", "uninstall", "config"] {
        let refused = run(&home, &[command], |command| _ = command.env("HOME", "here"));
        assert_eq!(refused.code, 64, "{command}: {}", refused.stderr);
        assert!(refused.stderr.contains("here"), "{}", refused.stderr);
    }
    let named = ["config", "--cache-dir", "/c"];
    let _ = run(&home, &named, |command| _ = command.env("HOME", "here")).ok();
    let ignored = run(&home, &["config"], |command| _ = command.env("XDG_CACHE_HOME", "here")).ok();
    let dir = home.path(".cache/tinygpt").display().to_string();
    assert!(ignored.stdout.contains(&dir), "{}", ignored.stdout);
}
