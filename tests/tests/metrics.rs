//! What is measured, as a page for Prometheus and as `Watch` tells it: real daemons under load.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use tinygpt_client::connect::Connection;
use tinygpt_proto::v1::{DaemonState, DrainRequest, ModelState, WatchRequest, WatchResponse};
use tinygpt_tests::process::{Home, PATIENCE, Started, ended, until};
use tinygpt_tests::seeded::Shape;
use tokio::runtime::Runtime;

/// Names with their values.
type Labels = Vec<(String, String)>;

/// A page, read strictly: families by name, samples by name and labels.
#[derive(Debug, Default)]
struct Page {
    kinds: BTreeMap<String, String>,
    samples: BTreeMap<(String, Labels), f64>,
}

impl Page {
    fn read(text: &str) -> Self {
        let (mut page, mut family, mut helped) = (Self::default(), String::new(), String::new());
        assert!(text.ends_with('\n'));
        for line in text.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, words) = help.split_once(' ').unwrap();
                assert!(!words.is_empty() && !page.kinds.contains_key(name), "{line}");
                name.clone_into(&mut helped);
            } else if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').unwrap();
                assert_eq!(name, helped, "help comes first");
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
                name.clone_into(&mut family);
                page.kinds.insert(family.clone(), kind.to_owned());
            } else {
                page.add(&family, line);
            }
        }
        page.check_histograms();
        page
    }

    fn add(&mut self, family: &str, line: &str) {
        let (series, value) = line.rsplit_once(' ').unwrap();
        let (name, labels) = match series.split_once('{') {
            Some((name, labels)) => (name, read_labels(labels)),
            None => (series, Vec::new()),
        };
        let histogram = self.kinds[family] == "histogram";
        let ending = name.strip_prefix(family).unwrap_or_else(|| panic!("{name} in {family}"));
        assert_eq!(histogram, ["_bucket", "_sum", "_count"].contains(&ending), "{line}");
        assert!(histogram || ending.is_empty(), "{line}");
        let value: f64 = value.parse().unwrap();
        assert!(value >= 0.0, "{line}");
        assert!(self.samples.insert((name.to_owned(), labels), value).is_none(), "twice: {line}");
    }

    /// Buckets grow to `+Inf`, which is the count.
    fn check_histograms(&self) {
        for (family, _) in self.kinds.iter().filter(|(_, kind)| *kind == "histogram") {
            let mut series: BTreeMap<Labels, Vec<(f64, f64)>> = BTreeMap::new();
            for ((name, labels), value) in &self.samples {
                if *name == format!("{family}_bucket") {
                    let (le, rest): (Vec<_>, Vec<_>) =
                        labels.iter().cloned().partition(|(name, _)| name == "le");
                    series.entry(rest).or_default().push((le[0].1.parse().unwrap(), *value));
                }
            }
            for (labels, mut buckets) in series {
                buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
                assert!(buckets.is_sorted_by_key(|(_, count)| *count), "{family}: {buckets:?}");
                let (last, all) = buckets[buckets.len() - 1];
                assert!(last.is_infinite(), "{family}");
                assert_eq!(self.samples[&(format!("{family}_count"), labels)], all, "{family}");
            }
        }
    }

    /// The one sample with this name, and this value of one of its labels if any is given.
    fn value(&self, name: &str, label: &str) -> f64 {
        let fits = |labels: &[(String, String)]| {
            label.is_empty() || labels.iter().any(|(_, value)| value == label)
        };
        let mut found = self.samples.iter().filter(|((n, labels), _)| n == name && fits(labels));
        let (Some((_, value)), None) = (found.next(), found.next()) else {
            panic!("one {name} {label:?} in {self:#?}")
        };
        *value
    }
}

/// `a="x",b="y"}` without its beginning.
fn read_labels(text: &str) -> Labels {
    let (mut rest, mut labels) = (text, Vec::new());
    while rest != "}" {
        let (name, after) = rest.split_once("=\"").unwrap();
        assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{text}");
        let (value, after) = after.split_once('"').unwrap();
        assert!(!value.contains('\\'), "no name here needs escapes: {text}");
        labels.push((name.to_owned(), value.to_owned()));
        rest = after.strip_prefix(',').unwrap_or(after);
    }
    labels
}

/// Status, head and body.
fn answer(mut stream: impl Read + Write, request: &str) -> (u16, String, String) {
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_ascii_lowercase(), body.to_owned())
}

fn scrape(socket: &Path) -> Page {
    let stream = UnixStream::connect(socket).unwrap();
    let (status, head, body) = answer(stream, "GET /metrics HTTP/1.1\r\nHost: any\r\n\r\n");
    assert_eq!(status, 200);
    assert!(head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"), "{head}");
    Page::read(&body)
}

#[test]
fn the_page_counts_what_requests_did() {
    let home = Home::new();
    let socket = home.path("m");
    let _daemon = home.serve(&["--metrics", socket.to_str().unwrap()]);
    let before = scrape(&socket);
    assert_eq!(before.value("tinygpt_up", ""), 1.0);
    assert_eq!(before.value("tinygpt_requests_total", ""), 0.0);
    for _ in 0..2 {
        let _ = home.run(&["sample", "-n", "9", "--prompt", "First Citizen:"]).ok();
    }
    // A client has its answer a moment before the engine has buried the sequence.
    until("nothing runs", || scrape(&socket).value("tinygpt_running_requests", "") == 0.0);
    let after = scrape(&socket);
    let is = |name: &str, label: &str, value: f64| {
        assert_eq!(after.value(&format!("tinygpt_{name}"), label), value, "{name} {label}");
    };
    is("requests_finished_total", "", 2.0);
    is("verdicts_total", "cold", 1.0);
    is("verdicts_total", "full_memory", 1.0);
    is("reasons_total", "below_minimum", 1.0);
    is("joins_total", "", 0.0);
    is("computed_prompt_tokens_total", "", 14.0);
    is("generated_tokens_total", "", 18.0);
    is("time_to_first_token_seconds_count", "", 2.0);
    is("inter_token_seconds_count", "", 16.0);
    is("queue_time_seconds_count", "", 2.0);
    is("running_requests", "", 0.0);
    is("queued_requests", "", 0.0);
    is("model_ready", "builtin", 1.0);
    assert!(after.value("tinygpt_engine_step_seconds_sum", "") > 0.0);
    assert!(after.value("tinygpt_batch_rows_sum", "") >= 14.0 + 16.0);
    assert!(after.value("tinygpt_tier_bytes", "heap") > 0.0);
    assert_eq!(after.value("tinygpt_tier_budget_bytes", "heap"), f64::from(1u32 << 31));
    assert_eq!(
        before.samples.keys().collect::<BTreeSet<_>>(),
        after.samples.keys().collect(),
        "every series is there from the start"
    );
}

#[test]
fn a_loopback_address_answers_this_machine_and_nothing_else() {
    let home = Home::new();
    let _daemon = home.serve(&["--metrics", "127.0.0.1:0"]);
    let log = fs::read_to_string(home.path("log")).unwrap();
    let (_, rest) = log.split_once("metrics=").unwrap();
    let address = rest.split_whitespace().next().unwrap();
    let ask = |request: &str| {
        let (status, _, body) = answer(TcpStream::connect(address).unwrap(), request);
        (status, body)
    };
    let get = |path: &str, host: &str| ask(&format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
    assert_eq!(get("/health", address), (200, "serving\n".to_owned()));
    assert_eq!(get("/metrics", "localhost").0, 200);
    assert_eq!(get("/metrics", "evil.example:80").0, 403);
    assert_eq!(get("/", address).0, 404);
    assert_eq!(
        ask("POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n").0,
        405
    );
    let endless = format!("GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(64 << 10));
    let mut stream = TcpStream::connect(address).unwrap();
    let _ = stream.write_all(endless.as_bytes());
    let mut refused = Vec::new();
    let _ = stream.read_to_end(&mut refused);
    assert!(!String::from_utf8_lossy(&refused).contains("tinygpt_"), "a head has an end");
    assert_eq!(get("/health", address).0, 200, "and everyone else is still answered");
}

#[test]
fn silent_connections_leave_the_place_to_others_in_time() {
    let home = Home::new();
    let socket = home.path("m");
    let _daemon = home.serve(&["--metrics", socket.to_str().unwrap()]);
    let silent: Vec<_> = (0..20).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    let started = Instant::now();
    let page = scrape(&socket);
    assert_eq!(page.value("tinygpt_up", ""), 1.0);
    assert!(started.elapsed() < PATIENCE, "{:?}", started.elapsed());
    drop(silent);
}

#[test]
fn an_address_that_others_reach_is_refused_with_a_reason() {
    let home = Home::new();
    for place in ["0.0.0.0:9100", "[::]:9100"] {
        let (code, words) = {
            let mut daemon = Command::new(tinygpt_tests::process::tinygptd());
            home.settle(&mut daemon);
            daemon.arg("--socket").arg(home.socket()).args(["--metrics", place]);
            ended(&mut daemon)
        };
        assert_eq!(code, 64, "{words}");
        assert!(words.contains(place) && words.contains("not a loopback address"), "{words}");
    }
}

#[test]
fn the_socket_of_the_page_goes_with_the_daemon_and_nobody_else_may_use_it() {
    use std::os::unix::fs::PermissionsExt;
    let home = Home::new();
    let socket = home.path("m");
    let mut daemon = home.serve(&["--metrics", socket.to_str().unwrap()]);
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(daemon.terminate().success());
    assert!(!socket.exists());
}

/// A watch, message by message.
fn watch(
    runtime: &Runtime,
    home: &Home,
    mut each: impl FnMut(&WatchResponse) -> bool,
) -> Result<(), tonic::Status> {
    runtime.block_on(async {
        let connection = Connection::open_path(&home.socket()).await.unwrap();
        let interval = Some(Duration::from_millis(100).try_into().unwrap());
        let mut admin = connection.admin();
        let mut told = admin.watch(WatchRequest { interval }).await?.into_inner();
        while let Some(message) = told.message().await? {
            if !each(&message) {
                break;
            }
        }
        Ok(())
    })
}

#[test]
fn a_watch_shows_requests_while_they_run_and_what_they_were() {
    let home = Home::new();
    let _daemon = home.serve(&[]);
    let mut client = home.client();
    let _load =
        Started::new(client.args(["sample", "-n", "900", "--prompt", "x"]).stdout(home.log()));
    let runtime = Runtime::new().unwrap();
    let (mut busy, mut last) = (None, WatchResponse::default());
    watch(&runtime, &home, |told| {
        last = told.clone();
        let model = &told.models[0];
        let gaps = model.token_gap.is_some_and(|gaps| gaps.count > 0);
        if model.running == 1 && model.generated_rate > 0.0 && gaps && busy.is_none() {
            busy = Some(model.clone());
        }
        busy.is_none() || told.running > 0
    })
    .unwrap();
    let busy = busy.unwrap();
    assert!((0.9..=1.1).contains(&busy.batch) && busy.step_ms > 0.0, "{busy:?}");
    assert!(busy.token_gap.unwrap().p50_ms > 0.0, "{busy:?}");
    assert_eq!((last.state(), &*last.models[0].name), (DaemonState::Serving, "builtin"));
    assert_eq!(last.models[0].verdicts["cold"], 1);
    assert_eq!(last.models[0].first_token.unwrap().count, 1);
    assert_eq!(last.counters["generated_tokens"], 900);
    assert!(last.memory.unwrap().used > 0 && last.disk.unwrap().limit.unwrap() > 0);
}

#[test]
fn a_watch_shows_models_that_come_later_and_of_those_that_go_only_what_was_counted() {
    let home = Home::new();
    Shape::TINY.write(&home.path("new.tinygpt")).unwrap();
    let path = home.path("new.tinygpt").display().to_string();
    let socket = home.path("m");
    let _daemon = home.serve(&["--metrics", socket.to_str().unwrap()]);
    let run = |words: &[&str]| drop(home.run(words).ok());
    let (mut seen, mut rate, mut unloaded) = (0, 0.0_f64, false);
    watch(&Runtime::new().unwrap(), &home, |told| {
        seen += 1;
        if seen == 1 {
            assert_eq!(told.models.len(), 1, "{told:?}");
            run(&["models", "load", &path]);
            run(&["sample", "-n", "9", "-m", "new", "--prompt", "First Citizen:"]);
            return true;
        }
        let new = told.models.iter().find(|model| model.name == "new").expect("it is told");
        rate = rate.max(new.generated_rate);
        if !unloaded && told.running == 0 && new.verdicts["cold"] == 1 {
            assert!(rate > 0.0 && new.first_token.unwrap().count == 1, "{new:?}");
            assert!(told.memory.unwrap().used > 0, "{told:?}");
            ["new", "builtin"].iter().for_each(|name| run(&["models", "unload", name]));
            unloaded = true;
            return true;
        }
        let gone = told.models.iter().all(|model| model.state() == ModelState::Unloaded);
        if gone {
            assert_eq!((told.memory.unwrap().used, told.active.unwrap().used), (0, 0));
            assert_eq!(new.verdicts["cold"], 1, "counts stay");
        }
        assert!(seen < 600, "{told:?}");
        !gone
    })
    .unwrap();
    let page = scrape(&socket);
    assert_eq!(page.value("tinygpt_model_ready", "new"), 0.0);
    assert_eq!(page.value("tinygpt_running_requests", "new"), 0.0);
    assert_eq!(page.value("tinygpt_tier_bytes", "heap"), 0.0);
    assert_eq!(page.value("tinygpt_active_bytes", ""), 0.0);
    assert_eq!(page.value("tinygpt_generated_tokens_total", "new"), 9.0);
    assert_eq!(page.value("tinygpt_time_to_first_token_seconds_count", "new"), 1.0);
}

#[test]
fn a_watch_ends_when_the_daemon_drains() {
    let home = Home::new();
    let mut daemon = home.serve(&[]);
    let runtime = Runtime::new().unwrap();
    let mut seen = 0;
    watch(&runtime, &home, |_| {
        seen += 1;
        if seen == 2 {
            let drained = runtime.handle().clone();
            let socket = home.socket();
            drained.spawn(async move {
                let connection = Connection::open_path(&socket).await.unwrap();
                connection.admin().drain(DrainRequest {}).await.unwrap();
            });
        }
        assert!(seen < 600, "it goes on");
        true
    })
    .unwrap();
    until("ended", || !home.socket().exists());
    assert!(daemon.terminate().success());
}

#[test]
fn a_watch_and_a_page_need_no_engine_that_answers() {
    let home = Home::new();
    let pipe = home.path("slow.gguf");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let socket = home.path("m");
    let mut daemon = home.daemon();
    daemon.arg("--model").arg(&pipe).arg("--metrics").arg(&socket);
    let _daemon = Started::new(&mut daemon);
    until("listening", || home.socket().exists() && socket.exists());
    let mut states = Vec::new();
    watch(&Runtime::new().unwrap(), &home, |told| {
        states.push(told.state());
        states.len() < 3
    })
    .unwrap();
    assert_eq!(states, [DaemonState::Loading; 3]);
    assert_eq!(scrape(&socket).value("tinygpt_model_ready", "slow"), 0.0);
    let stream = UnixStream::connect(&socket).unwrap();
    let (status, _, body) = answer(stream, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!((status, &*body), (503, "loading\n"));
}
