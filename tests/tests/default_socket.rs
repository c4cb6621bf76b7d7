//! The socket that the daemon finds when nobody names one, and the folder it lies in.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use tinygpt_tests::process::{Home, Started, ended, tinygptd};

/// The command of a daemon on the default socket of a home.
fn daemon(home: &Home) -> Command {
    let mut command = Command::new(tinygptd());
    home.settle(&mut command);
    command.arg("--cache-dir").arg(home.path("cache"));
    command.stderr(home.log());
    command
}

/// Where the default socket of a home lies.
fn folder(home: &Home) -> PathBuf {
    home.path("tinygpt")
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[tokio::test]
async fn the_default_folder_is_made_for_the_user_alone() {
    let home = Home::new();
    let _daemon = Started::new(&mut daemon(&home));
    symlink(folder(&home).join("tinygptd.sock"), home.socket()).unwrap();
    home.await_serving().await;
    assert_eq!(mode(&folder(&home)), 0o700);
}

/// Whether a daemon refuses the folder that was laid out for it, with these words.
fn refuses(home: &Home, words: &str) {
    let (code, said) = ended(&mut daemon(home));
    assert_eq!(code, 73, "{said}");
    assert!(said.contains(words), "{said}");
    assert!(!folder(home).join("tinygptd.sock").exists());
}

#[test]
fn a_default_folder_that_is_a_link_ends_with_73() {
    let home = Home::new();
    symlink(home.path(""), folder(&home)).unwrap();
    refuses(&home, "a symbolic link");
}

#[test]
fn a_default_folder_that_is_open_to_others_ends_with_73() {
    let home = Home::new();
    fs::create_dir(folder(&home)).unwrap();
    fs::set_permissions(folder(&home), Permissions::from_mode(0o755)).unwrap();
    refuses(&home, "mode 0755");
}

#[tokio::test]
async fn a_folder_that_the_user_named_may_be_a_link() {
    let home = Home::new();
    fs::create_dir(home.path("real")).unwrap();
    symlink(home.path("real"), folder(&home)).unwrap();
    let socket = folder(&home).join("s");
    let _daemon = Started::new(home.daemon_on(&socket).arg("--no-persist"));
    symlink(&socket, home.socket()).unwrap();
    home.await_serving().await;
}

#[tokio::test]
async fn variables_that_are_empty_are_unset() {
    let home = Home::new();
    let mut command = daemon(&home);
    for name in ["TINYGPT_SOCKET", "TINYGPT_CACHE_DIR", "TINYGPT_CONFIG"] {
        command.env(name, "");
    }
    let _daemon = Started::new(&mut command);
    symlink(folder(&home).join("tinygptd.sock"), home.socket()).unwrap();
    home.await_serving().await;
    let mut config = Command::new(tinygptd());
    home.settle(&mut config);
    let printed = config.arg("config").env("TINYGPT_CACHE_DIR", "").output().unwrap();
    assert!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
}
