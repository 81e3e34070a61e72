//! Copies of operands in the order the micro-kernel reads them.

use std::ops::Range;

use super::product::Operand;
use crate::simd::{MAX_LANES, Simd, Transpose};

/// Depth of one block: a block of A's rows stays in the first-level cache, and a block of B of
/// [`super::driver::BLOCK_COLUMNS`] columns in the second. It is also part of the arithmetic:
/// products are summed over this many terms in registers before they are added to C.
pub(super) const BLOCK_DEPTH: usize = 256;

/// Row stride of packed A: room for one vector beyond the deepest block, and not a multiple of 1 KiB, so that rows
/// spread over the cache's sets.
pub(super) const PACKED_ROW: usize = BLOCK_DEPTH + MAX_LANES;

/// Columns of one packed panel of B.
#[inline(always)]
pub(super) const fn panel_width<S: Simd>() -> usize {
    2 * S::LANES
}

/// Floats per depth of A's rows that are packed by depth: the rows of one tile, in whole vectors.
#[inline(always)]
pub(super) const fn depth_width<S: Simd>() -> usize {
    S::TILE_ROWS.next_multiple_of(S::LANES)
}

/// Where packed parts go: the first one's address, and the floats from one to the next.
#[derive(Clone, Copy)]
pub(super) struct PartTarget {
    pub(super) address: *mut f32,
    pub(super) step: usize,
}

/// Writes some columns and depths of B as rows of [`panel_width`] numbers, one row per depth, zero beyond the columns.
///
/// # Safety
/// The columns (at most one panel) and depths must lie inside B, and `target` must have room for a panel of that many
/// depths.
#[inline(always)]
pub(super) unsafe fn pack_panel<S: Simd>(
    simd: S,
    b: Operand<'_>,
    columns: Range<usize>,
    depths: Range<usize>,
    target: *mut f32,
) {
    let (width, cols) = (panel_width::<S>(), columns.len());
    // SAFETY: every address below is element (columns.start + j, depths.start + k) of B inside the ranges, or inside
    // the target's rows.
    unsafe {
        if b.outer_step == 1 {
            if cols == width {
                for (k, depth) in depths.enumerate() {
                    let (source, target) = (b.at(columns.start, depth), target.add(k * width));
                    simd.store_ptr(target, simd.load_ptr(source));
                    simd.store_ptr(target.add(S::LANES), simd.load_ptr(source.add(S::LANES)));
                }
                return;
            }
            for (k, depth) in depths.enumerate() {
                let (source, target) = (b.at(columns.start, depth), target.add(k * width));
                let first = cols.min(S::LANES);
                let second = cols - first;
                simd.store_ptr(target, simd.load_first_ptr(source, first));
                let rest = simd.load_first_ptr(source.add(first), second);
                simd.store_ptr(target.add(S::LANES), rest);
            }
            return;
        }
        // B's rows are contiguous along the depth: square blocks are transposed.
        debug_assert!(b.depth_step == 1);
        for k in (0..depths.len()).step_by(S::LANES) {
            for half in [0, S::LANES] {
                simd.transpose_block(Transpose {
                    source: b.at(columns.start + half, depths.start + k),
                    source_row: b.outer_step,
                    rows: cols.saturating_sub(half).min(S::LANES),
                    cols: S::LANES.min(depths.len() - k),
                    target: target.add(k * width + half),
                    target_row: width,
                });
            }
        }
    }
}

/// Copies some rows and depths of A to rows of [`PACKED_ROW`] floats.
///
/// # Safety
/// The part must lie inside A with `depth_step == 1`, its depths be at most [`BLOCK_DEPTH`], and `target` have room.
#[inline(always)]
pub(super) unsafe fn pack_rows<S: Simd>(
    simd: S,
    a: Operand<'_>,
    rows: Range<usize>,
    depths: Range<usize>,
    target: *mut f32,
) {
    let depth = depths.len();
    for (i, row) in rows.enumerate() {
        // SAFETY: the row and the depths are inside A, as the caller promises.
        let (source, target) = unsafe { (a.at(row, depths.start), target.add(i * PACKED_ROW)) };
        let mut k = 0;
        while k + S::LANES <= depth {
            // SAFETY: k + LANES <= depth <= BLOCK_DEPTH.
            unsafe { simd.store_ptr(target.add(k), simd.load_ptr(source.add(k))) };
            k += S::LANES;
        }
        // Whole vectors are stored throughout (masked stores are slow on some CPUs).
        // SAFETY: depth - k < LANES numbers are read; k + LANES <= PACKED_ROW.
        unsafe { simd.store_ptr(target.add(k), simd.load_first_ptr(source.add(k), depth - k)) };
    }
}

/// Groups of rows that are packed together where A is read by depth: wide enough to use whole cache lines of A's rows and
/// to visit each of its pages once.
pub(super) const DEPTH_GROUPS: usize = 8;

/// Copies A in groups of `TILE_ROWS` rows, so that the rows of one group at one depth are adjacent: [`depth_width`]
/// floats per depth.
///
/// # Safety
/// The part must lie inside A with `outer_step == 1`, and every group's target have room for [`depth_width`] floats per
/// depth.
#[inline(always)]
pub(super) unsafe fn pack_depths<S: Simd>(
    simd: S,
    a: Operand<'_>,
    rows: Range<usize>,
    depths: Range<usize>,
    target: PartTarget,
) {
    for (k, depth) in depths.enumerate() {
        for (group, first) in (0..rows.len()).step_by(S::TILE_ROWS).enumerate() {
            let count = S::TILE_ROWS.min(rows.len() - first);
            let source = a.at(rows.start + first, depth);
            // One vector on most instruction sets; more where a tile is taller than a vector.
            for offset in (0..depth_width::<S>()).step_by(S::LANES) {
                // SAFETY: the rows below `count` and the depth are inside A, as the caller promises; a whole vector is
                // stored at its own place.
                unsafe {
                    let value =
                        simd.load_first_ptr(source.wrapping_add(offset), count.saturating_sub(offset).min(S::LANES));
                    let target = target.address.add(group * target.step + k * depth_width::<S>() + offset);
                    simd.store_ptr(target, value);
                }
            }
        }
    }
}

/// Prefetches the elements some depths ahead: reading by depth jumps from page to page, which no hardware prefetcher
/// follows. Into the second-level cache, because at strides near a power of two the first level holds only a few
/// depths.
#[inline(always)]
fn prefetch_depth<S: Simd>(simd: S, operand: Operand<'_>, outer: Range<usize>, depth: usize) {
    const AHEAD: usize = 32;
    const LINE: usize = 16;
    for i in outer.step_by(LINE) {
        simd.prefetch_far(operand.at(i, depth + AHEAD));
    }
}

/// Packs the whole panels among some columns, depth by depth; returns how many there are.
///
/// # Safety
/// As [`pack_panel`] for every whole panel, with `b.outer_step == 1`.
#[inline(always)]
pub(super) unsafe fn pack_whole_panels<S: Simd>(
    simd: S,
    b: Operand<'_>,
    columns: Range<usize>,
    depths: Range<usize>,
    target: PartTarget,
) -> usize {
    let width = panel_width::<S>();
    let panels = columns.len() / width;
    for (k, depth) in depths.enumerate() {
        prefetch_depth(simd, b, columns.clone(), depth);
        for panel in 0..panels {
            let source = b.at(columns.start + panel * width, depth);
            // SAFETY: the columns and depths are inside B; the target has room for all panels.
            unsafe {
                let target = target.address.add(panel * target.step + k * width);
                simd.store_ptr(target, simd.load_ptr(source));
                simd.store_ptr(target.add(S::LANES), simd.load_ptr(source.add(S::LANES)));
            }
        }
    }
    panels
}
