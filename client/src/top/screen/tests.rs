//! Pictures, as a terminal would show them.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;

use ratatui::backend::TestBackend;
use ratatui::crossterm::event::KeyEvent;
use tinygpt_proto::v1::{Budget, DaemonState, ModelActivity, ModelState, Quantiles, WatchResponse};

use super::*;

fn quantiles(count: u64, p50_ms: f64, p99_ms: f64) -> Option<Quantiles> {
    Some(Quantiles { count, p50_ms, p99_ms })
}

fn busy() -> ModelActivity {
    let verdicts = [("cold", 3), ("full_memory", 20), ("joined", 7), ("partial_memory", 10)];
    ModelActivity {
        name: "SmolLM2-135M-Instruct.Q4_1".into(),
        state: ModelState::Ready.into(),
        running: 8,
        queued: 2,
        prompt_rate: 1234.5,
        generated_rate: 187.25,
        steps: 24,
        step_ms: 41.7,
        batch: 7.8,
        rows: 59.3,
        queue_time: quantiles(40, 0.03, 12.0),
        first_token: quantiles(40, 212.0, 1840.0),
        token_gap: quantiles(5000, 42.0, 97.4),
        verdicts: verdicts.map(|(name, count)| (name.to_owned(), count)).into(),
        reasons: BTreeMap::new().into_iter().collect(),
    }
}

fn idle(name: &str, state: ModelState) -> ModelActivity {
    ModelActivity { name: name.into(), state: state.into(), ..ModelActivity::default() }
}

/// A daemon under load.
fn view() -> View {
    let mut view = View::new(Duration::from_secs(1));
    let others = [
        idle("builtin", ModelState::Unloaded),
        idle("qwen", ModelState::Unloading),
        idle("phi", ModelState::Loading),
    ];
    let told = WatchResponse {
        state: DaemonState::Loading.into(),
        running: 8,
        queued: 2,
        models: std::iter::once(busy()).chain(others).collect(),
        memory: Some(Budget { used: 1 << 30, limit: Some(4 << 30) }),
        mapped_bytes: 300 << 20,
        disk: Some(Budget { used: 5 << 30, limit: Some(20 << 30) }),
        active: Some(Budget { used: 512 << 20, limit: Some(8 << 30) }),
        warnings: vec!["the disk is full: nothing is written for another 42 s".into()],
        ..WatchResponse::default()
    };
    for at in 0..60 {
        let mut told = told.clone();
        told.models[0].prompt_rate = f64::from(at * 20);
        told.models[0].generated_rate = f64::from(187 - at);
        view.hear(told);
    }
    view.hear(told);
    view
}

fn drawn(view: &View, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| show(frame, view)).unwrap();
    let buffer = terminal.backend().buffer();
    let row = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    let rows = (0..height).map(|y| row(y).trim_end().to_owned() + "\n");
    rows.collect::<String>().trim_end().to_owned() + "\n"
}

/// With `TINYGPT_DRAW` set, draws the goldens anew.
fn check(name: &str, picture: &str) {
    let path = format!("{}/src/top/golden/{name}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("TINYGPT_DRAW").is_some() {
        std::fs::write(&path, picture).unwrap();
    }
    assert_eq!(picture, std::fs::read_to_string(&path).unwrap());
}

#[test]
fn a_wide_terminal_shows_everything() {
    check("100x30", &drawn(&view(), 100, 30));
}

#[test]
fn a_small_terminal_shows_what_matters_first() {
    check("40x12", &drawn(&view(), 40, 12));
}

#[test]
fn what_goes_on_is_told_where_there_is_no_room_for_how_often() {
    let mut view = view();
    view.paused = true;
    let picture = drawn(&view, 40, 12);
    assert!(picture.starts_with("tinygptd · loading · 8 running"), "{picture}");
    view.every = Duration::from_millis(400);
    assert!(drawn(&view, 20, 12).starts_with("tinygptd"));
}

#[test]
fn a_daemon_that_is_gone_is_waited_for() {
    let mut view = view();
    view.lose("the daemon has ended".into());
    let picture = drawn(&view, 100, 30);
    assert!(picture.starts_with("tinygptd · waiting: the daemon has ended"), "{picture}");
}

#[test]
fn no_size_is_too_small() {
    for (width, height) in [(1, 1), (3, 40), (200, 1), (12, 3), (400, 100)] {
        drawn(&view(), width, height);
        drawn(&View::new(Duration::from_secs(1)), width, height);
    }
}

#[test]
fn keys_are_what_the_picture_says() {
    let pressed = |code, modifiers| wish(&Event::Key(KeyEvent::new(code, modifiers)));
    let plain = |key| pressed(KeyCode::Char(key), KeyModifiers::NONE);
    assert_eq!(plain('q'), Some(Wish::Quit));
    assert_eq!(plain('p'), Some(Wish::Pause));
    assert_eq!([plain('+'), plain('-')], [Some(Wish::Faster), Some(Wish::Slower)]);
    assert_eq!(pressed(KeyCode::Char('c'), KeyModifiers::CONTROL), Some(Wish::Interrupt));
    assert_eq!(plain('x'), None);
    assert_eq!(wish(&Event::Resize(1, 1)), Some(Wish::Look));
}
