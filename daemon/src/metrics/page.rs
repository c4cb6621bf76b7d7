//! A page in Prometheus' text format, version 0.0.4.

use std::fmt::{self, Display, Write};

use super::histogram::Counts;
use super::table::{Kind, Metric};

/// The media type of a page.
pub const MEDIA_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Names of labels with their values.
pub type Labels<'a> = &'a [(&'a str, &'a str)];

/// A page that is being written: family by family, each under its name and what it is.
#[derive(Debug, Default)]
pub struct Page(String);

impl Page {
    /// The whole page.
    pub fn into_text(self) -> String {
        self.0
    }

    /// A family of one number without labels.
    pub fn number(&mut self, metric: &Metric, value: impl Display) {
        self.numbers(metric, [([].as_slice(), value)]);
    }

    /// A family of numbers.
    pub fn numbers<'l, V: Display>(
        &mut self,
        metric: &Metric,
        samples: impl IntoIterator<Item = (Labels<'l>, V)>,
    ) {
        self.head(metric);
        for (labels, value) in samples {
            self.sample(Name(metric, ""), labels, None, value);
        }
    }

    /// A family of histograms.
    pub fn histograms<'l, 'c>(
        &mut self,
        metric: &Metric,
        samples: impl IntoIterator<Item = (Labels<'l>, &'c Counts)>,
    ) {
        self.head(metric);
        for (labels, counts) in samples {
            let scale = counts.unit.scale();
            for (bound, count) in counts.cumulative() {
                let bound = Bound(bound as f64 * scale);
                self.sample(Name(metric, "_bucket"), labels, Some(bound), count);
            }
            let all = counts.count();
            self.sample(Name(metric, "_bucket"), labels, Some(Bound(f64::INFINITY)), all);
            self.sample(Name(metric, "_sum"), labels, None, counts.sum as f64 * scale);
            self.sample(Name(metric, "_count"), labels, None, all);
        }
    }

    fn head(&mut self, metric: &Metric) {
        let kind = match metric.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let name = Name(metric, "");
        self.line(format_args!("# HELP {name} {}", metric.help));
        self.line(format_args!("# TYPE {name} {kind}"));
    }

    fn sample(
        &mut self,
        name: Name<'_>,
        labels: Labels<'_>,
        le: Option<Bound>,
        value: impl Display,
    ) {
        let mut told: Vec<_> =
            labels.iter().map(|(name, value)| format!("{name}=\"{}\"", Escaped(value))).collect();
        told.extend(le.map(|le| format!("le=\"{le}\"")));
        match told.is_empty() {
            true => self.line(format_args!("{name} {value}")),
            false => self.line(format_args!("{name}{{{}}} {value}", told.join(","))),
        }
    }

    fn line(&mut self, line: fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "{line}");
    }
}

/// What a metric is called on a page.
struct Name<'m>(&'m Metric, &'static str);

impl Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = if self.0.kind == Kind::Counter { "_total" } else { "" };
        write!(f, "tinygpt_{}{total}{}", self.0.name, self.1)
    }
}

/// The bound of a bucket.
struct Bound(f64);

impl Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_infinite() {
            return f.write_str("+Inf");
        }
        // Nine digits say a nanosecond; what binary fractions add to that is nobody's business.
        let digits = format!("{:.9}", self.0);
        f.write_str(digits.trim_end_matches('0').trim_end_matches('.'))
    }
}

/// The value of a label, which may be a name that somebody chose.
struct Escaped<'v>(&'v str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '\\' => f.write_str(r"\\"),
            '"' => f.write_str("\\\""),
            '\n' => f.write_str(r"\n"),
            _ => f.write_char(c),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::histogram::{Histogram, Unit};
    use super::super::table;
    use super::*;

    #[test]
    fn a_number_stands_under_what_it_is() {
        let mut page = Page::default();
        page.number(&table::REQUESTS, 7);
        assert_eq!(
            page.into_text(),
            "# HELP tinygpt_requests_total Requests to sample, to warm or to score.\n\
             # TYPE tinygpt_requests_total counter\n\
             tinygpt_requests_total 7\n"
        );
    }

    #[test]
    fn labels_are_escaped() {
        let mut page = Page::default();
        page.numbers(&table::RUNNING, [([("model", "a\"b\\c\nd")].as_slice(), 1)]);
        let text = page.into_text();
        assert!(text.ends_with("{model=\"a\\\"b\\\\c\\nd\"} 1\n"), "{text}");
    }

    #[test]
    fn bounds_of_times_are_seconds() {
        let histogram = Histogram::new(Unit::Nanoseconds);
        histogram.record(30_000);
        let mut page = Page::default();
        page.histograms(&table::STEP_TIME, [([].as_slice(), &histogram.counts())]);
        let text = page.into_text();
        for line in [
            "_bucket{le=\"0.000025\"} 0",
            "_bucket{le=\"0.00005\"} 1",
            "_bucket{le=\"+Inf\"} 1",
            "_count 1",
        ] {
            assert!(
                text.contains(&format!("tinygpt_engine_step_seconds{line}\n")),
                "{line}: {text}"
            );
        }
    }
}
