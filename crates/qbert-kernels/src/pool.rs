//! The helper threads behind [`crate::Threads`]: one parallel loop at a time, started within a microsecond.
//!
//! A forward pass of a small model is dozens of loops of about ten microseconds each, so loops must start and end fast.
//! Helpers that have finished a loop spin for a short while before they sleep; starting the next loop is then one store,
//! ending it one load, and neither allocates. A loop that begins while another is running (inside a task, or on another
//! thread that shares the pool) runs on its calling thread alone.
//!
//! In a forked child the helpers do not exist: loops run on the calling thread, and dropping the pool waits for nobody.
//!
//! Not for blocking tasks, and not a queue: there is never more than one loop at a time.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use crate::fork::ForkMark;

/// How long a helper waits for the next loop before it sleeps.
const LINGER: Duration = Duration::from_micros(200);
/// How often it checks for a loop between two looks at the clock. After the first round it also yields its core.
const LOOKS: usize = 200;

/// A parallel loop: tasks `0..tasks` of a closure that lives until the loop has ended.
#[derive(Clone, Copy)]
struct Job {
    tasks: usize,
    task: *const (dyn Fn(usize) + Sync),
}

/// What helpers and callers share.
struct Shared {
    /// Whether some thread owns the pool for a loop.
    owned: AtomicBool,
    /// Odd while a loop is open to helpers; each loop has its own number.
    epoch: AtomicUsize,
    /// Written by the owner between loops, read by helpers inside one.
    job: UnsafeCell<Option<Job>>,
    next: AtomicUsize,
    /// Helpers inside the loop.
    inside: AtomicUsize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    asleep: Vec<AtomicBool>,
    over: AtomicBool,
}

// SAFETY: `job` is written only by the owner while the epoch is even and no helper is inside; helpers read it only while
// they are counted in `inside` and the epoch is odd. The closure it points to is `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: as above; nothing is tied to a thread.
unsafe impl Send for Shared {}

/// Helper threads. They end when the pool is dropped.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
    fork: ForkMark,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Pool").field("helpers", &self.helpers.len()).finish()
    }
}

impl Pool {
    pub(crate) fn new(helpers: usize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            owned: AtomicBool::new(false),
            epoch: AtomicUsize::new(0),
            job: UnsafeCell::new(None),
            next: AtomicUsize::new(0),
            inside: AtomicUsize::new(0),
            panic: Mutex::new(None),
            asleep: (0..helpers).map(|_| AtomicBool::new(false)).collect(),
            over: AtomicBool::new(false),
        });
        let mut pool = Self { shared, helpers: Vec::with_capacity(helpers), fork: ForkMark::new() };
        for index in 0..helpers {
            let shared = Arc::clone(&pool.shared);
            let builder = std::thread::Builder::new().name(format!("qbert-{}", index + 1));
            // On failure the pool is dropped, which ends the helpers already started.
            pool.helpers.push(builder.spawn(move || shared.help(index))?);
        }
        Ok(pool)
    }

    /// Runs every task once and waits for all; alone if another loop is running.
    pub(crate) fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        let shared = &*self.shared;
        // A fork may have happened at any moment, so what helpers share says nothing in the child.
        if self.fork.is_in_child() || shared.owned.swap(true, SeqCst) {
            (0..tasks).for_each(task);
            return;
        }
        // SAFETY: this thread owns the pool, the epoch is even and no helper is inside. The closure outlives the loop,
        // because `Open` waits for every helper, also when a task panics.
        unsafe {
            let task = std::mem::transmute::<*const (dyn Fn(usize) + Sync), *const (dyn Fn(usize) + Sync)>(task);
            *shared.job.get() = Some(Job { tasks, task });
        }
        shared.next.store(0, SeqCst);
        shared.epoch.fetch_add(1, SeqCst);
        let open = Open(shared);
        let sleepers = self.helpers.iter().zip(&shared.asleep).filter(|(_, asleep)| asleep.load(SeqCst));
        sleepers.take(tasks - 1).for_each(|(helper, _)| wake(helper.thread()));
        shared.claim(tasks, task);
        drop(open);
    }
}

fn wake(thread: &Thread) {
    thread.unpark();
}

/// An open loop. Dropping it waits for the helpers inside, releases the pool and propagates a helper's panic.
struct Open<'a>(&'a Shared);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.epoch.fetch_add(1, SeqCst);
        let mut looks = 0;
        while self.0.inside.load(SeqCst) != 0 {
            looks += 1;
            if looks % LOOKS == 0 { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
        let panic = self.0.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.0.owned.store(false, SeqCst);
        if let Some(panic) = panic
            && !std::thread::panicking()
        {
            resume_unwind(panic);
        }
    }
}

impl Shared {
    fn claim(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        loop {
            let index = self.next.fetch_add(1, SeqCst);
            if index >= tasks {
                return;
            }
            task(index);
        }
    }

    /// What a helper thread runs.
    fn help(&self, index: usize) {
        let mut seen = 0;
        while let Some(epoch) = self.wait(index, seen) {
            seen = epoch;
            self.inside.fetch_add(1, SeqCst);
            // Enter first, check second: either this sees that the loop was closed, or its owner sees us inside.
            if self.epoch.load(SeqCst) == epoch {
                // SAFETY: the loop is open and we are inside: the job stays until we leave.
                let job = unsafe { *self.job.get() };
                if let Some(Job { tasks, task }) = job {
                    // SAFETY: as above, for the closure.
                    let task = unsafe { &*task };
                    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.claim(tasks, task))) {
                        *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
                    }
                }
            }
            self.inside.fetch_sub(1, SeqCst);
        }
    }

    /// The number of the next open loop, or `None` when the pool is gone.
    fn wait(&self, index: usize, seen: usize) -> Option<usize> {
        let open = || {
            let epoch = self.epoch.load(SeqCst);
            (epoch % 2 == 1 && epoch != seen).then_some(epoch)
        };
        let mut since = None;
        loop {
            for _ in 0..LOOKS {
                if let Some(epoch) = open() {
                    return Some(epoch);
                }
                std::hint::spin_loop();
            }
            if self.over.load(SeqCst) {
                return None;
            }
            if since.get_or_insert_with(Instant::now).elapsed() < LINGER {
                std::thread::yield_now();
                continue;
            }
            self.asleep[index].store(true, SeqCst);
            // Mark first, check second: a thread that opens a loop after this check sees the mark and wakes us.
            while open().is_none() && !self.over.load(SeqCst) {
                std::thread::park();
            }
            self.asleep[index].store(false, SeqCst);
            since = None;
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if self.fork.is_in_child() {
            // The threads behind these handles are the parent's: neither joined nor detached here.
            self.helpers.drain(..).for_each(std::mem::forget);
            return;
        }
        self.shared.over.store(true, SeqCst);
        for helper in self.helpers.drain(..) {
            wake(helper.thread());
            // A helper whose task held the last handle cannot wait for itself.
            if helper.thread().id() != std::thread::current().id() {
                // A helper catches every panic of a task, so there is nothing to propagate.
                let _ = helper.join();
            }
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    // What a test needs to fork, of the C library that std links anyway.
    unsafe extern "C" {
        fn fork() -> i32;
        fn waitpid(process: i32, status: *mut i32, options: i32) -> i32;
        fn alarm(seconds: u32) -> u32;
        fn _exit(status: i32) -> !;
    }

    /// Whether `child` ends without a panic, and within 20 seconds, in a fork of this process. Not tested under an emulator
    /// (`reference/arm.sh`): QEMU does not clear the page of a `ForkMark`, and its own locks may hang in the child.
    fn passes_in_a_child(child: impl FnOnce()) -> bool {
        if std::env::var_os("QBERT_TEST_RUNNER").is_some() {
            println!("not tested: an emulator cannot be forked");
            return true;
        }
        // SAFETY: the child runs only the closure, under an alarm, and ends without running the parent's destructors.
        unsafe {
            let process = fork();
            assert!(process >= 0, "no fork");
            if process == 0 {
                alarm(20);
                _exit(i32::from(catch_unwind(AssertUnwindSafe(child)).is_err()));
            }
            let mut status = -1;
            assert_eq!(waitpid(process, &raw mut status, 0), process);
            status == 0
        }
    }

    fn counted(pool: &Pool) -> usize {
        let count = AtomicUsize::new(0);
        pool.run(100, &|_| {
            count.fetch_add(1, SeqCst);
        });
        count.into_inner()
    }

    #[test]
    fn point_24d_a_forked_child_computes_alone_and_drops_the_pool() {
        let pool = Pool::new(3).expect("threads");
        assert_eq!(counted(&pool), 100);
        let borrowed = &pool;
        assert!(passes_in_a_child(|| {
            assert_eq!(counted(borrowed), 100);
            // The child's copy of the parent's pool.
            // SAFETY: the parent's value is never dropped in the child, which ends after this closure.
            drop(unsafe { std::ptr::read(borrowed) });
        }));
        assert_eq!(counted(&pool), 100, "the parent goes on");
    }

    /// A fork while a helper is inside a loop, or is just looking whether one is open.
    #[test]
    fn point_24d_a_fork_in_the_middle_of_a_loop_does_not_hang() {
        for (inside, owned) in [(1, false), (1, true), (0, true)] {
            let pool = Pool::new(2).expect("threads");
            let shared = &pool.shared;
            assert!(
                passes_in_a_child(|| {
                    shared.inside.store(inside, SeqCst);
                    shared.owned.store(owned, SeqCst);
                    assert_eq!(counted(&pool), 100);
                }),
                "{inside} helpers inside"
            );
        }
    }

    #[test]
    fn a_pool_made_in_the_child_has_helpers() {
        assert!(passes_in_a_child(|| {
            let pool = Pool::new(1).expect("threads");
            assert!(!pool.fork.is_in_child());
            assert_eq!(counted(&pool), 100);
        }));
    }
}
