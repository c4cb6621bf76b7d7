//! Packed weights between real processes: a daemon that is killed, a disk that is full, a user who
//! wants nothing written.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use tinygpt_tests::process::{Home, Started, until};
use tinygpt_tests::seeded::Shape;

/// 50 MB of weights: long enough in writing to be killed at it.
const SHAPE: Shape = Shape::new(4, 8, 512, 128);

/// A home with a model file that may be trusted to have been left alone.
fn home() -> Home {
    let home = Home::new();
    SHAPE.write(&home.path("model")).unwrap();
    let age = || fs::metadata(home.path("model")).unwrap().modified().unwrap().elapsed().unwrap();
    until("old enough", || age().as_millis() > 2100);
    home
}

fn serve(home: &Home, more: &[&str]) -> Started {
    let model = home.path("model");
    home.serve(&[&["--model", model.to_str().unwrap()], more].concat())
}

/// What the model says, computed.
fn answer(home: &Home) -> String {
    let fixed = ["sample", "-n", "8", "--temperature", "0", "--json", "--cache-policy", "bypass"];
    let answer = home.run(&[&fixed[..], &["--prompt", "To be, or not"]].concat()).json();
    answer["token_ids"].to_string()
}

/// Files of the cache whose name ends like this.
fn files(home: &Home, end: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(home.path("cache/v1")).into_iter().flatten();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.to_str().unwrap().ends_with(end)).collect()
}

/// How often daemons of this home found packed weights.
fn found(home: &Home) -> usize {
    let log = fs::read_to_string(home.path("log")).unwrap();
    log.lines().filter(|line| line.contains(r#"packed="before""#)).count()
}

#[test]
fn the_next_daemon_finds_what_this_one_packed_until_it_is_removed() {
    let home = home();
    let mut first = serve(&home, &[]);
    let said = answer(&home);
    until("written", || !files(&home, ".tgpk").is_empty());
    let packed = fs::metadata(&files(&home, ".tgpk")[0]).unwrap().len();
    let stats = home.run(&["cache", "stats", "--json"]).json();
    assert_eq!(stats["packed_bytes"], packed);
    first.terminate();
    let mut second = serve(&home, &[]);
    assert_eq!((found(&home), answer(&home)), (1, said));
    let _ = home.run(&["cache", "rm", "--all"]).ok();
    assert!(files(&home, ".tgpk").is_empty());
    second.terminate();
    let _third = serve(&home, &[]);
    assert_eq!(found(&home), 1);
}

#[test]
fn a_daemon_that_is_killed_while_it_writes_leaves_nothing_wrong() {
    let home = home();
    let said = answer_of_first(&home);
    for _ in 0..3 {
        let mut daemon = serve(&home, &[]);
        assert_eq!(answer(&home), said);
        until("being written", || {
            !files(&home, ".tgpk.tmp").is_empty() || !files(&home, ".tgpk").is_empty()
        });
        daemon.kill();
        files(&home, ".tgpk").iter().for_each(|whole| fs::remove_file(whole).unwrap());
    }
    let _last = serve(&home, &[]);
    assert_eq!((answer(&home), found(&home)), (said, 0));
    until("written at last", || !files(&home, ".tgpk").is_empty());
    assert!(files(&home, ".tmp").is_empty());
}

fn answer_of_first(home: &Home) -> String {
    let _daemon = serve(home, &["--no-persist"]);
    answer(home)
}

#[test]
fn without_room_on_the_disk_or_a_wish_for_it_nothing_is_packed_and_all_is_served() {
    let home = home();
    for more in [&["--free-floor", "1000TiB"][..], &["--cache-disk", "1MB"], &["--no-persist"]] {
        let mut daemon = serve(&home, more);
        assert!(!answer(&home).is_empty());
        std::thread::sleep(std::time::Duration::from_millis(2500));
        assert!(files(&home, ".tgpk").is_empty() && files(&home, ".tmp").is_empty(), "{more:?}");
        assert!(!answer(&home).is_empty());
        daemon.terminate();
    }
    let log = fs::read_to_string(home.path("log")).unwrap();
    assert_eq!(log.matches("a side file was not written").count(), 2, "{log}");
}

#[test]
fn a_limit_on_the_size_of_files_is_a_full_disk_and_not_the_end() {
    let home = home();
    let daemon = home.daemon();
    let mut limited = Command::new("sh");
    home.settle(&mut limited);
    limited.args(["-c", "ulimit -f 1000 && exec \"$0\" \"$@\""]).stderr(home.log());
    limited
        .arg(daemon.get_program())
        .args(daemon.get_args())
        .arg("--model")
        .arg(home.path("model"));
    let mut started = Started::new(&mut limited);
    let _ = home.run(&["wait", "--ready"]).ok();
    let log = || fs::read_to_string(home.path("log")).unwrap();
    until("not written", || log().contains("a side file was not written"));
    assert!(!answer(&home).is_empty());
    assert!(files(&home, ".tgpk").is_empty() && files(&home, ".tmp").is_empty());
    assert_eq!(started.terminate().code(), Some(0));
}
