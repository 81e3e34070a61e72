//! Scratch memory for packed matrices: aligned, reused, on huge pages where the system has them.
//!
//! A packed matrix is swept once per dozen rows of the other one. On 4 KiB pages its lines collide
//! in the second-level cache at random (physical addresses decide) and the sweep misses the address
//! translation cache; on huge pages neither happens. Not for memory that outlives one operation.

use std::sync::{Mutex, PoisonError};

use memmap2::MmapMut;

/// Buffers are multiples of this: the size of a huge page.
const HUGE_PAGE: usize = 2 << 20;

/// Free buffers of one [`crate::Compute`].
#[derive(Debug, Default)]
pub(crate) struct ScratchPool(Mutex<Vec<MmapMut>>);

/// A buffer that goes back to its pool when dropped. Its content is arbitrary.
pub(crate) struct Scratch<'a> {
    /// Always there until dropped.
    buffer: Option<MmapMut>,
    pool: &'a ScratchPool,
}

impl ScratchPool {
    /// At least `length` floats, aligned to cache lines; the largest free buffer is reused.
    pub(crate) fn take(&self, length: usize) -> Scratch<'_> {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let largest = (0..free.len()).max_by_key(|&index| free[index].len());
        let found = largest.map(|index| free.swap_remove(index));
        drop(free);
        let bytes = length.saturating_mul(size_of::<f32>()).max(1).next_multiple_of(HUGE_PAGE);
        let buffer = found.filter(|buffer| buffer.len() >= bytes).unwrap_or_else(|| map(bytes));
        Scratch { buffer: Some(buffer), pool: self }
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
    pub(crate) fn as_mut_ptr(&mut self) -> *mut f32 {
        self.buffer.as_mut().map_or(std::ptr::null_mut(), |buffer| buffer.as_mut_ptr().cast())
    }

    /// The first `length` floats, which must have been asked for.
    pub(crate) fn as_mut_slice(&mut self, length: usize) -> &mut [f32] {
        let bytes = self.buffer.as_ref().map_or(0, |buffer| buffer.len());
        assert!(length <= bytes / size_of::<f32>(), "{length} floats of {bytes} bytes");
        // SAFETY: the mapping is page-aligned, was zeroed by the system, holds at least `length`
        // floats (any bits are a float), and is borrowed mutably with `self`.
        unsafe { std::slice::from_raw_parts_mut(self.as_mut_ptr(), length) }
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        let mut free = self.pool.0.lock().unwrap_or_else(PoisonError::into_inner);
        free.extend(self.buffer.take());
    }
}
