//! What one 32-bit element of the packed copies holds: a number, or two neighbours in depth as bf16.
//!
//! A product advances by one element of A and of B at a time, a *step*. Everything else, from tiles to threads, is the same
//! for both.

use super::product::Operand;
use crate::simd::{MAX_LANES, Simd, Transpose};

/// One kind of packed element.
pub(super) trait Element: Copy + Send + Sync + 'static {
    /// Depths that a step takes.
    const DEPTHS: usize;

    /// `sums + a·b`, lane by lane.
    fn add_products<S: Simd>(simd: S, a: S::F32, b: S::F32, sums: S::F32) -> S::F32;

    /// The elements of `count` rows of A or columns of B at one step; zero in the lanes beyond.
    ///
    /// # Safety
    /// They must be inside the operand, with `outer_step == 1`.
    unsafe fn load_across<S: Simd>(simd: S, from: Operand<'_>, outer: usize, step: usize, count: usize) -> S::F32;

    /// The elements of one row of A at `count` steps; zero in the lanes beyond.
    ///
    /// # Safety
    /// They must be inside the operand, with `depth_step == 1`.
    unsafe fn load_along<S: Simd>(simd: S, from: Operand<'_>, outer: usize, step: usize, count: usize) -> S::F32;

    /// Writes the elements of some columns of B at some steps, a row of `LANES` elements for each step, zero beyond the
    /// columns.
    ///
    /// # Safety
    /// They must be inside the operand, with `depth_step == 1`, at most `LANES` of both; the target must have room.
    unsafe fn transpose<S: Simd>(simd: S, from: Operand<'_>, block: Block, target: *mut f32, target_row: usize);
}

/// Some columns of B at some steps.
#[derive(Clone, Copy)]
pub(super) struct Block {
    pub(super) outer: usize,
    pub(super) outers: usize,
    pub(super) step: usize,
    pub(super) steps: usize,
}

/// A number.
#[derive(Clone, Copy)]
pub(super) struct Single;

impl Element for Single {
    const DEPTHS: usize = 1;

    #[inline(always)]
    fn add_products<S: Simd>(simd: S, a: S::F32, b: S::F32, sums: S::F32) -> S::F32 {
        simd.mul_add(a, b, sums)
    }

    #[inline(always)]
    unsafe fn load_across<S: Simd>(simd: S, from: Operand<'_>, outer: usize, step: usize, count: usize) -> S::F32 {
        // SAFETY: passed on from the caller.
        unsafe { load(simd, from.at(outer, step), count) }
    }

    #[inline(always)]
    unsafe fn load_along<S: Simd>(simd: S, from: Operand<'_>, outer: usize, step: usize, count: usize) -> S::F32 {
        // SAFETY: passed on from the caller.
        unsafe { load(simd, from.at(outer, step), count) }
    }

    #[inline(always)]
    unsafe fn transpose<S: Simd>(simd: S, from: Operand<'_>, block: Block, target: *mut f32, target_row: usize) {
        let Block { outer, outers, step, steps } = block;
        let source = from.at(outer, step);
        // SAFETY: passed on from the caller.
        unsafe {
            simd.transpose_block(Transpose {
                source,
                source_row: from.outer_step,
                rows: outers,
                cols: steps,
                target,
                target_row,
            });
        }
    }
}

/// Two neighbours in depth, rounded to bf16. The last one of an odd depth has a zero beside it.
#[derive(Clone, Copy)]
pub(super) struct Bf16Pair;

impl Element for Bf16Pair {
    const DEPTHS: usize = 2;

    #[inline(always)]
    fn add_products<S: Simd>(simd: S, a: S::F32, b: S::F32, sums: S::F32) -> S::F32 {
        simd.bf16_add_products(a, b, sums)
    }

    #[inline(always)]
    unsafe fn load_across<S: Simd>(simd: S, from: Operand<'_>, outer: usize, step: usize, count: usize) -> S::F32 {
        let depth = 2 * step;
        // SAFETY: the first depth is inside the operand, as the caller promises, and the second is looked at.
        unsafe {
            let low = load(simd, from.at(outer, depth), count);
            let high =
                if depth + 1 < from.depth { load(simd, from.at(outer, depth + 1), count) } else { simd.splat(0.0) };
            simd.bf16_lane_pairs(low, high)
        }
    }

    #[inline(always)]
    unsafe fn load_along<S: Simd>(simd: S, from: Operand<'_>, outer: usize, step: usize, count: usize) -> S::F32 {
        let depth = 2 * step;
        let there = (2 * count).min(from.depth.saturating_sub(depth));
        let (first, second) = (there.min(S::LANES), there.saturating_sub(S::LANES));
        let address = from.at(outer, depth);
        // SAFETY: the row has `there` numbers from this depth on.
        unsafe {
            let rest = load(simd, address.wrapping_add(S::LANES), second);
            simd.bf16_neighbour_pairs(load(simd, address, first), rest)
        }
    }

    #[inline(always)]
    unsafe fn transpose<S: Simd>(simd: S, from: Operand<'_>, block: Block, target: *mut f32, target_row: usize) {
        let Block { outer, outers, step, steps } = block;
        let mut pairs = [[0.0_f32; MAX_LANES]; MAX_LANES];
        for (index, row) in pairs.iter_mut().enumerate().take(outers) {
            // SAFETY: the column and the steps are inside the operand; a row has room for every vector.
            unsafe { simd.store_ptr(row.as_mut_ptr(), Self::load_along(simd, from, outer + index, step, steps)) };
        }
        // SAFETY: the source is what was just written; the caller promises the target.
        unsafe {
            simd.transpose_block(Transpose {
                source: pairs.as_ptr().cast(),
                source_row: MAX_LANES,
                rows: outers,
                cols: steps,
                target,
                target_row,
            });
        }
    }
}

/// The first `count` lanes from memory, the others zero.
///
/// # Safety
/// That many numbers must be readable.
#[inline(always)]
unsafe fn load<S: Simd>(simd: S, from: *const f32, count: usize) -> S::F32 {
    // SAFETY: passed on from the caller.
    unsafe { if count == S::LANES { simd.load_ptr(from) } else { simd.load_first_ptr(from, count) } }
}
