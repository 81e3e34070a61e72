//! Cuts a product into blocks that fit the caches and runs the micro-kernel over them.
//!
//! Two ways: [`SmallProduct`] for the many small products of attention (nothing is copied except a
//! transposed B), and [`LargeProduct`] for linear layers (B packed once and shared by all tasks).

use std::mem::MaybeUninit;
use std::ops::Range;

use super::pack::{
    BLOCK_DEPTH, DEPTH_GROUPS, Operand, PACKED_ROW, pack_depths, pack_panel, pack_rows, pack_whole_panels,
};
use super::tile::{Tile, TileStart, any_tile, whole_tile};
use crate::simd::{Kernel, Simd};

/// Columns of B that are worked on together: `BLOCK_DEPTH` times this fits the second-level cache.
pub(super) const BLOCK_COLUMNS: usize = 384;

/// Distance of panels in a block that a task packs itself: two cache lines off a multiple of 4 KiB,
/// so that writing all panels depth by depth spreads over the cache's sets.
const OWN_PANEL_STEP: usize = BLOCK_DEPTH * MAX_PANEL + 32;

/// Floats that one packed block of B needs at most (panels are at least 16 wide).
pub(super) const BLOCK_ROOM: usize = OWN_PANEL_STEP * (BLOCK_COLUMNS / 16);

/// The widest panel, the longest vector and the tallest tile of any instruction set.
const MAX_PANEL: usize = 32;
const MAX_LANES: usize = 16;
const MAX_ROWS: usize = 12;

/// `C = start + A · B` by address.
#[derive(Clone, Copy)]
pub(super) struct Product {
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) depth: usize,
    pub(super) a: Operand,
    pub(super) b: Operand,
    pub(super) c: *mut f32,
    pub(super) c_row: usize,
    pub(super) start: TileStart,
}

// SAFETY: the addresses stand for borrows that the public functions hold while tasks run; tasks
// write disjoint parts of C.
unsafe impl Send for Product {}
// SAFETY: as above.
unsafe impl Sync for Product {}

impl Product {
    /// What the tile at this column and depth block starts from.
    #[inline(always)]
    fn start_at(&self, column: usize, from: usize) -> TileStart {
        match self.start {
            _ if from > 0 => TileStart::Scaled(1.0),
            // SAFETY: the bias has one element per column, and column < cols.
            TileStart::Bias(bias) => TileStart::Bias(unsafe { bias.add(column) }),
            scaled @ TileStart::Scaled(_) => scaled,
        }
    }

    /// # Safety
    /// The element must lie inside C.
    #[inline(always)]
    unsafe fn c_at(&self, row: usize, column: usize) -> *mut f32 {
        // SAFETY: inside C's allocation, as the caller promises.
        unsafe { self.c.add(row * self.c_row + column) }
    }
}

/// Scratch on the stack, aligned to cache lines.
#[repr(align(64))]
struct Aligned<const N: usize>([MaybeUninit<f32>; N]);

impl<const N: usize> Aligned<N> {
    #[inline(always)]
    fn new() -> Self {
        Self([MaybeUninit::uninit(); N])
    }

    #[inline(always)]
    fn pointer(&mut self) -> *mut f32 {
        self.0.as_mut_ptr().cast()
    }
}

/// The depth blocks of a product; an empty depth is one empty block, so that C gets its start.
#[inline(always)]
fn depth_block(total: usize, block: usize) -> (usize, usize) {
    let from = block * BLOCK_DEPTH;
    (from, (total - from).min(BLOCK_DEPTH))
}

#[inline(always)]
fn depth_blocks(total: usize) -> usize {
    total.div_ceil(BLOCK_DEPTH).max(1)
}

/// A product on the calling thread without copies of A or of a row-major B.
pub(super) struct SmallProduct(pub(super) Product);

impl Kernel for SmallProduct {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let product = self.0;
        let width = 2 * S::LANES;
        let mut panel = Aligned::<{ BLOCK_DEPTH * MAX_PANEL }>::new();
        for column in (0..product.cols).step_by(width) {
            let cols = width.min(product.cols - column);
            for block in 0..depth_blocks(product.depth) {
                let (from, depth) = depth_block(product.depth, block);
                // SAFETY: column < cols and from < depth (or both blocks are empty); the scratch
                // holds BLOCK_DEPTH rows of the widest panel.
                let (b, b_depth) = unsafe {
                    if product.b.outer_step == 1 {
                        (product.b.at(column, from), product.b.depth_step)
                    } else {
                        let target = panel.pointer();
                        pack_panel(simd, product.b, (column, cols), (from, depth), target);
                        (target.cast_const(), width)
                    }
                };
                let start = product.start_at(column, from);
                for row in (0..product.rows).step_by(S::TILE_ROWS) {
                    let rows = S::TILE_ROWS.min(product.rows - row);
                    // SAFETY: row and column are inside the product; Product's maker promised that
                    // all operands are valid for its shape.
                    unsafe {
                        let tile = Tile {
                            depth,
                            a: product.a.at(row, from),
                            a_row: product.a.outer_step,
                            a_depth: product.a.depth_step,
                            b,
                            b_depth,
                            c: product.c_at(row, column),
                            c_row: product.c_row,
                            start,
                        };
                        any_tile(simd, &tile, rows, cols);
                    }
                }
            }
        }
    }
}

/// Packs panels of B: panel p is all depths of columns `p·width ..`, at `p · depth · width`.
pub(super) struct PackPanels {
    pub(super) product: Product,
    pub(super) panels: Range<usize>,
    pub(super) target: *mut f32,
}

impl Kernel for PackPanels {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { product, panels, target } = self;
        let width = 2 * S::LANES;
        for panel in panels {
            let column = panel * width;
            let cols = width.min(product.cols - column);
            // SAFETY: the columns are inside B, and the target has room for every panel.
            unsafe {
                let target = target.add(panel * product.depth * width);
                pack_panel(simd, product.b, (column, cols), (0, product.depth), target);
            }
        }
    }
}

/// How wide the panels of this instruction set are.
pub(super) struct PanelWidth;

impl Kernel for PanelWidth {
    type Output = usize;

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> usize {
        2 * S::LANES
    }
}

/// Where a task of a large product finds B.
#[derive(Clone, Copy)]
pub(super) enum Panels {
    /// All of B, packed by [`PackPanels`] for all tasks.
    Shared(*const f32),
    /// Room for [`BLOCK_ROOM`] floats: the task packs block after block itself. Worth
    /// it when a task has many rows: the packed block then never leaves the cache.
    Own(*mut f32),
}

/// One task of a large product: a block of C.
pub(super) struct LargeProduct {
    pub(super) product: Product,
    pub(super) panels: Panels,
    pub(super) rows: Range<usize>,
    /// Starts at a multiple of the panel width.
    pub(super) cols: Range<usize>,
}

impl Kernel for LargeProduct {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let mut scratch = PackedRows::new();
        let by_rows = self.product.a.depth_step == 1;
        let step = if by_rows { S::TILE_ROWS } else { DEPTH_GROUPS * S::TILE_ROWS };
        for column in self.cols.clone().step_by(BLOCK_COLUMNS) {
            let columns = column..self.cols.end.min(column + BLOCK_COLUMNS);
            for block in 0..depth_blocks(self.product.depth) {
                let depths = depth_block(self.product.depth, block);
                let b = self.packed_block(simd, columns.clone(), depths);
                for row in self.rows.clone().step_by(step) {
                    let rows = step.min(self.rows.end - row);
                    self.pack_a(simd, (row, rows), depths, scratch.pointer());
                    let groups = rows.div_ceil(S::TILE_ROWS);
                    let next = Upcoming { row: row + step, rows: step.min(self.rows.end.saturating_sub(row + step)) };
                    for (group, first) in (0..rows).step_by(S::TILE_ROWS).enumerate() {
                        let rows = (row + first, S::TILE_ROWS.min(rows - first));
                        // SAFETY: the scratch has room for DEPTH_GROUPS groups.
                        let a = unsafe { scratch.pointer().add(group * GROUP_ROOM) };
                        let (index, count) = (group, groups);
                        let group = Group { rows, columns: columns.clone(), depths, a, b, index, count };
                        self.row_of_tiles(simd, &group, next);
                    }
                }
            }
        }
    }
}

/// Room for one packed group of rows, in either layout; off a multiple of 4 KiB like
/// [`OWN_PANEL_STEP`].
const GROUP_ROOM: usize = MAX_LANES * PACKED_ROW;
const _: () = assert!(MAX_ROWS <= MAX_LANES && PACKED_ROW > BLOCK_DEPTH);

type PackedRows = Aligned<{ DEPTH_GROUPS * GROUP_ROOM }>;

/// One group of rows in one block of columns and depths.
struct Group {
    /// First row and number of rows.
    rows: (usize, usize),
    columns: Range<usize>,
    /// First depth and number of depths.
    depths: (usize, usize),
    /// The group's rows of A, packed.
    a: *const f32,
    b: PackedBlock,
    /// Which of how many groups that were packed together.
    index: usize,
    count: usize,
}

/// A packed block of B: its first panel at the block's first depth, and the distance of panels.
#[derive(Clone, Copy)]
struct PackedBlock {
    first: *const f32,
    panel_step: usize,
}

impl LargeProduct {
    /// Finds or packs the block of B at these columns and depths.
    #[inline(always)]
    fn packed_block<S: Simd>(&self, simd: S, columns: Range<usize>, (from, depth): (usize, usize)) -> PackedBlock {
        let (product, width) = (&self.product, 2 * S::LANES);
        match self.panels {
            Panels::Shared(panels) => PackedBlock {
                // SAFETY: panels of all columns, `depth · width` floats each, were packed.
                first: unsafe { panels.add(columns.start * product.depth + from * width) },
                panel_step: product.depth * width,
            },
            Panels::Own(room) => {
                let parts = (columns.start, columns.len());
                let target = (room, OWN_PANEL_STEP);
                // SAFETY: the columns and depths are inside B, and a block has room for its panels;
                // B is row-major where tasks pack it themselves.
                let whole = unsafe { pack_whole_panels(simd, product.b, parts, (from, depth), target) };
                let column = columns.start + whole * width;
                if column < columns.end {
                    let rest = (column, columns.end - column);
                    // SAFETY: as above, for the last, narrower panel.
                    unsafe {
                        let target = room.add(whole * OWN_PANEL_STEP);
                        pack_panel(simd, product.b, rest, (from, depth), target);
                    }
                }
                PackedBlock { first: room, panel_step: OWN_PANEL_STEP }
            }
        }
    }

    /// Packs one group of A's rows, or several where A is walked by depth.
    #[inline(always)]
    fn pack_a<S: Simd>(&self, simd: S, rows: (usize, usize), depths: (usize, usize), target: *mut f32) {
        let a = self.product.a;
        // SAFETY: the rows and depths are inside A; the target has room for DEPTH_GROUPS groups.
        unsafe {
            if a.depth_step == 1 {
                pack_rows(simd, a, rows, depths, target);
            } else {
                pack_depths(simd, a, rows, depths, (target, GROUP_ROOM));
            }
        }
    }

    /// All tiles of one group of rows.
    #[inline(always)]
    fn row_of_tiles<S: Simd>(&self, simd: S, group: &Group, next: Upcoming) {
        let product = &self.product;
        let width = 2 * S::LANES;
        let ((row, rows), (from, depth)) = (group.rows, group.depths);
        let by_rows = product.a.depth_step == 1;
        let panels = group.columns.len().div_ceil(width);
        for (panel, column) in group.columns.clone().step_by(width).enumerate() {
            let part = group.index * panels + panel;
            next.prefetch(simd, product.a, group.depths, (part, group.count * panels));
            let cols = width.min(product.cols - column);
            // SAFETY: the tile is inside C; B's panel is packed to its full width; packed A holds
            // `rows` rows of `depth` numbers.
            unsafe {
                let tile = Tile {
                    depth,
                    a: group.a,
                    a_row: if by_rows { PACKED_ROW } else { 1 },
                    a_depth: if by_rows { 1 } else { S::LANES },
                    b: group.b.first.add(panel * group.b.panel_step),
                    b_depth: width,
                    c: product.c_at(row, column),
                    c_row: product.c_row,
                    start: product.start_at(column, from),
                };
                if cols < width || rows < S::TILE_ROWS {
                    any_tile(simd, &tile, rows, cols);
                } else {
                    whole_tile(simd, &tile, by_rows);
                }
            }
        }
    }
}

/// The rows of A that are packed next.
#[derive(Clone, Copy)]
struct Upcoming {
    row: usize,
    rows: usize,
}

impl Upcoming {
    /// Asks for part `part` of `parts` of these rows: spread over the tiles before them, so that
    /// packing does not wait for memory and memory does not wait for arithmetic.
    #[inline(always)]
    fn prefetch<S: Simd>(self, simd: S, a: Operand, (from, depth): (usize, usize), (part, parts): (usize, usize)) {
        const LINE: usize = 16;
        let (outer, inner) = if a.depth_step == 1 { (self.rows, depth) } else { (depth, self.rows) };
        for i in part * outer / parts..(part + 1) * outer / parts {
            for j in (0..inner).step_by(LINE) {
                let (row, k) = if a.depth_step == 1 { (i, j) } else { (j, i) };
                simd.prefetch_far(a.at(self.row + row, from + k));
            }
        }
    }
}
