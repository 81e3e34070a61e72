//! Products of bf16 without an instruction for them, at little less than the speed of f32.
//!
//! A bf16 is an f32 without its lower half, so a pair of products is two fused multiply-adds of f32. One difference remains:
//! the instruction makes a subnormal sum zero. A sum of products is a multiple of the product of the last places of the
//! smallest factors; where that is a normal number, no sum is subnormal, and nothing has to be done about it. Tiles for
//! which that is not known are computed one product at a time.

use std::mem::MaybeUninit;

use super::element::{Bf16Pair, Element};
use super::micro::{MicroKernel, TileSize};
use super::pack::{BLOCK_STEPS, PACKED_ROW, depth_width};
use super::tile::{PackedBy, Tile};
use crate::simd::{Kernel, MAX_LANES, MAX_TILE_ROWS, Simd, vectorize};

/// A lower bound of the magnitudes of some numbers, zeros aside: its bits as an f32, minus one. Zero, minus one, is thus
/// the largest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Smallest(u32);

impl Smallest {
    /// There may be anything.
    pub(super) const UNKNOWN: Self = Self(0);
    /// There are no numbers.
    pub(super) const NONE: Self = Self(u32::MAX);

    /// The smallest of pairs of bf16.
    #[inline(always)]
    pub(super) fn of_pairs(pairs: &[f32]) -> Self {
        let halves = |pair: &f32| (pair.to_bits() & 0x7fff_0000, (pair.to_bits() & 0x7fff) << 16);
        let smaller = |(high, low): (u32, u32)| high.wrapping_sub(1).min(low.wrapping_sub(1));
        Self(pairs.iter().map(halves).map(smaller).fold(u32::MAX, u32::min))
    }

    /// The exponent of the smallest number; above that of any number if all are zero.
    fn exponent(self) -> i32 {
        const BIAS: i32 = 127;
        self.0.checked_add(1).map_or(2 * BIAS, |bits| (bits >> 23) as i32 - BIAS)
    }

    /// Whether every sum of products of bf16 with these bounds, rounded to f32 after each product, is zero or normal.
    fn sums_are_normal(self, other: Self) -> bool {
        // The last places of both factors: they have seven digits after the point.
        self.exponent() + other.exponent() - 2 * 7 >= f32::MIN_EXP - 1
    }
}

/// Tiles of bf16 in vector registers of f32.
#[derive(Clone, Copy)]
pub(super) struct Emulated<S>(S);

impl<S> Emulated<S> {
    pub(super) fn new(simd: S) -> Self {
        Self(simd)
    }
}

impl<S: Simd> MicroKernel for Emulated<S> {
    type Element = Bf16Pair;
    const TILE_ROWS: usize = S::TILE_ROWS;
    const WANTS_SMALLEST: bool = true;

    #[inline]
    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        vectorize(self.0, kernel)
    }

    #[inline(always)]
    unsafe fn multiply<T: Simd>(self, simd: T, tile: &Tile, size: TileSize, packed_by: PackedBy) {
        let mut rows = MaybeUninit::<Halves>::uninit();
        // SAFETY: the caller promises A's elements; the halves are filled for all rows before they are read.
        unsafe {
            let a_smallest = fill_halves::<T>(&mut rows, tile, size, packed_by);
            if !a_smallest.sums_are_normal(tile.b_smallest) {
                one_by_one(simd, tile, size);
                return;
            }
            let mut sums = MaybeUninit::<Sums>::uninit();
            let factors = Factors { tile, rows: rows.as_ptr(), sums: sums.as_mut_ptr() };
            match packed_by {
                PackedBy::Rows => simd.vectorize_apart(ByRows(factors)),
                PackedBy::Depths => simd.vectorize_apart(ByDepths(factors)),
            }
            write(simd, tile, size, sums.as_ptr());
        }
    }
}

/// Elements of A for one tile, packed either way.
const ELEMENTS: usize = {
    let (rows, depths) = (MAX_TILE_ROWS * PACKED_ROW, MAX_TILE_ROWS.next_multiple_of(MAX_LANES) * BLOCK_STEPS);
    if rows > depths { rows } else { depths }
};

/// The upper and the lower numbers of A's elements, each where its element is in packed A.
#[repr(C, align(64))]
struct Halves {
    high: [f32; ELEMENTS],
    low: [f32; ELEMENTS],
}

/// The sums of a tile, row by row.
#[repr(C, align(64))]
struct Sums([f32; MAX_TILE_ROWS * 2 * MAX_LANES]);

/// Takes the elements of A apart. Rows beyond the tile's are zero.
///
/// # Safety
/// A must have the tile's rows and steps, packed as `packed_by` says.
#[inline(always)]
unsafe fn fill_halves<S: Simd>(
    halves: &mut MaybeUninit<Halves>,
    tile: &Tile,
    size: TileSize,
    packed_by: PackedBy,
) -> Smallest {
    let target = halves.as_mut_ptr();
    // SAFETY: only addresses are made of what is not filled yet.
    let (high, low) = unsafe { ((&raw mut (*target).high).cast::<f32>(), (&raw mut (*target).low).cast::<f32>()) };
    // Lines of elements that follow each other: the steps of a row, or the rows at a step.
    let (lines, line, own, length, all) = match packed_by {
        PackedBy::Rows => (size.rows, PACKED_ROW, tile.steps, tile.steps, S::TILE_ROWS),
        PackedBy::Depths => (tile.steps, depth_width::<S>(), size.rows, S::TILE_ROWS, tile.steps),
    };
    let mut smallest = Smallest::NONE;
    for index in 0..all {
        let there = if index < lines { own } else { 0 };
        // SAFETY: the line's first `there` elements are inside packed A, and `length` have room in the halves.
        unsafe {
            let source = std::slice::from_raw_parts(tile.a.add(index * line), there);
            let (high, low) = (high.add(index * line), low.add(index * line));
            for (place, pair) in source.iter().enumerate() {
                high.add(place).write(f32::from_bits(pair.to_bits() & 0xffff_0000));
                low.add(place).write(f32::from_bits(pair.to_bits() << 16));
            }
            high.add(there).write_bytes(0, length - there);
            low.add(there).write_bytes(0, length - there);
            smallest = smallest.min(Smallest::of_pairs(source));
        }
    }
    smallest
}

/// What a tile is computed from, and where its sums go.
struct Factors<'a> {
    tile: &'a Tile,
    rows: *const Halves,
    sums: *mut Sums,
}

/// A tile of full height and width over rows that were packed by rows.
struct ByRows<'a>(Factors<'a>);
/// The same, packed by depths.
struct ByDepths<'a>(Factors<'a>);

impl Kernel for ByRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        add_up(simd, &self.0, PackedBy::Rows);
    }
}

impl Kernel for ByDepths<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        add_up(simd, &self.0, PackedBy::Depths);
    }
}

/// The sums of all products of a tile.
#[inline(always)]
fn add_up<S: Simd>(simd: S, factors: &Factors<'_>, packed_by: PackedBy) {
    let Factors { tile, rows, sums: target } = *factors;
    let (a_row, a_depth) = (packed_by.row_step(), packed_by.depth_step::<S>());
    let mut sums = [[simd.splat(0.0); 2]; MAX_TILE_ROWS];
    // SAFETY: `multiply` filled the halves of TILE_ROWS rows at all steps; a panel has whole vectors at every step; the
    // sums have room for the tallest and widest tile.
    unsafe {
        let (mut high, mut low) = ((&raw const (*rows).high).cast::<f32>(), (&raw const (*rows).low).cast::<f32>());
        let mut b = tile.b;
        for _ in 0..tile.steps {
            let (first_high, first_low) = simd.bf16_halves(simd.load_ptr(b));
            let (second_high, second_low) = simd.bf16_halves(simd.load_ptr(b.add(S::LANES)));
            for (row, [first, second]) in sums.iter_mut().enumerate().take(S::TILE_ROWS) {
                let value = simd.splat(*high.add(row * a_row));
                *first = simd.mul_add(value, first_high, *first);
                *second = simd.mul_add(value, second_high, *second);
            }
            for (row, [first, second]) in sums.iter_mut().enumerate().take(S::TILE_ROWS) {
                let value = simd.splat(*low.add(row * a_row));
                *first = simd.mul_add(value, first_low, *first);
                *second = simd.mul_add(value, second_low, *second);
            }
            (high, low, b) = (high.wrapping_add(a_depth), low.wrapping_add(a_depth), b.wrapping_add(tile.b_depth));
        }
        let target = target.cast::<f32>();
        for (row, &[first, second]) in sums.iter().enumerate().take(S::TILE_ROWS) {
            simd.store_ptr(target.add(row * 2 * S::LANES), first);
            simd.store_ptr(target.add((row * 2 + 1) * S::LANES), second);
        }
    }
}

/// Adds the sums to what the tile starts from.
///
/// # Safety
/// The sums of the tile's rows must be there, and C as [`MicroKernel::multiply`] asks.
#[inline(always)]
unsafe fn write<S: Simd>(simd: S, tile: &Tile, size: TileSize, sums: *const Sums) {
    for row in 0..size.rows {
        for column in (0..size.cols).step_by(S::LANES) {
            // SAFETY: passed on from the caller; the sums have whole vectors.
            unsafe {
                let sum = simd.load_ptr(sums.cast::<f32>().add(row * 2 * S::LANES + column));
                tile.write(simd, (row, column), S::LANES.min(size.cols - column), sum);
            }
        }
    }
}

/// A tile in plain loops, with every subnormal sum made zero.
///
/// # Safety
/// As [`MicroKernel::multiply`].
#[inline(always)]
unsafe fn one_by_one<S: Simd>(simd: S, tile: &Tile, size: TileSize) {
    for row in 0..size.rows {
        for column in (0..size.cols).step_by(S::LANES) {
            let count = S::LANES.min(size.cols - column);
            let mut sums = simd.splat(0.0);
            for step in 0..tile.steps {
                // SAFETY: the caller promises these elements of A and B.
                unsafe {
                    let value = simd.splat(*tile.a.add(row * tile.a_row + step * tile.a_depth));
                    let columns = simd.load_first_ptr(tile.b.add(step * tile.b_depth + column), count);
                    sums = Bf16Pair::add_products(simd, value, columns, sums);
                }
            }
            // SAFETY: the caller promises C and the start.
            unsafe { tile.write(simd, (row, column), count, sums) };
        }
    }
}
