//! A matrix that several tasks write at once, each its own part.
//!
//! It borrows a mutable slice, so nothing else uses the memory at the same time. What remains is the tasks' promise not to
//! use each other's parts; it is made where the elements are accessed. Where tasks take whole rows of a slice, use
//! [`crate::Threads::for_each_chunk`], which needs no promise.

use std::marker::PhantomData;
use std::ops::Range;

/// A borrowed matrix of `rows × width` elements whose parts go to different tasks.
#[derive(Debug)]
pub(crate) struct SharedMatrix<'a, T> {
    base: *mut T,
    rows: usize,
    width: usize,
    stride: usize,
    borrow: PhantomData<&'a mut [T]>,
}

impl<T> Clone for SharedMatrix<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for SharedMatrix<'_, T> {}

// SAFETY: the address is only used through the unsafe methods, whose callers promise that no two tasks touch the same
// element; `T: Send` lets another thread use the element itself.
unsafe impl<T: Send> Sync for SharedMatrix<'_, T> {}

impl<'a, T> SharedMatrix<'a, T> {
    /// A matrix whose rows begin `stride` elements apart.
    ///
    /// # Panics
    /// When `data` is too short, or the rows overlap.
    pub(crate) fn new(data: &'a mut [T], rows: usize, width: usize, stride: usize) -> Self {
        assert!(width <= stride || rows <= 1, "rows of {width} elements, {stride} apart, overlap");
        let needed = match rows.checked_sub(1) {
            None => Some(0),
            Some(steps) => steps.checked_mul(stride).and_then(|start| start.checked_add(width)),
        };
        let fits = needed.is_some_and(|needed| needed <= data.len());
        assert!(fits, "{rows} rows of {width} elements, {stride} apart, in {}", data.len());
        Self { base: data.as_mut_ptr(), rows, width, stride, borrow: PhantomData }
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn stride(&self) -> usize {
        self.stride
    }

    /// Where an element is, or would be. Using it is as unsafe as [`SharedMatrix::rows_mut`].
    #[inline(always)]
    pub(crate) fn address(&self, row: usize, column: usize) -> *mut T {
        self.base.wrapping_add(row * self.stride + column)
    }

    /// Some rows, from the beginning of the first to the end of the last one's `width`.
    ///
    /// # Safety
    /// Nothing else may use these rows while the slice lives.
    ///
    /// # Panics
    /// When there are no such rows.
    pub(crate) unsafe fn rows_mut(&self, rows: Range<usize>) -> &'a mut [T] {
        assert!(rows.start <= rows.end && rows.end <= self.rows, "rows {rows:?} of {}", self.rows);
        let length = if rows.is_empty() { 0 } else { (rows.len() - 1) * self.stride + self.width };
        // SAFETY: inside the slice this was made from; the caller promises that nothing else uses these rows.
        unsafe { std::slice::from_raw_parts_mut(self.address(rows.start, 0), length) }
    }

    /// The address of a block, after a check that the matrix has it.
    ///
    /// # Panics
    /// When there is no such block.
    #[inline(always)]
    pub(crate) fn block(&self, rows: Range<usize>, columns: Range<usize>) -> *mut T {
        let inside = rows.start <= rows.end && rows.end <= self.rows;
        assert!(inside && columns.start <= columns.end && columns.end <= self.width, "a block outside of the matrix");
        self.address(rows.start, columns.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "rows of 1 elements")]
    fn point_25_rows_that_wrap_around_are_refused() {
        SharedMatrix::new(&mut [0_i8; 4], (1 << 60) + 1, 1, 16);
    }
}
