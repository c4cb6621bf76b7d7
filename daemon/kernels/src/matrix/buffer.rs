//! The memory of packed weights.

use bytemuck::{Pod, Zeroable};

/// Bytes aligned to a cache line, zeroed and untouched until packed.
pub(super) struct Buffer(Box<[Line]>);

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

impl Buffer {
    pub(super) fn zeroed(bytes: usize) -> Buffer {
        Buffer(bytemuck::zeroed_slice_box(bytes.div_ceil(size_of::<Line>())))
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.0)
    }

    /// As many whole `T` as fit.
    #[inline(always)]
    pub(super) fn cast<T: Pod>(&self) -> &[T] {
        bytemuck::cast_slice(&self.0)
    }

    pub(super) fn cast_mut<T: Pod>(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(&mut self.0)
    }
}
