//! Memory for rows, which is used again.

use std::ops::{Deref, DerefMut, Range};

use super::Host;

/// Numbers `[T][width]` that go back to their [`Host`], if they come from one.
#[derive(Debug)]
pub struct Buffer<'h> {
    pub(super) host: Option<&'h Host>,
    pub(super) memory: Vec<f32>,
    pub(super) len: usize,
    pub(super) width: usize,
}

impl Buffer<'_> {
    /// Numbers `[T][width]` from elsewhere.
    pub(in crate::model) fn of(numbers: Vec<f32>, width: usize) -> Self {
        Self { host: None, len: numbers.len(), memory: numbers, width }
    }

    /// Keeps the first `rows` rows.
    pub(in crate::model) fn keep_rows(&mut self, rows: usize) {
        self.len = self.len.min(rows * self.width);
    }

    /// T.
    pub(super) fn rows(&self) -> usize {
        self.len / self.width
    }

    /// The numbers of some rows.
    pub(super) fn slice(&self, rows: &Range<usize>) -> &[f32] {
        &self[rows.start * self.width..rows.end * self.width]
    }
}

impl Deref for Buffer<'_> {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.memory[..self.len]
    }
}

impl DerefMut for Buffer<'_> {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.memory[..self.len]
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        if let Some(host) = self.host {
            host.spare.borrow_mut().push(std::mem::take(&mut self.memory));
        }
    }
}
