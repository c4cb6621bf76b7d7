//! Log lines: one for each event, whatever names files and paths bring.
//!
//! Errors say what is wrong with a file in the file's own words: a tensor may be called anything.
//! So no value reaches a line, or a terminal, as it is: what would break a line, move a cursor or
//! turn the direction of writing is spelled out. JSON spells on its own.

use std::fmt::{self, Debug, Write};
use std::io::{self, IsTerminal};

use tracing::field::Field;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::format::{Writer, debug_fn};
use tracing_subscriber::fmt::{FormatFields, MakeWriter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, reload};

use crate::config::LogFormat;
use crate::service::LogFilter;

/// Begins to log what `filter` lets through to stderr, in the given form. The handle changes the
/// filter.
pub fn start(filter: EnvFilter, format: LogFormat) -> LogFilter {
    let (filter, handle) = reload::Layer::new(filter);
    let lines = lines(format, io::stderr, io::stderr().is_terminal());
    tracing_subscriber::registry().with(filter).with(lines).init();
    handle
}

fn lines<S, W>(format: LogFormat, to: W, colours: bool) -> Box<dyn Layer<S> + Send + Sync>
where
    S: tracing::Subscriber + for<'a> tracing_subscriber::registry::LookupSpan<'a>,
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    // A line that cannot be written is not complained of: that would be one more, and a panic.
    let lines = tracing_subscriber::fmt::layer().with_writer(to).log_internal_errors(false);
    match format {
        LogFormat::Json => lines.json().boxed(),
        LogFormat::Text => lines.with_ansi(colours).fmt_fields(fields()).boxed(),
    }
}

/// `name=value`, and the message as it is.
fn fields() -> impl for<'w> FormatFields<'w> + Send + Sync + 'static {
    let field = |to: &mut Writer<'_>, field: &Field, value: &dyn Debug| match field.name() {
        "message" => write!(Spelled(to), "{value:?}"),
        name => write!(Spelled(to), "{name}={value:?}"),
    };
    debug_fn(field).delimited(" ")
}

/// Words on one line.
pub fn spelled(words: &dyn fmt::Display) -> String {
    let mut line = String::new();
    // A string takes whatever is written.
    let _ = write!(Spelled(&mut line), "{words}");
    line
}

/// Takes what is written on, with escapes for what is no mere text.
struct Spelled<W>(W);

impl<W: Write> Write for Spelled<W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().try_for_each(|character| match is_text(character) {
            true => self.0.write_char(character),
            false => write!(self.0, "{}", character.escape_default()),
        })
    }
}

fn is_text(character: char) -> bool {
    let turns = matches!(character, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let breaks = matches!(character, '\u{2028}' | '\u{2029}');
    !character.is_control() && !turns && !breaks
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::Registry;

    use super::*;
    use crate::model::load::LoadError;

    /// What is logged while an error with this tensor's name is.
    fn logged(format: LogFormat, tensor: &str) -> String {
        let written = Arc::new(Mutex::new(Vec::new()));
        let to = Arc::clone(&written);
        let to = move || Shared(Arc::clone(&to));
        let lines = tracing_subscriber::registry().with(lines::<Registry, _>(format, to, false));
        let error = LoadError::MissingTensor { tensor: tensor.into() };
        tracing::subscriber::with_default(lines, || {
            tracing::error!(%error, path = tensor, "model {tensor} not loaded");
        });
        String::from_utf8(written.lock().unwrap().clone()).unwrap()
    }

    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_name_with_a_new_line_does_not_forge_a_line() {
        let forged = "x\n2026-12-01T00:00:00Z ERROR tinygptd: all is lost\r\u{1b}[2J\u{202e}";
        for format in [LogFormat::Text, LogFormat::Json] {
            let logged = logged(format, forged);
            let line = logged.strip_suffix('\n').unwrap();
            assert!(line.contains("all is lost") && line.contains("\\n2026"), "{line}");
            assert!(!line.contains(|c: char| c.is_control()), "{line:?}");
        }
    }

    #[test]
    fn a_line_has_its_message_and_its_fields() {
        let logged = logged(LogFormat::Text, "blk.0.größe");
        assert!(logged.contains("ERROR"), "{logged}");
        assert!(logged.contains(": model blk.0.größe not loaded error=tensor \"blk.0.größe\" is missing path=\"blk.0.größe\"\n"), "{logged}");
    }

    #[test]
    fn words_on_one_line_have_their_breaks_spelled_out() {
        assert_eq!(spelled(&"a\nb\u{7}\u{2028}ü"), "a\\nb\\u{7}\\u{2028}ü");
    }
}
