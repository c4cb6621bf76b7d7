//! What was heard, as lines of a given width, wherever they are shown.
//!
//! Sections stand in the order of what matters: where there is no room, empty lines and titles go
//! first, and then what is at the end.

mod cells;
mod models;

use std::fmt;

use tinygpt_proto::Label;
use tinygpt_proto::v1::{Budget, WatchResponse};

use self::cells::{bar, fit, levels};
use super::view::View;
use crate::render;

/// How a piece of a line looks, where there is more than letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    Plain,
    Title,
    Faint,
    Good,
    Half,
    Bad,
    Special,
}

/// A line, piece by piece.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Line(pub(super) Vec<(Look, String)>);

impl Line {
    fn new(look: Look, text: impl Into<String>) -> Self {
        Self(vec![(look, text.into())])
    }

    #[cfg(feature = "top")]
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[cfg(feature = "top")]
    fn is_title(&self) -> bool {
        matches!(&*self.0, [(Look::Title, _)])
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(_, text)| f.write_str(text))
    }
}

/// What the cache was good for: names on the wire, what they are called here, and how they look.
const VERDICTS: [(&str, &str, char, Look); 7] = [
    ("full_memory", "full", '█', Look::Good),
    ("full_disk", "full from disk", '▓', Look::Good),
    ("joined", "joined", '▚', Look::Special),
    ("partial_memory", "partial", '▒', Look::Half),
    ("partial_disk", "partial from disk", '░', Look::Half),
    ("cold", "cold", '·', Look::Bad),
    ("bypassed", "bypassed", ' ', Look::Faint),
];

/// All of them.
pub(super) fn lines(view: &View, width: usize) -> Vec<Line> {
    let mut lines = vec![head(view, width)];
    let Some(told) = &view.told else { return lines };
    let warnings = told.warnings.iter().map(|words| format!("! {}", render::printable(words)));
    lines.extend(warnings.map(|words| Line::new(Look::Bad, fit(&words, width))));
    lines.push(Line::default());
    lines.extend(models::table(told, width));
    lines.push(Line::default());
    lines.extend(rates(view, width));
    lines.push(Line::default());
    lines.extend(hits(told, width));
    lines.push(Line::default());
    lines.extend(tiers(told, width));
    lines
}

/// As many as fit into so many rows, with the keys in the last one.
#[cfg(feature = "top")]
pub(super) fn fitting(view: &View, width: usize, height: usize) -> Vec<Line> {
    let mut all = lines(view, width);
    if all.len() + 2 > height {
        // The head may look like a title, and is none.
        let head = all.remove(0);
        all.retain(|line| !line.is_empty() && !line.is_title());
        all.insert(0, head);
    }
    all.truncate(height.saturating_sub(1));
    all.resize(height.saturating_sub(1), Line::default());
    all.push(Line::new(Look::Faint, fit("q quit  p pause  +/- more or less often", width)));
    // A terminal of one row shows what goes on.
    all.truncate(height.max(1));
    all
}

fn head(view: &View, width: usize) -> Line {
    let (look, state) = match (&view.gone, &view.told) {
        (Some(why), _) => (Look::Bad, format!("waiting: {}", render::printable(why))),
        (None, Some(told)) => (Look::Title, going(told)),
        (None, None) => (Look::Faint, "waiting".to_owned()),
    };
    let every = humantime::format_duration(view.every);
    let paused = if view.paused { " · paused" } else { "" };
    let (left, right) = (format!("tinygptd · {state}"), format!("every {every}{paused}"));
    let room = width.saturating_sub(right.chars().count() + 2);
    match room > 24 {
        true => Line(vec![(look, format!("{:room$}  ", fit(&left, room))), (Look::Faint, right)]),
        false => Line::new(look, fit(&(left + paused), width)),
    }
}

fn going(told: &WatchResponse) -> String {
    let state = told.state().label().to_ascii_lowercase();
    format!("{state} · {} running, {} waiting", told.running, told.queued)
}

/// Tokens a second, with how they went lately.
fn rates(view: &View, width: usize) -> Vec<Line> {
    let [last_prompt, last_text] = view.rates.back().copied().unwrap_or_default();
    let row = |name: &str, which: usize, last: f64| {
        let label = format!("{name:8} {:>8} ", models::rate(last));
        let room = width.saturating_sub(label.chars().count());
        let recent = view.rates.iter().rev().take(room).rev().map(|rates| rates[which]);
        Line(vec![(Look::Plain, fit(&label, width)), (Look::Good, levels(recent))])
    };
    vec![
        Line::new(Look::Title, fit("TOKENS A SECOND", width)),
        row("prompt", 0, last_prompt),
        row("text", 1, last_text),
    ]
}

/// What the cache was good for since the start.
fn hits(told: &WatchResponse, width: usize) -> Vec<Line> {
    let count =
        |name: &str| told.models.iter().filter_map(|model| model.verdicts.get(name)).sum::<u64>();
    let counts = VERDICTS.map(|(name, ..)| count(name));
    let parts = cells::shares(&counts, width);
    let mut shown = Vec::new();
    let mut legend = Vec::new();
    for ((_, name, glyph, look), (part, count)) in
        VERDICTS.into_iter().zip(parts.into_iter().zip(counts))
    {
        shown.push((look, glyph.to_string().repeat(part)));
        if count > 0 {
            legend.push(format!("{glyph} {name} {count}"));
        }
    }
    let total = counts.iter().sum::<u64>();
    if total == 0 {
        legend.push("no requests yet".to_owned());
    }
    let mut lines = vec![Line::new(Look::Title, fit("CACHE", width))];
    if total > 0 {
        lines.push(Line(shown));
    }
    lines.push(Line::new(Look::Plain, fit(&legend.join("  "), width)));
    lines
}

/// Where KV is.
fn tiers(told: &WatchResponse, width: usize) -> Vec<Line> {
    let used = |used| Some(Budget { used, limit: None });
    let rows = [
        ("heap", told.memory, true),
        ("mapped", used(told.mapped_bytes), told.mapped_bytes > 0),
        ("disk", told.disk, told.disk.is_some_and(|disk| disk.limit != Some(0))),
        ("device", used(told.device_bytes), told.device_bytes > 0),
        ("running", told.active, true),
    ];
    let shown = rows.into_iter().filter(|(_, _, shown)| *shown);
    let row = |(name, budget, _): (&str, Option<Budget>, bool)| {
        let room = width.saturating_sub(40).min(40);
        let (bar, look) = bar(budget.unwrap_or_default(), room);
        let words = fit(&render::budget(budget), width.saturating_sub(9 + room));
        Line(vec![
            (Look::Plain, fit(&format!("{name:8} "), width)),
            (look, bar),
            (Look::Plain, if room > 0 { format!(" {words}") } else { words }),
        ])
    };
    let title = Line::new(Look::Title, fit("KEYS AND VALUES", width));
    std::iter::once(title).chain(shown.map(row)).collect()
}
