//! The memory of packed weights.

use bytemuck::{Pod, Zeroable};
use bytes::Bytes;

/// Whole cache lines of bytes that never change, whoever keeps them: this process, or a file that
/// is mapped. Clones share them.
#[derive(Clone)]
pub(super) struct Buffer(Bytes);

/// Where packed weights are to lie: gives so many zeroed bytes, or `None`, and then the heap does.
pub type Memory<'m> = &'m dyn Fn(usize) -> Option<Box<dyn Piece>>;

/// Bytes that begin with a cache line.
pub trait Piece: AsRef<[u8]> + AsMut<[u8]> + Send {}

impl<T: AsRef<[u8]> + AsMut<[u8]> + Send> Piece for T {}

/// The [`Memory`] of whoever does not mind.
pub fn heap(_: usize) -> Option<Box<dyn Piece>> {
    None
}

/// What a [`Buffer`] is before it is packed: zeroed and untouched.
pub(super) enum Draft {
    Heap(Box<[Line]>),
    Given(Box<dyn Piece>),
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub(super) struct Line([u8; 64]);

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
    /// On the heap: what is to be read once.
    pub(super) fn zeroed(bytes: usize) -> Draft {
        Draft::Heap(bytemuck::zeroed_slice_box(whole_lines(bytes) / size_of::<Line>()))
    }

    /// Where it is to stay.
    pub(super) fn within(memory: Memory<'_>, bytes: usize) -> Draft {
        let given = if bytes > 0 { memory(whole_lines(bytes)) } else { None };
        given.map_or_else(|| Draft::zeroed(bytes), Draft::Given)
    }

    pub(super) fn cast<T: Pod>(&self) -> &[T] {
        match self {
            Draft::Heap(lines) => bytemuck::cast_slice(lines),
            Draft::Given(piece) => bytemuck::cast_slice((**piece).as_ref()),
        }
    }

    pub(super) fn cast_mut<T: Pod>(&mut self) -> &mut [T] {
        match self {
            Draft::Heap(lines) => bytemuck::cast_slice_mut(lines),
            Draft::Given(piece) => bytemuck::cast_slice_mut((**piece).as_mut()),
        }
    }

    /// The same bytes where they are to stay.
    pub(super) fn moved_to(self, memory: Memory<'_>) -> Draft {
        let bytes = self.cast::<u8>();
        let mut moved = Draft::within(memory, bytes.len());
        moved.cast_mut::<u8>().copy_from_slice(bytes);
        moved
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
