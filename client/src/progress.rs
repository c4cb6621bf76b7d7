//! A bar for long prefills, on terminals only.

use indicatif::{ProgressBar, ProgressStyle};
use tinygpt_proto::v1::PrefillProgress;

/// A bar that appears with the first report and leaves nothing behind.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    quiet: bool,
    bar: Option<ProgressBar>,
}

impl Progress {
    pub(crate) fn new(quiet: bool) -> Self {
        Self { quiet, bar: None }
    }

    /// Shows how far the prefill is. Draws nothing where stderr is no terminal.
    pub(crate) fn show(&mut self, progress: &PrefillProgress) {
        if self.quiet {
            return;
        }
        let bar = self.bar.get_or_insert_with(|| {
            let style = ProgressStyle::with_template(
                "prefill {wide_bar} {human_pos}/{human_len} tokens {per_sec} {eta}",
            );
            ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        bar.set_length(progress.total_tokens.into());
        bar.set_position(progress.done_tokens.into());
    }

    /// Takes the bar away.
    pub(crate) fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}
