//! The models as a table: as many columns as there is room for.

use tinygpt_proto::Label;
use tinygpt_proto::v1::{ModelActivity, ModelState, WatchResponse};

use super::cells::fit;
use super::{Line, Look};
use crate::render;

/// A column: its title, its width, how soon it goes, and what is in it.
struct Column {
    title: &'static str,
    width: usize,
    /// Columns with higher numbers go first.
    rank: u8,
    cell: fn(&ModelActivity) -> String,
}

/// In the order in which they stand, behind the model's name.
const COLUMNS: [Column; 12] = [
    Column { title: "STATE", width: 9, rank: 7, cell: |m| m.state().label().to_ascii_lowercase() },
    Column { title: "RUN", width: 3, rank: 0, cell: |m| m.running.to_string() },
    Column { title: "WAIT", width: 4, rank: 1, cell: |m| m.queued.to_string() },
    Column { title: "PROMPT/S", width: 8, rank: 3, cell: |m| rate(m.prompt_rate) },
    Column { title: "TEXT/S", width: 6, rank: 2, cell: |m| rate(m.generated_rate) },
    Column {
        title: "BATCH",
        width: 5,
        rank: 6,
        cell: |m| some(m.steps, format!("{:.1}", m.batch)),
    },
    Column { title: "STEP", width: 6, rank: 8, cell: |m| some(m.steps, time(m.step_ms)) },
    Column { title: "QUEUE99", width: 7, rank: 11, cell: |m| quantile(m.queue_time, |q| q.p99_ms) },
    Column { title: "TTFT50", width: 6, rank: 4, cell: |m| quantile(m.first_token, |q| q.p50_ms) },
    Column { title: "TTFT99", width: 6, rank: 9, cell: |m| quantile(m.first_token, |q| q.p99_ms) },
    Column { title: "GAP50", width: 6, rank: 5, cell: |m| quantile(m.token_gap, |q| q.p50_ms) },
    Column { title: "GAP99", width: 6, rank: 10, cell: |m| quantile(m.token_gap, |q| q.p99_ms) },
];

/// Cells of a model's name at least.
const NAME: usize = 12;

/// A title and a row for each model.
pub(super) fn table(told: &WatchResponse, width: usize) -> Vec<Line> {
    let columns = columns(width);
    let taken: usize = columns.iter().map(|column| column.width + 1).sum();
    let room = width.saturating_sub(taken);
    let row = |name: &str, cell: &dyn Fn(&Column) -> String| {
        let cells = columns.iter().map(|column| {
            let (cell, width) = (cell(column), column.width);
            format!(" {:>width$}", fit(&cell, width))
        });
        fit(&(format!("{:room$}", fit(name, room)) + &cells.collect::<String>()), width)
    };
    // Numbers are nothing without it, so it stays where titles go.
    let head = Line(vec![
        (Look::Title, row("MODEL", &|c| c.title.to_owned())),
        (Look::Plain, String::new()),
    ]);
    let model = |model: &ModelActivity| {
        let row = row(&render::printable(&model.name), &|column| (column.cell)(model));
        Line::new(look(model.state()), row)
    };
    std::iter::once(head).chain(told.models.iter().map(model)).collect()
}

fn columns(width: usize) -> Vec<&'static Column> {
    let mut ranked: Vec<_> = COLUMNS.iter().collect();
    ranked.sort_by_key(|column| column.rank);
    let mut room = width.saturating_sub(NAME);
    let fits = |column: &&Column| {
        let left = room.checked_sub(column.width + 1);
        room = left.unwrap_or(0);
        left.is_some()
    };
    let shown = ranked.into_iter().take_while(fits).map(|column| column.rank);
    let last = shown.max();
    COLUMNS.iter().filter(|column| last.is_some_and(|last| column.rank <= last)).collect()
}

fn look(state: ModelState) -> Look {
    match state {
        ModelState::Ready => Look::Plain,
        ModelState::Failed => Look::Bad,
        _ => Look::Faint,
    }
}

/// So many a second.
pub(super) fn rate(rate: f64) -> String {
    match rate {
        0.0 => "-".to_owned(),
        ..9.95 => format!("{rate:.1}"),
        _ => format!("{rate:.0}"),
    }
}

fn quantile(
    quantiles: Option<tinygpt_proto::v1::Quantiles>,
    which: fn(&tinygpt_proto::v1::Quantiles) -> f64,
) -> String {
    let quantiles = quantiles.unwrap_or_default();
    some(quantiles.count, time(which(&quantiles)))
}

/// Nothing was measured where there was nothing to measure.
fn some(count: u64, words: String) -> String {
    if count > 0 { words } else { "-".to_owned() }
}

/// Milliseconds in six cells at most.
fn time(milliseconds: f64) -> String {
    match milliseconds {
        ..0.995 => format!("{:.0}µs", milliseconds * 1e3),
        ..9.95 => format!("{milliseconds:.1}ms"),
        ..999.5 => format!("{milliseconds:.0}ms"),
        ..99_950.0 => format!("{:.1}s", milliseconds / 1e3),
        _ => format!("{:.0}s", milliseconds / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short_at_every_size() {
        let times = [0.03, 0.999, 3.21, 42.4, 999.9, 12_345.6, 104_000.0].map(time);
        assert_eq!(times, ["30µs", "1.0ms", "3.2ms", "42ms", "1.0s", "12.3s", "104s"]);
    }

    #[test]
    fn columns_go_one_by_one_and_the_name_stays() {
        let mut before = 0;
        for width in 0..120 {
            let columns = columns(width);
            let taken: usize = columns.iter().map(|column| column.width + 1).sum();
            assert!(taken + NAME <= width.max(NAME), "{width}");
            assert!(columns.len() >= before);
            before = columns.len();
        }
        assert_eq!(before, COLUMNS.len());
    }
}
