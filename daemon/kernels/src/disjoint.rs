//! One mutable buffer, written by many tasks.

use std::marker::PhantomData;
use std::ops::Range;

/// A mutable buffer of which concurrent tasks take parts that do not overlap.
///
/// Tasks of a region write disjoint outputs, often strided ones, which no iterator of mutable
/// slices can hand out through a shared closure.
pub(crate) struct Disjoint<'a, T> {
    start: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

#[expect(unsafe_code, reason = "hands out parts of one exclusive borrow")]
// SAFETY: it stands for a `&mut [T]`, whose parts may be used on other threads when `T: Send`.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    pub(crate) fn new(buffer: &'a mut [T]) -> Disjoint<'a, T> {
        Disjoint { start: buffer.as_mut_ptr(), len: buffer.len(), borrow: PhantomData }
    }

    /// The part at `range`, cut off at the end of the buffer.
    ///
    /// # Safety
    /// While the part is alive no other part that overlaps it may be.
    #[expect(unsafe_code, reason = "hands out parts of one exclusive borrow")]
    #[expect(clippy::mut_from_ref, reason = "the parts do not overlap")]
    #[inline(always)]
    pub(crate) unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        let (start, end) = (range.start.min(self.len), range.end.min(self.len));
        // SAFETY: inside the buffer, which is borrowed exclusively for `'a`; the caller keeps
        // parts from overlapping.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), end.saturating_sub(start)) }
    }
}
