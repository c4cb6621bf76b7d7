//! Answers on stdout: JSON, tables, sizes and times as people read them; and remarks on stderr.
//!
//! Every write to stdout is checked: a reader that has gone ends the command quietly.
//! A remark that cannot be written is lost: there is nowhere left to say so.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, SystemTime};

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use indicatif::{HumanBytes, HumanCount};
use prost::Message;
use serde::Serialize;
use tinygpt_client::exit::Exit;
use tinygpt_proto::v1::Budget;

use crate::failure::{Failure, Outcome};
use crate::json;
use crate::session::Session;

/// Prints one line of JSON.
pub(crate) fn json(value: &impl Serialize) -> Result<(), Failure> {
    let mut line = serde_json::to_vec(value).map_err(io::Error::from)?;
    line.push(b'\n');
    write(&line)
}

/// Prints a message of the daemon, which is a `tinygpt.v1.NAME`: as one object of JSON when asked
/// for that, else in the words that `text` has for it.
pub(crate) fn answer<M: Message>(
    session: &Session,
    schema: &str,
    name: &str,
    message: &M,
    text: impl FnOnce(&M) -> String,
) -> Outcome {
    match session.json {
        true => json(&json::object(schema, name, message)),
        false => line(&text(message)),
    }?;
    Ok(Exit::Done)
}

/// Prints a line.
pub(crate) fn line(text: &str) -> Result<(), Failure> {
    write(format!("{text}\n").as_bytes())
}

/// Prints text as it is.
pub(crate) fn text(text: &str) -> Result<(), Failure> {
    write(text.as_bytes())
}

/// Prints a line with styles, which only a terminal gets to see.
pub(crate) fn styled(text: &str) -> Result<(), Failure> {
    let mut stdout = anstream::stdout().lock();
    writeln!(stdout, "{text}")?;
    Ok(())
}

/// Says a line on stderr.
pub(crate) fn remark(text: &str) {
    let _ = writeln!(anstream::stderr().lock(), "{text}");
}

/// Words that others wrote, without what would move a terminal's cursor, break a line or turn the
/// direction of writing.
pub(crate) fn printable(words: &str) -> String {
    let turns = |c| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let shown = |c: char| match c.is_control() || turns(c) {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    words.chars().map(shown).collect()
}

/// A table as text.
pub(crate) fn table(table: &Table) -> String {
    let unpadded = |line: String| line.strip_prefix(' ').unwrap_or(&line).trim_end().to_owned();
    let lines: Vec<_> = table.lines().map(unpadded).collect();
    lines.join("\n")
}

fn write(bytes: &[u8]) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes)?;
    stdout.flush()?;
    Ok(())
}

/// A table with these columns, and no lines. It is fitted to the width of a terminal only.
pub(crate) fn columns(names: &[&str]) -> Table {
    let mut table = plain();
    table.set_header(names);
    table
}

/// Names and values as a table.
pub(crate) fn pairs<N: Into<String>>(rows: impl IntoIterator<Item = (N, String)>) -> String {
    let mut pairs = plain();
    for (name, value) in rows {
        pairs.add_row([name.into(), value]);
    }
    table(&pairs)
}

fn plain() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    if io::stdout().is_terminal() {
        table.set_content_arrangement(ContentArrangement::Dynamic);
    }
    table
}

/// Aligns some columns.
pub(crate) fn align(table: &mut Table, columns: &[usize], alignment: CellAlignment) {
    for index in columns {
        if let Some(column) = table.column_mut(*index) {
            column.set_cell_alignment(alignment);
        }
    }
}

/// How many there are of something whose plural only adds an s.
pub(crate) fn counted(count: impl Into<u64>, what: &str) -> String {
    let count = count.into();
    format!("{} {what}{}", HumanCount(count), if count == 1 { "" } else { "s" })
}

/// A number of bytes.
pub(crate) fn bytes(bytes: u64) -> String {
    HumanBytes(bytes).to_string()
}

/// What is used of what may be used, in bytes.
pub(crate) fn budget(budget: Option<Budget>) -> String {
    let Budget { used, limit } = budget.unwrap_or_default();
    match limit {
        Some(limit) => format!("{} of {}", bytes(used), bytes(limit)),
        None => bytes(used),
    }
}

/// How long ago something was.
pub(crate) fn ago(time: Option<prost_types::Timestamp>) -> String {
    let Some(time) = time.and_then(|time| SystemTime::try_from(time).ok()) else {
        return "-".into();
    };
    let age = SystemTime::now().duration_since(time).unwrap_or_default();
    format!("{} ago", humantime::format_duration(coarse(age)))
}

/// How long it is until then.
pub(crate) fn until(time: Option<prost_types::Timestamp>) -> String {
    let Some(time) = time.and_then(|time| SystemTime::try_from(time).ok()) else {
        return String::new();
    };
    // What was just given for an hour is not shown as 59 minutes.
    let left = time.duration_since(SystemTime::now()).unwrap_or_default();
    let left = Duration::from_secs(left.as_secs_f64().round() as u64);
    humantime::format_duration(coarse(left)).to_string()
}

/// A duration without the digits that nobody reads.
fn coarse(age: Duration) -> Duration {
    let unit = match age.as_secs() {
        0..60 => 1,
        60..3600 => 60,
        _ => 3600,
    };
    Duration::from_secs(age.as_secs() / unit * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_has_one_unit_or_two() {
        let shown =
            |seconds| humantime::format_duration(coarse(Duration::from_secs(seconds))).to_string();
        assert_eq!(shown(59), "59s");
        assert_eq!(shown(61), "1m");
        assert_eq!(shown(90_061), "1day 1h");
    }

    #[test]
    fn one_is_no_plural() {
        let shown = [0u32, 1, 2, 1000].map(|count| counted(count, "prompt"));
        assert_eq!(shown, ["0 prompts", "1 prompt", "2 prompts", "1,000 prompts"]);
    }

    #[test]
    fn a_budget_without_a_limit_shows_only_what_is_used() {
        assert_eq!(budget(Some(Budget { used: 1024, limit: None })), "1.00 KiB");
        assert_eq!(budget(Some(Budget { used: 0, limit: Some(2048) })), "0 B of 2.00 KiB");
    }
}
