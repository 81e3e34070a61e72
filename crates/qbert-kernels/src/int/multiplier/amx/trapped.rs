//! The tile instructions of [`Hardware`] executed on any x86-64 CPU under Linux: natively, or emulated (`trap`).

use std::arch::asm;
use std::sync::Barrier;

use super::super::trap::{Handler, Trappable, Trapped, configurations};
use super::*;
use crate::amx::hardware::{ask_for_tiles, cpu_has_tiles};
use crate::int::layout::CELL_INPUTS;

impl Trappable for Amx<Hardware, Portable> {
    fn trapped(handler: Handler) -> Option<Self> {
        Some(Self(Hardware::trapped(handler), Portable))
    }
}

/// The multiplier, after a word on how its instructions run.
fn multiplier() -> Trapped<Amx<Hardware, Portable>> {
    println!("tile instructions run {}", if is_native() { "natively" } else { "emulated" });
    Trapped::detect().expect("they run anywhere")
}

/// The unit where the CPU has it.
fn native() -> Option<Hardware> {
    Hardware::detect(TileNumbers::Bytes, agrees_with_software)
}

fn unit() -> Hardware {
    native().unwrap_or_else(|| Hardware::trapped(Handler::install()))
}

fn is_native() -> bool {
    native().is_some()
}

/// Factors without a pattern, with gaps between their rows.
struct Factors {
    rows: usize,
    steps: usize,
    codes: Vec<i8>,
    a_row: usize,
    cells: Vec<u8>,
    half_step: usize,
    start: [i32; PANEL],
    sums_row: usize,
}

impl Factors {
    fn new(rows: usize, steps: usize, seed: usize) -> Self {
        let byte = |index: usize| ((index + 1_000 * seed).wrapping_mul(2_654_435_761) >> 11) as u8;
        let (a_row, half_step) = (steps * CELL_INPUTS + 3 * seed, steps * CELL + 64 * (seed % 3));
        Self {
            rows,
            steps,
            codes: (0..rows * a_row).map(|index| byte(index).cast_signed()).collect(),
            a_row,
            cells: (0..half_step + steps * CELL).map(|index| byte(index + 99)).collect(),
            half_step,
            start: std::array::from_fn(|neuron| ((neuron * seed) as i32).wrapping_mul(7_000_001)),
            sums_row: PANEL + seed % 5,
        }
    }

    fn product<M: Multiply>(&self, multiplier: M) -> Vec<i32> {
        // What lies between the rows of sums must stay.
        let mut sums = vec![-1; self.rows * self.sums_row];
        let tile = TileAddresses {
            rows: self.rows,
            a: self.codes.as_ptr(),
            a_row: self.a_row,
            cells: self.cells.as_ptr(),
            half_step: self.half_step,
            steps: self.steps,
            bits: 8,
            start: self.start.as_ptr(),
            sums: sums.as_mut_ptr(),
            sums_row: self.sums_row,
        };
        // SAFETY: the vectors have what the addresses promise, and outlive the call.
        unsafe { multiplier.multiply(&tile) };
        sums
    }

    fn check(&self, multiplier: Trapped<Amx<Hardware, Portable>>) {
        let found = self.product(multiplier);
        assert!(found == self.product(Portable), "{} rows, {} steps", self.rows, self.steps);
    }
}

#[test]
fn the_instructions_compute_what_their_double_computes() {
    multiplier();
    let unit = unit();
    assert!(agrees_with_software(unit));
}

#[test]
fn every_number_of_rows_gives_the_portable_sums() {
    let multiplier = multiplier();
    for rows in 1..=2 * TILE_ROWS {
        for steps in [16, 48] {
            multiplier.begin();
            Factors::new(rows, steps, rows).check(multiplier);
            multiplier.end();
        }
    }
}

/// The tiles take a new shape in the middle of a task, and keep it as long as the rows stay.
#[test]
fn tiles_are_configured_when_the_rows_change_and_only_then() {
    let multiplier = multiplier();
    let before = configurations();
    multiplier.begin();
    for (seed, rows) in [32, 32, 5, 5, 5, 16, 17, 17, 32, 1].into_iter().enumerate() {
        Factors::new(rows, 32, seed).check(multiplier);
    }
    multiplier.end();
    let expected = if is_native() { 0 } else { 6 };
    assert_eq!(configurations() - before, expected, "emulated configurations");
}

#[test]
fn tiles_are_released_after_a_task_and_other_code_may_use_them_between() {
    let multiplier = multiplier();
    for seed in 0..3 {
        assert_eq!(unit().stored_configuration(), [0; 64], "nothing is configured before");
        multiplier.begin();
        Factors::new(20, 16, seed).check(multiplier);
        let configuration = unit().stored_configuration();
        assert_eq!((configuration[0], &configuration[48..56]), (1, &[16, 16, 4, 4, 16, 4, 16, 16][..]));
        multiplier.end();
        assert_eq!(unit().stored_configuration(), [0; 64], "nothing is configured after");
        // The next task asks for the same shape, but this is what it finds.
        let mut other = [0_u8; 64];
        (other[0], other[16], other[48]) = (1, 8, 3);
        // SAFETY: the instruction reads 64 bytes; there is a multiplier, so that it is executed or emulated.
        unsafe { asm!("ldtilecfg [{}]", in(reg) other.as_ptr(), options(nostack, preserves_flags)) };
        multiplier.begin();
        Factors::new(20, 16, seed).check(multiplier);
        multiplier.end();
    }
}

/// Threads take turns instruction by instruction, with tiles of different shapes and content.
#[test]
fn every_thread_has_its_own_tiles() {
    /// A product with a barrier between any two steps.
    fn slow_product(unit: Hardware, barrier: &Barrier, factors: &Factors, sums: &mut [i32]) {
        barrier.wait();
        unit.forget();
        unit.configure(Shape::of(factors.rows));
        barrier.wait();
        // SAFETY: the factors have one tile of rows of sixteen steps, and the sums have as many rows of sixteen.
        unsafe {
            unit.load_starts::<0>(factors.start.as_ptr());
            barrier.wait();
            unit.load_rows::<4>(factors.codes.as_ptr().cast(), factors.a_row);
            barrier.wait();
            unit.load_rows::<6>(factors.cells.as_ptr(), CELL);
            barrier.wait();
            unit.multiply_bytes::<0, 4, 6>();
            barrier.wait();
            unit.store_sums::<0>(sums.as_mut_ptr(), 16);
        }
        barrier.wait();
        unit.release();
    }
    multiplier();
    let unit = unit();
    let all_factors = [(16, 1), (7, 2)].map(|(rows, seed)| {
        let rounds = 0..10;
        rounds.map(|round| Factors::new(rows, 16, seed + 2 * round)).collect::<Vec<_>>()
    });
    let barrier = Barrier::new(2);
    // A thread that panicked would let the other wait for ever, so sums are compared afterwards.
    let all_sums = std::thread::scope(|scope| {
        let threads = all_factors.each_ref().map(|rounds| {
            scope.spawn(|| {
                let mut all_sums: Vec<Vec<i32>> = rounds.iter().map(|factors| vec![0; factors.rows * 16]).collect();
                for (factors, sums) in rounds.iter().zip(&mut all_sums) {
                    slow_product(unit, &barrier, factors, sums);
                }
                all_sums
            })
        });
        threads.map(|thread| thread.join().expect("no panic"))
    });
    for (factors, sums) in all_factors.iter().flatten().zip(all_sums.iter().flatten()) {
        let expected = factors.product(Portable);
        for (found, expected) in sums.chunks(16).zip(expected.chunks(factors.sums_row)) {
            assert_eq!(found, &expected[..16], "thread with {} rows", factors.rows);
        }
    }
}

/// The system call returns to where it came from, and Linux gives tiles only where the CPU has them.
#[test]
fn linux_is_asked_for_tiles() {
    assert!(!ask_for_tiles() || cpu_has_tiles());
}
