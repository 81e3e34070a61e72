//! Every task runs once, panics arrive, nesting works.

use std::sync::atomic::{AtomicUsize, Ordering};

use qbert_kernels::Threads;

fn all() -> Vec<Threads> {
    [1, 2, 3, 5].iter().map(|&count| Threads::new(count).expect("threads")).collect()
}

#[test]
fn every_task_runs_exactly_once() {
    for threads in all() {
        for tasks in [0, 1, 2, 3, 100, 1000] {
            let runs: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
            threads.for_each(tasks, |task| {
                runs[task].fetch_add(1, Ordering::Relaxed);
            });
            assert!(runs.iter().all(|run| run.load(Ordering::Relaxed) == 1));
        }
    }
}

#[test]
fn chunks_cover_all_slices_in_step() {
    for threads in all() {
        // 11 rows of 3 and of 2 numbers, 4 rows per chunk: the last chunk has 3.
        let (mut wide, mut narrow) = (vec![0_usize; 33], vec![0_usize; 22]);
        threads.for_each_chunk([&mut wide, &mut narrow], [12, 8], |chunk, [wide, narrow]| {
            assert_eq!(wide.len() * 2, narrow.len() * 3);
            wide.fill(chunk + 1);
            narrow.fill(chunk + 1);
        });
        assert!(wide.iter().enumerate().all(|(index, &value)| value == index / 12 + 1));
        assert!(narrow.iter().enumerate().all(|(index, &value)| value == index / 8 + 1));
        assert_eq!(threads.map(5, |task| task * task), [0, 1, 4, 9, 16]);
    }
}

#[test]
#[should_panic(expected = "give [3, 2] chunks")]
fn slices_that_do_not_match_are_refused() {
    let (mut a, mut b) = (vec![0; 33], vec![0; 16]);
    Threads::single().for_each_chunk([&mut a, &mut b], [12, 8], |_, _| {});
}

#[test]
fn regions_nest() {
    for threads in all() {
        let total = AtomicUsize::new(0);
        threads.for_each(4, |_| {
            threads.for_each(5, |_| {
                total.fetch_add(1, Ordering::Relaxed);
            });
        });
        assert_eq!(total.load(Ordering::Relaxed), 20);
    }
}

/// Loops one after the other, so close that helpers are still awake, and so far apart that they sleep.
#[test]
fn helpers_that_watch_and_helpers_that_sleep_both_help() {
    for threads in all() {
        let total = AtomicUsize::new(0);
        for round in 0..300 {
            threads.for_each(7, |task| {
                total.fetch_add(task, Ordering::Relaxed);
            });
            if round % 100 == 99 {
                std::thread::sleep(std::time::Duration::from_millis(3));
            }
        }
        assert_eq!(total.load(Ordering::Relaxed), 300 * 21);
    }
}

#[test]
fn several_callers_may_share_the_threads() {
    for threads in all() {
        let totals: Vec<AtomicUsize> = (0..4).map(|_| AtomicUsize::new(0)).collect();
        std::thread::scope(|scope| {
            for total in &totals {
                let threads = threads.clone();
                scope.spawn(move || {
                    for _ in 0..200 {
                        threads.for_each(9, |task| {
                            total.fetch_add(task, Ordering::Relaxed);
                        });
                    }
                });
            }
        });
        assert!(totals.iter().all(|total| total.load(Ordering::Relaxed) == 200 * 36));
    }
}

#[test]
fn both_threads_work_at_once() {
    let threads = Threads::new(2).expect("threads");
    let arrived = AtomicUsize::new(0);
    // Each task waits for the other: one thread alone would never end.
    threads.for_each(2, |_| {
        arrived.fetch_add(1, Ordering::SeqCst);
        while arrived.load(Ordering::SeqCst) < 2 {
            std::thread::yield_now();
        }
    });
}

#[test]
fn a_panic_in_a_task_arrives_at_the_caller() {
    for threads in all() {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            threads.for_each(8, |task| assert!(task != 6, "task six"));
        }));
        assert!(result.is_err());
        // The threads are still usable.
        threads.for_each(8, |_| {});
    }
}
