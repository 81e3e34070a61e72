//! Scratch memory for packed matrices: aligned, reused, on huge pages where the system has them.
//!
//! A packed matrix is read from end to end once per dozen rows of the other one. On 4 KiB pages its lines collide in the
//! second-level cache at random (depending on physical addresses) and the reads miss the address translation cache; on
//! huge pages neither happens. Not for memory that outlives one operation.

use std::sync::{Mutex, PoisonError};

use memmap2::MmapMut;

/// Buffers are multiples of this: the size of a huge page.
const HUGE_PAGE: usize = 2 << 20;
/// Every slice of a buffer begins at a multiple of this: a cache line, and more than any element's alignment.
const LINE: usize = 64;

/// Free buffers of one [`crate::Compute`]. A burst of callers leaves no more than a number of them behind.
#[derive(Debug)]
pub(crate) struct ScratchPool {
    free: Mutex<Vec<MmapMut>>,
    most: usize,
}

/// A buffer that returns to its pool when dropped. Its content is arbitrary.
pub(crate) struct Scratch<'a> {
    /// Always there until dropped.
    buffer: Option<MmapMut>,
    /// What was asked for; the buffer is usually larger.
    bytes: usize,
    pool: &'a ScratchPool,
}

/// Numbers for which any bits are valid, so that old content can be seen as them.
///
/// # Safety
/// Implement it only for types without padding or invalid bit patterns, aligned to at most [`LINE`].
pub(crate) unsafe trait AnyBits: Copy {}
// SAFETY: any bits are a float.
unsafe impl AnyBits for f32 {}
// SAFETY: any bits are an integer.
unsafe impl AnyBits for i32 {}
// SAFETY: any bits are an integer.
unsafe impl AnyBits for i8 {}
// SAFETY: any bits are an integer.
unsafe impl AnyBits for u8 {}

/// Bytes that [`Parts::take`] uses up for `length` elements.
///
/// # Panics
/// When they are more than the address space has: a length that wraps would make a slice longer than its memory.
pub(crate) const fn part_bytes<T>(length: usize) -> usize {
    match length.checked_mul(size_of::<T>()) {
        Some(bytes) if bytes <= usize::MAX - LINE => bytes.next_multiple_of(LINE),
        _ => panic!("a part of scratch memory does not fit in memory"),
    }
}

/// A buffer that is given out slice by slice.
pub(crate) struct Parts<'a>(&'a mut [u8]);

impl<'a> Parts<'a> {
    /// The next `length` elements, of arbitrary content.
    ///
    /// # Panics
    /// When the buffer has fewer left.
    pub(crate) fn take<T: AnyBits>(&mut self, length: usize) -> &'a mut [T] {
        let (part, rest) = std::mem::take(&mut self.0).split_at_mut(part_bytes::<T>(length));
        self.0 = rest;
        // SAFETY: the part has `length · size_of::<T>()` bytes and is borrowed mutably for as long as the result; it
        // begins at a multiple of LINE, because buffers and all parts before it do; any bits are a `T`.
        unsafe { std::slice::from_raw_parts_mut(part.as_mut_ptr().cast(), length) }
    }
}

impl ScratchPool {
    /// A pool that keeps at most `most` free buffers.
    pub(crate) fn new(most: usize) -> Self {
        Self { free: Mutex::default(), most }
    }

    /// `bytes` bytes; the largest free buffer is reused.
    pub(crate) fn take(&self, bytes: usize) -> Scratch<'_> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let largest = (0..free.len()).max_by_key(|&index| free[index].len());
        let found = largest.map(|index| free.swap_remove(index));
        drop(free);
        let size = bytes.max(1).checked_next_multiple_of(HUGE_PAGE);
        let Some(size) = size else { panic!("{bytes} bytes of scratch memory do not fit in memory") };
        let buffer = found.filter(|buffer| buffer.len() >= size).unwrap_or_else(|| map(size));
        Scratch { buffer: Some(buffer), bytes, pool: self }
    }
}

/// Fresh memory, all zero; ends the process when there is none, as any allocation does.
fn map(bytes: usize) -> MmapMut {
    let Ok(buffer) = MmapMut::map_anon(bytes) else {
        let layout = std::alloc::Layout::from_size_align(bytes, HUGE_PAGE);
        std::alloc::handle_alloc_error(layout.unwrap_or(std::alloc::Layout::new::<f32>()))
    };
    // Only advice: without huge pages everything works, a little slower.
    #[cfg(target_os = "linux")]
    let _ = buffer.advise(memmap2::Advice::HugePage);
    buffer
}

impl Scratch<'_> {
    /// What was asked for, to be cut into slices. Pages are aligned to far more than a line.
    pub(crate) fn parts(&mut self) -> Parts<'_> {
        Parts(self.buffer.as_mut().map_or(&mut [], |buffer| &mut buffer[..self.bytes]))
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        let mut free = self.pool.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < self.pool.most {
            free.extend(self.buffer.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_each_other_at_cache_lines() {
        let pool = ScratchPool::new(1);
        let bytes = part_bytes::<u8>(65) + part_bytes::<i32>(3) + part_bytes::<f32>(0) + part_bytes::<i8>(64);
        assert_eq!(bytes, 128 + 64 + 64);
        let mut scratch = pool.take(bytes);
        let mut parts = scratch.parts();
        let (a, b) = (parts.take::<u8>(65), parts.take::<i32>(3));
        assert_eq!((a.len(), b.len()), (65, 3));
        assert_eq!(b.as_ptr() as usize - a.as_ptr() as usize, 128);
        assert!((b.as_ptr() as usize).is_multiple_of(LINE));
        assert!(parts.take::<f32>(0).is_empty());
    }

    #[test]
    #[should_panic(expected = "does not fit in memory")]
    fn point_25_a_length_that_wraps_around_is_refused() {
        ScratchPool::new(1).take(64).parts().take::<f32>((1 << 62) + 1);
    }

    #[test]
    #[should_panic(expected = "do not fit in memory")]
    fn point_25_scratch_that_wraps_around_is_refused() {
        ScratchPool::new(1).take(usize::MAX - 1);
    }

    #[test]
    fn point_20_a_burst_leaves_few_buffers_behind() {
        let pool = ScratchPool::new(2);
        let burst: Vec<Scratch<'_>> = (0..10).map(|_| pool.take(1)).collect();
        drop(burst);
        assert_eq!(pool.free.lock().expect("a lock").len(), 2);
    }

    #[test]
    #[should_panic(expected = "mid > len")]
    fn more_than_the_buffer_is_refused() {
        ScratchPool::new(1).take(64).parts().take::<u8>(65);
    }
}
