//! The memory of packed weights.

use bytemuck::{Pod, Zeroable};
use bytes::Bytes;

/// Whole cache lines of bytes that never change, whoever keeps them: this process, or a file that
/// is mapped. Clones share them.
#[derive(Clone)]
pub(super) struct Buffer(Bytes);

/// What a [`Buffer`] is before it is packed: zeroed and untouched.
pub(super) struct Draft(Box<[Line]>);

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

impl Buffer {
    /// Bytes that are kept elsewhere. `None` unless they are whole lines and begin with one.
    pub(super) fn kept(bytes: Bytes) -> Option<Buffer> {
        if bytes.is_empty() {
            return Some(Draft::zeroed(0).finish());
        }
        bytemuck::try_cast_slice::<u8, Line>(&bytes).is_ok().then_some(Buffer(bytes))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// As many whole `T` as fit.
    #[inline(always)]
    pub(super) fn cast<T: Pod>(&self) -> &[T] {
        bytemuck::cast_slice(&self.0)
    }
}

impl Draft {
    pub(super) fn zeroed(bytes: usize) -> Draft {
        Draft(bytemuck::zeroed_slice_box(whole_lines(bytes) / size_of::<Line>()))
    }

    pub(super) fn cast<T: Pod>(&self) -> &[T] {
        bytemuck::cast_slice(&self.0)
    }

    pub(super) fn cast_mut<T: Pod>(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(&mut self.0)
    }

    pub(super) fn finish(self) -> Buffer {
        Buffer(Bytes::from_owner(self))
    }
}

impl AsRef<[u8]> for Draft {
    fn as_ref(&self) -> &[u8] {
        self.cast()
    }
}

/// What a buffer of so many bytes takes.
pub(super) fn whole_lines(bytes: usize) -> usize {
    bytes.next_multiple_of(size_of::<Line>())
}
