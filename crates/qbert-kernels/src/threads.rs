//! A number of threads, and loops over tasks that give the same result for any number of them.
//!
//! Tasks are claimed from a counter, so which thread runs a task varies, but the split into tasks depends on the shape of
//! the data alone. A task that only writes its own output therefore gives the same bytes with 1, 2 or 64 threads.
//! Reductions write one partial result per task (see [`Threads::map`]), and the caller adds them in task order.
//!
//! Not for blocking work: a task that waits occupies its core.

use std::sync::Arc;

use crate::error::KernelError;
use crate::pool::Pool;

/// More threads than this are rejected as a probable typing error.
pub const MAX_THREADS: usize = 1024;

/// A number of threads to work with. Cheap to clone; clones share the threads.
#[derive(Clone, Debug)]
pub struct Threads {
    count: usize,
    /// The calling thread works too, so the pool has one thread less than `count`.
    helpers: Option<Arc<Pool>>,
}

impl Threads {
    /// Starts `count - 1` threads; the calling thread is the remaining one.
    ///
    /// # Errors
    /// When `count` is 0 or above [`MAX_THREADS`], or the system refuses to start them.
    pub fn new(count: usize) -> Result<Self, KernelError> {
        if count == 0 || count > MAX_THREADS {
            return Err(KernelError::ThreadCount { count, max: MAX_THREADS });
        }
        if count == 1 {
            return Ok(Self::single());
        }
        let pool = Pool::new(count - 1).map_err(|source| KernelError::ThreadStart { count, source })?;
        Ok(Self { count, helpers: Some(Arc::new(pool)) })
    }

    /// The calling thread alone.
    pub fn single() -> Self {
        Self { count: 1, helpers: None }
    }

    /// The number of cores this process may use, at least 1.
    pub fn available() -> usize {
        std::thread::available_parallelism().map_or(1, usize::from)
    }

    /// How many threads work, the calling one included.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Runs `task(0)` … `task(tasks - 1)`, each exactly once, in any order, and waits for all.
    ///
    /// May be called from inside a task, and by several threads at once: a loop that begins while another loop uses these
    /// threads runs on the calling thread alone. A panic in a task is propagated after the other tasks have ended. Does
    /// not allocate.
    pub fn for_each<F: Fn(usize) + Sync>(&self, tasks: usize, task: F) {
        match self.helpers.as_ref().filter(|_| tasks > 1) {
            Some(pool) => pool.run(tasks, &task),
            None => (0..tasks).for_each(task),
        }
    }

    /// Runs `task(index, item)` for every item. To give each task several parts of the data with different shapes, put the
    /// parts into one struct per task.
    pub fn for_each_item<T: Send, F: Fn(usize, &mut T) + Sync>(&self, items: &mut [T], task: F) {
        let base = Shared(items.as_mut_ptr());
        self.for_each(items.len(), |index| {
            // SAFETY: `index` is below the length, and `for_each` hands out each index once, so
            // this is the only reference to the item; the borrow of `items` outlives the loop.
            let item = unsafe { &mut *base.get().add(index) };
            task(index, item);
        });
    }

    /// Cuts several slices into chunks of `lengths[i]` elements each (the last may be shorter) and
    /// runs `task(chunk, parts)` for every chunk. A row chunk of matrices with different widths:
    /// `for_each_chunk([out, mean], [ROWS * width, ROWS], …)`.
    ///
    /// # Panics
    /// When a chunk length is 0, or the slices give different numbers of chunks.
    pub fn for_each_chunk<T, F, const N: usize>(&self, slices: [&mut [T]; N], lengths: [usize; N], task: F)
    where
        T: Send,
        F: Fn(usize, [&mut [T]; N]) + Sync,
    {
        assert!(lengths.iter().all(|&length| length > 0), "chunk of length 0 in {lengths:?}");
        let totals: [usize; N] = std::array::from_fn(|i| slices[i].len());
        let counts: [usize; N] = std::array::from_fn(|i| totals[i].div_ceil(lengths[i]));
        let chunks = counts.first().copied().unwrap_or(0);
        assert!(
            counts.iter().all(|&count| count == chunks),
            "slices of {totals:?} elements in chunks of {lengths:?} give {counts:?} chunks"
        );
        let bases: [Shared<T>; N] = slices.map(|slice| Shared(slice.as_mut_ptr()));
        let bases = &bases;
        self.for_each(chunks, |chunk| {
            let parts: [&mut [T]; N] = std::array::from_fn(|i| {
                let start = chunk * lengths[i];
                let length = lengths[i].min(totals[i] - start);
                // SAFETY: start + length <= total; chunks of one slice do not overlap and each
                // index is handed out once; the slices stay borrowed until the loop has ended.
                unsafe { std::slice::from_raw_parts_mut(bases[i].get().add(start), length) }
            });
            task(chunk, parts);
        });
    }

    /// `[task(0), …, task(tasks - 1)]`: for reductions, whose parts the caller then combines in order.
    pub fn map<T: Send + Default + Clone, F: Fn(usize) -> T + Sync>(&self, tasks: usize, task: F) -> Vec<T> {
        let mut results = vec![T::default(); tasks];
        self.for_each_item(&mut results, |index, result| *result = task(index));
        results
    }
}

/// A pointer that tasks may share because each touches its own part.
struct Shared<T>(*mut T);

impl<T> Shared<T> {
    /// A method rather than a field access, so that closures capture the whole (`Sync`) value.
    fn get(&self) -> *mut T {
        self.0
    }
}

// SAFETY: only the pointer is shared. The loops above make sure that no two tasks use the same element, and `T: Send`
// lets another thread use the element.
unsafe impl<T: Send> Sync for Shared<T> {}
