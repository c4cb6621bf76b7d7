//! How far a download is: a bar on a terminal, a line for each file elsewhere.

use std::cell::Cell;
use std::io::{IsTerminal, stderr};

use indicatif::{HumanBytes, ProgressBar, ProgressStyle};

use super::hub::Entry;
use crate::render;

/// How far a download is.
#[derive(Debug)]
pub(super) struct Meter {
    bar: ProgressBar,
    quiet: bool,
    /// Bytes of the files before this one.
    done: Cell<u64>,
    /// Bytes of this file, all that it will have.
    size: Cell<u64>,
}

impl Meter {
    pub(super) fn new(quiet: bool) -> Self {
        let bar = match !quiet && stderr().is_terminal() {
            true => ProgressBar::new(0).with_style(style()),
            false => ProgressBar::hidden(),
        };
        Self { bar, quiet, done: Cell::new(0), size: Cell::new(0) }
    }

    /// How many bytes there will be in all files.
    pub(super) fn expect(&self, bytes: u64) {
        self.bar.set_length(bytes);
    }

    /// Begins with another file.
    pub(super) fn begin(&self, file: &Entry, is_there: bool) {
        self.done.set(self.done.get() + self.size.replace(file.size));
        self.bar.set_message(file.name.clone());
        self.stand(if is_there { file.size } else { 0 });
        let state = if is_there { ", is there already" } else { "" };
        if self.bar.is_hidden() {
            self.say(&format!("{}: {}{state}", file.name, HumanBytes(file.size)));
        }
    }

    /// So many bytes of this file are there.
    pub(super) fn stand(&self, bytes: u64) {
        self.bar.set_position(self.done.get() + bytes);
    }

    pub(super) fn say(&self, words: &str) {
        if !self.quiet {
            self.bar.suspend(|| render::remark(words));
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

fn style() -> ProgressStyle {
    let style = ProgressStyle::with_template(
        "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}",
    );
    style.unwrap_or_else(|_| ProgressStyle::default_bar())
}
