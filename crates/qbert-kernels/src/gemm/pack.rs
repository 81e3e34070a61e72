//! Copies of operands in the order the micro-kernel reads them.

use crate::simd::Simd;

/// Depth of one block: a block of A's rows stays in the first-level cache, and a block of B of
/// [`super::driver::BLOCK_COLUMNS`] columns in the second. It is also part of the arithmetic:
/// products are summed over this many terms in registers before they are added to C.
pub(super) const BLOCK_DEPTH: usize = 256;

/// Row stride of packed A: not a multiple of 1 KiB, so that rows spread over the cache's sets.
pub(super) const PACKED_ROW: usize = BLOCK_DEPTH + 16;

/// One operand of a product by address: element `(outer, depth)`, where outer is A's row or B's
/// column.
#[derive(Clone, Copy)]
pub(super) struct Operand {
    pub(super) data: *const f32,
    pub(super) outer_step: usize,
    pub(super) depth_step: usize,
}

impl Operand {
    /// The element's address; wrapping, because an operand without depth has no elements at all.
    #[inline(always)]
    pub(super) fn at(self, outer: usize, depth: usize) -> *const f32 {
        self.data.wrapping_add(outer * self.outer_step + depth * self.depth_step)
    }
}

/// Writes columns `column..column + cols` of B, depths `from..from + depth`, as `depth` rows of
/// `2·LANES` numbers, zero beyond `cols`.
///
/// # Safety
/// The part must lie inside B, and `target` have room for `depth · 2·LANES` floats.
#[inline(always)]
pub(super) unsafe fn pack_panel<S: Simd>(
    simd: S,
    b: Operand,
    (column, cols): (usize, usize),
    (from, depth): (usize, usize),
    target: *mut f32,
) {
    let width = 2 * S::LANES;
    // SAFETY: every address below is element (column + j, from + k) of B with j < cols and
    // k < depth, or inside the target's depth rows.
    unsafe {
        if b.outer_step == 1 {
            if cols == width {
                for k in 0..depth {
                    let (source, target) = (b.at(column, from + k), target.add(k * width));
                    simd.store_ptr(target, simd.load_ptr(source));
                    simd.store_ptr(target.add(S::LANES), simd.load_ptr(source.add(S::LANES)));
                }
                return;
            }
            for k in 0..depth {
                let (source, target) = (b.at(column, from + k), target.add(k * width));
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
        for k in (0..depth).step_by(S::LANES) {
            let depths = S::LANES.min(depth - k);
            for half in [0, S::LANES] {
                let rows = cols.saturating_sub(half).min(S::LANES);
                let source = (b.at(column + half, from + k), b.outer_step);
                let target = (target.add(k * width + half), width);
                simd.transpose_block(source, (rows, depths), target);
            }
        }
    }
}

/// Copies `rows × depth` of A starting at `(row, from)` to rows of [`PACKED_ROW`] floats.
///
/// # Safety
/// The part must lie inside A with `depth_step == 1`, and `target` have room.
#[inline(always)]
pub(super) unsafe fn pack_rows<S: Simd>(
    simd: S,
    a: Operand,
    (row, rows): (usize, usize),
    (from, depth): (usize, usize),
    target: *mut f32,
) {
    for i in 0..rows {
        // SAFETY: row + i and from .. from + depth are inside A, as the caller promises.
        let (source, target) = unsafe { (a.at(row + i, from), target.add(i * PACKED_ROW)) };
        let mut k = 0;
        while k + S::LANES <= depth {
            // SAFETY: k + LANES <= depth <= BLOCK_DEPTH.
            unsafe { simd.store_ptr(target.add(k), simd.load_ptr(source.add(k))) };
            k += S::LANES;
        }
        // Whole vectors are stored throughout (masked stores are slow on some CPUs): a packed row
        // has room for one vector beyond the deepest block.
        // SAFETY: depth - k < LANES numbers are read; k + LANES <= PACKED_ROW.
        unsafe { simd.store_ptr(target.add(k), simd.load_first_ptr(source.add(k), depth - k)) };
    }
}

/// Groups of rows that are packed together where A is walked by depth: wide enough to use whole
/// cache lines of A's rows, and to visit each of its pages once.
pub(super) const DEPTH_GROUPS: usize = 8;

/// Copies A so that the rows of one group at one depth are adjacent, `LANES` floats per depth:
/// `rows` rows from `row` in groups of `TILE_ROWS`, a group every `group_step` floats.
///
/// # Safety
/// The part must lie inside A with `outer_step == 1`, and `target` have room for `depth · LANES`
/// floats per group.
#[inline(always)]
pub(super) unsafe fn pack_depths<S: Simd>(
    simd: S,
    a: Operand,
    (row, rows): (usize, usize),
    (from, depth): (usize, usize),
    (target, group_step): (*mut f32, usize),
) {
    for k in 0..depth {
        for (group, i) in (0..rows).step_by(S::TILE_ROWS).enumerate() {
            let count = S::TILE_ROWS.min(rows - i);
            // SAFETY: row + i .. + count and from + k are inside A, as the caller promises; a whole
            // vector is stored at its own place.
            unsafe {
                let value = simd.load_first_ptr(a.at(row + i, from + k), count);
                simd.store_ptr(target.add(group * group_step + k * S::LANES), value);
            }
        }
    }
}

/// Asks for the elements some depths after this one: a walk by depth jumps from page to page, which
/// no hardware prefetcher follows. Into the second-level cache, because at power-of-two-like strides
/// the first level has room for a few depths only.
#[inline(always)]
fn prefetch_depth<S: Simd>(simd: S, operand: Operand, (outer, count): (usize, usize), depth: usize) {
    const AHEAD: usize = 32;
    const LINE: usize = 16;
    for i in (0..count).step_by(LINE) {
        simd.prefetch_far(operand.at(outer + i, depth + AHEAD));
    }
}

/// Packs the whole panels of `2·LANES` columns among `cols` columns from `column`, depth by depth;
/// returns how many. Panel p goes to `target + p · panel_step`.
///
/// # Safety
/// As [`pack_panel`], with `b.outer_step == 1`.
#[inline(always)]
pub(super) unsafe fn pack_whole_panels<S: Simd>(
    simd: S,
    b: Operand,
    (column, cols): (usize, usize),
    (from, depth): (usize, usize),
    (target, panel_step): (*mut f32, usize),
) -> usize {
    let width = 2 * S::LANES;
    let panels = cols / width;
    for k in 0..depth {
        prefetch_depth(simd, b, (column, cols), from + k);
        for panel in 0..panels {
            let source = b.at(column + panel * width, from + k);
            // SAFETY: the columns and depths are inside B; the target has room for all panels.
            unsafe {
                let target = target.add(panel * panel_step + k * width);
                simd.store_ptr(target, simd.load_ptr(source));
                simd.store_ptr(target.add(S::LANES), simd.load_ptr(source.add(S::LANES)));
            }
        }
    }
    panels
}
