//! Copies of operands in the order the micro-kernel reads them.

use std::ops::Range;

use super::element::{Block, Element};
use super::product::Operand;
use crate::simd::{MAX_LANES, Simd, Transpose};

/// Steps of one block: a block of A's rows stays in the first-level cache, and a block of B of
/// [`super::driver::BLOCK_COLUMNS`] columns in the second. It is also part of the arithmetic:
/// products are summed over this many steps in registers before they are added to C.
pub(super) const BLOCK_STEPS: usize = 256;

/// Row stride of packed A: room for one vector beyond the deepest block, and not a multiple of 1 KiB, so that rows
/// spread over the cache's sets.
pub(super) const PACKED_ROW: usize = BLOCK_STEPS + MAX_LANES;

/// Columns of one packed panel of B.
#[inline(always)]
pub(super) const fn panel_width<S: Simd>() -> usize {
    2 * S::LANES
}

/// Elements per step of A's rows that are packed by depth: the rows of one tile, in whole vectors.
#[inline(always)]
pub(super) const fn depth_width<S: Simd>() -> usize {
    S::TILE_ROWS.next_multiple_of(S::LANES)
}

/// Where packed parts go: the first one's address, and the elements from one to the next.
#[derive(Clone, Copy)]
pub(super) struct PartTarget {
    pub(super) address: *mut f32,
    pub(super) step: usize,
}

/// Writes some columns and steps of B as rows of [`panel_width`] elements, one row per step, zero beyond the columns.
///
/// # Safety
/// The columns (at most one panel) and steps must lie inside B, and `target` must have room for a panel of that many
/// steps.
#[inline(always)]
pub(super) unsafe fn pack_panel<S: Simd, E: Element>(
    simd: S,
    b: Operand<'_>,
    columns: Range<usize>,
    steps: Range<usize>,
    target: *mut f32,
) {
    let (width, cols) = (panel_width::<S>(), columns.len());
    let (first, second) = (cols.min(S::LANES), cols.saturating_sub(S::LANES));
    // SAFETY: every address below is element (columns.start + j, steps.start + k) of B inside the ranges, or inside
    // the target's rows.
    unsafe {
        if b.outer_step == 1 {
            for (k, step) in steps.enumerate() {
                let target = target.add(k * width);
                simd.store_ptr(target, E::load_across(simd, b, columns.start, step, first));
                let rest = E::load_across(simd, b, columns.start + first, step, second);
                simd.store_ptr(target.add(S::LANES), rest);
            }
            return;
        }
        // B's rows are contiguous along the depth: square blocks are transposed.
        debug_assert!(b.depth_step == 1);
        for k in (0..steps.len()).step_by(S::LANES) {
            for half in [0, S::LANES] {
                let block = Block {
                    outer: columns.start + half,
                    outers: cols.saturating_sub(half).min(S::LANES),
                    step: steps.start + k,
                    steps: S::LANES.min(steps.len() - k),
                };
                E::transpose(simd, b, block, target.add(k * width + half), width);
            }
        }
    }
}

/// Copies some rows and steps of A to rows of [`PACKED_ROW`] elements. Steps beyond the last one, up to a whole vector,
/// are zero.
///
/// # Safety
/// The part must lie inside A with `depth_step == 1`, its steps be at most [`BLOCK_STEPS`], and `target` have room.
#[inline(always)]
pub(super) unsafe fn pack_rows<S: Simd, E: Element>(
    simd: S,
    a: Operand<'_>,
    rows: Range<usize>,
    steps: Range<usize>,
    target: *mut f32,
) {
    let count = steps.len();
    for (i, row) in rows.enumerate() {
        let mut k = 0;
        // Whole vectors are stored throughout (masked stores are slow on some CPUs), with zeros beyond the last step.
        while k < count {
            // SAFETY: the row and the steps are inside A, as the caller promises; k + LANES <= PACKED_ROW.
            unsafe {
                let elements = E::load_along(simd, a, row, steps.start + k, S::LANES.min(count - k));
                simd.store_ptr(target.add(i * PACKED_ROW + k), elements);
            }
            k += S::LANES;
        }
    }
}

/// Groups of rows that are packed together where A is read by depth: wide enough to use whole cache lines of A's rows and
/// to visit each of its pages once.
pub(super) const DEPTH_GROUPS: usize = 8;

/// Copies A in groups of `TILE_ROWS` rows, so that the rows of one group at one step are adjacent: [`depth_width`]
/// elements per step.
///
/// # Safety
/// The part must lie inside A with `outer_step == 1`, and every group's target have room for [`depth_width`] elements per
/// step.
#[inline(always)]
pub(super) unsafe fn pack_depths<S: Simd, E: Element>(
    simd: S,
    a: Operand<'_>,
    rows: Range<usize>,
    steps: Range<usize>,
    target: PartTarget,
) {
    for (k, step) in steps.enumerate() {
        for (group, first) in (0..rows.len()).step_by(S::TILE_ROWS).enumerate() {
            let count = S::TILE_ROWS.min(rows.len() - first);
            // One vector on most instruction sets; more where a tile is taller than a vector.
            for offset in (0..depth_width::<S>()).step_by(S::LANES) {
                let own = count.saturating_sub(offset).min(S::LANES);
                // SAFETY: the rows below `count` and the step are inside A, as the caller promises; a whole vector is
                // stored at its own place.
                unsafe {
                    let elements = E::load_across(simd, a, rows.start + first + offset, step, own);
                    let target = target.address.add(group * target.step + k * depth_width::<S>() + offset);
                    simd.store_ptr(target, elements);
                }
            }
        }
    }
}

/// Copies some rows and steps of A, which is read by depth, to rows of [`PACKED_ROW`] elements: square blocks are
/// transposed. Steps beyond the last one, up to a whole vector, are zero.
///
/// # Safety
/// The part must lie inside A with `outer_step == 1`, its steps be at most [`BLOCK_STEPS`], and `target` have room.
#[inline(always)]
pub(super) unsafe fn pack_depths_to_rows<S: Simd, E: Element>(
    simd: S,
    a: Operand<'_>,
    rows: Range<usize>,
    steps: Range<usize>,
    target: *mut f32,
) {
    let mut block = [[0.0_f32; MAX_LANES]; MAX_LANES];
    // Steps are outermost, so that each page of A is visited once for all rows.
    for k in (0..steps.len()).step_by(S::LANES) {
        let own_steps = S::LANES.min(steps.len() - k);
        for i in (0..rows.len()).step_by(S::LANES) {
            let own_rows = S::LANES.min(rows.len() - i);
            // SAFETY: the rows and steps are inside A, as the caller promises; a row of the block has room for every
            // vector; row i + LANES - 1 and step k + LANES - 1 at most are inside the target.
            unsafe {
                for (step, line) in (steps.start + k..).zip(block.iter_mut().take(own_steps)) {
                    simd.store_ptr(line.as_mut_ptr(), E::load_across(simd, a, rows.start + i, step, own_rows));
                }
                simd.transpose_block(Transpose {
                    source: block.as_ptr().cast(),
                    source_row: MAX_LANES,
                    rows: own_steps,
                    cols: own_rows,
                    target: target.add(i * PACKED_ROW + k),
                    target_row: PACKED_ROW,
                });
            }
        }
    }
}

/// Prefetches the elements some depths ahead: reading by depth jumps from page to page, which no hardware prefetcher
/// follows. Into the second-level cache, because at strides near a power of two the first level holds only a few
/// depths.
#[inline(always)]
fn prefetch_step<S: Simd, E: Element>(simd: S, operand: Operand<'_>, outer: Range<usize>, step: usize) {
    const AHEAD: usize = 32;
    const LINE: usize = 16;
    for depth in (step * E::DEPTHS + AHEAD..).take(E::DEPTHS) {
        for i in outer.clone().step_by(LINE) {
            simd.prefetch_far(operand.at(i, depth));
        }
    }
}

/// Packs the whole panels among some columns, step by step; returns how many there are.
///
/// # Safety
/// As [`pack_panel`] for every whole panel, with `b.outer_step == 1`.
#[inline(always)]
pub(super) unsafe fn pack_whole_panels<S: Simd, E: Element>(
    simd: S,
    b: Operand<'_>,
    columns: Range<usize>,
    steps: Range<usize>,
    target: PartTarget,
) -> usize {
    let width = panel_width::<S>();
    let panels = columns.len() / width;
    for (k, step) in steps.enumerate() {
        prefetch_step::<S, E>(simd, b, columns.clone(), step);
        for panel in 0..panels {
            let column = columns.start + panel * width;
            // SAFETY: the columns and steps are inside B; the target has room for all panels.
            unsafe {
                let target = target.address.add(panel * target.step + k * width);
                simd.store_ptr(target, E::load_across(simd, b, column, step, S::LANES));
                simd.store_ptr(target.add(S::LANES), E::load_across(simd, b, column + S::LANES, step, S::LANES));
            }
        }
    }
    panels
}
