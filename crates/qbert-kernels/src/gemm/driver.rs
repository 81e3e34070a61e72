//! Cuts a product into blocks that fit the caches and runs the micro-kernel over them.
//!
//! Two ways: [`SmallProduct`] for the many small products of attention (nothing is copied except a
//! transposed B), and [`LargeProduct`] for linear layers (B packed once and shared by all tasks).

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::element::{Element, Single};
use super::emulated::Smallest;
use super::micro::{Begun, MicroKernel, TileSize};
use super::pack::{
    BLOCK_STEPS, DEPTH_GROUPS, PACKED_ROW, PartTarget, pack_depths, pack_depths_to_rows, pack_panel, pack_rows,
    pack_whole_panels, panel_width,
};
use super::product::{Operand, Product};
use super::tile::{PackedBy, Tile, any_tile};
use crate::simd::{Kernel, MAX_LANES, MAX_TILE_ROWS, Simd};

/// Columns of B that are processed together: `BLOCK_STEPS` times this fits the second-level cache. A multiple of every
/// panel.
pub(super) const BLOCK_COLUMNS: usize = 384;
const _: () = assert!(BLOCK_COLUMNS.is_multiple_of(2 * MAX_LANES));

/// Distance of panels in a block that a task packs itself: two cache lines off a multiple of 4 KiB,
/// so that writing all panels depth by depth spreads over the cache's sets.
const fn own_panel_step<S: Simd>() -> usize {
    BLOCK_STEPS * panel_width::<S>() + 32
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

/// A block of steps; an empty depth is one empty block, so that C gets its start.
#[inline(always)]
fn block_of_steps(total: usize, block: usize) -> Range<usize> {
    let from = block * BLOCK_STEPS;
    from..total.min(from + BLOCK_STEPS)
}

#[inline(always)]
fn blocks_of_steps(total: usize) -> usize {
    total.div_ceil(BLOCK_STEPS).max(1)
}

/// Steps of a product with the padding that the micro-kernel asks for.
#[inline(always)]
fn padded_steps<M: MicroKernel>(product: &Product<'_>) -> usize {
    product.steps::<M::Element>().next_multiple_of(M::STEPS)
}

/// A whole product on the calling thread without copies of A or of a row-major B.
pub(super) struct SmallProduct<'a>(pub(super) Product<'a>);

impl Kernel for SmallProduct<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let product = self.0;
        let width = panel_width::<S>();
        let mut panel = Aligned::<{ BLOCK_STEPS * 2 * MAX_LANES }>::new();
        for column in (0..product.cols()).step_by(width) {
            let cols = width.min(product.cols() - column);
            for block in 0..blocks_of_steps(product.steps::<Single>()) {
                let steps = block_of_steps(product.steps::<Single>(), block);
                let (from, count) = (steps.start, steps.len());
                // SAFETY: the columns and steps are inside B (or the steps are empty); the scratch holds
                // BLOCK_STEPS rows of the widest panel.
                let (b, b_depth) = unsafe {
                    if product.b().outer_step == 1 {
                        (product.b().at(column, from), product.b().depth_step)
                    } else {
                        let target = panel.pointer();
                        pack_panel::<S, Single>(simd, product.b(), column..column + cols, steps, target);
                        (target.cast_const(), width)
                    }
                };
                let start = product.start_at(column, from);
                for row in (0..product.rows()).step_by(S::TILE_ROWS) {
                    let rows = S::TILE_ROWS.min(product.rows() - row);
                    let tile = Tile {
                        steps: count,
                        a: product.a().at(row, from),
                        a_row: product.a().outer_step,
                        a_depth: product.a().depth_step,
                        b,
                        b_depth,
                        b_smallest: Smallest::UNKNOWN,
                        c: product.c_at(row, column),
                        c_row: product.c_row(),
                        start,
                    };
                    // SAFETY: the tile is inside the product, whose C this kernel alone writes.
                    unsafe { any_tile::<S, Single>(simd, &tile, rows, cols) };
                }
            }
        }
    }
}

/// Packs panel `panel` of B, all depths of its columns, for all tasks of a large product.
pub(super) struct PackPanel<'a, M> {
    pub(super) product: &'a Product<'a>,
    pub(super) panel: usize,
    /// As long as [`Sizes::panel`] says.
    pub(super) target: &'a mut [f32],
    pub(super) micro: PhantomData<M>,
}

impl<M: MicroKernel> Kernel for PackPanel<'_, M> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { product, panel, target, .. } = self;
        let (width, steps) = (panel_width::<S>(), product.steps::<M::Element>());
        let columns = panel * width..product.cols().min((panel + 1) * width);
        let room = padded_steps::<M>(product) * width;
        assert!(!columns.is_empty() && target.len() == room, "no room for panel {panel}");
        // SAFETY: the columns are inside B, and the target has room for one panel of all steps.
        unsafe { pack_panel::<S, M::Element>(simd, product.b(), columns, 0..steps, target.as_mut_ptr()) };
        target[steps * width..].fill(0.0);
    }
}

/// How much scratch memory a product needs, in elements.
pub(super) struct Sizes {
    /// Columns of a panel.
    pub(super) panel_width: usize,
    /// One panel of all depths.
    pub(super) panel: usize,
    /// One block of panels that a task packs itself.
    pub(super) own_block: usize,
}

/// The [`Sizes`] of a product.
pub(super) struct SizesOf<'a, M> {
    pub(super) product: &'a Product<'a>,
    pub(super) micro: PhantomData<M>,
}

impl<M: MicroKernel> Kernel for SizesOf<'_, M> {
    type Output = Sizes;

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> Sizes {
        let panel_width = panel_width::<S>();
        let own_block = own_panel_step::<S>() * (BLOCK_COLUMNS / panel_width);
        Sizes { panel_width, panel: padded_steps::<M>(self.product) * panel_width, own_block }
    }
}

/// Where a task of a large product finds B.
pub(super) enum Panels<'a> {
    /// All of B, packed by [`PackPanel`] for all tasks.
    Shared(&'a [f32]),
    /// Room for [`Sizes::own_block`] elements: the task packs block after block itself. Worth it when a task has many
    /// rows: the packed block then never leaves the cache.
    Own(&'a mut [f32]),
}

/// One task of a large product: a block of C.
pub(super) struct LargeProduct<'a, M> {
    product: &'a Product<'a>,
    panels: Panels<'a>,
    rows: Range<usize>,
    cols: Range<usize>,
    micro: M,
}

impl<'a, M: MicroKernel> LargeProduct<'a, M> {
    /// The block of C at these rows and columns; the columns start at a multiple of the panel width.
    ///
    /// # Safety
    /// No other thread may use this block of C until the kernel has run.
    ///
    /// # Panics
    /// When C has no such block.
    pub(super) unsafe fn new(
        micro: M,
        product: &'a Product<'a>,
        panels: Panels<'a>,
        rows: Range<usize>,
        cols: Range<usize>,
    ) -> Self {
        assert!(rows.end <= product.rows() && cols.end <= product.cols(), "block {rows:?} × {cols:?} is outside of C");
        // Tasks that pack B themselves read it by rows.
        assert!(matches!(panels, Panels::Shared(_)) || product.b().outer_step == 1, "B is not row-major");
        Self { product, panels, rows, cols, micro }
    }
}

impl<M: MicroKernel> Kernel for LargeProduct<'_, M> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        self.check_panels::<S>();
        let _begun = Begun::new(self.micro);
        let mut scratch = PackedRows::new();
        let by_rows = self.product.a().depth_step == 1;
        let rows_at_once = if by_rows { M::TILE_ROWS } else { depth_groups::<M>() * M::TILE_ROWS };
        let total = self.product.steps::<M::Element>();
        for column in self.cols.clone().step_by(BLOCK_COLUMNS) {
            let columns = column..self.cols.end.min(column + BLOCK_COLUMNS);
            for block in 0..blocks_of_steps(total) {
                let steps = block_of_steps(total, block);
                let b = self.packed_block(simd, columns.clone(), steps.clone());
                for row in self.rows.clone().step_by(rows_at_once) {
                    let rows = row..self.rows.end.min(row + rows_at_once);
                    let packed = self.pack_a(simd, rows.clone(), steps.clone(), scratch.pointer());
                    let count = rows.len().div_ceil(M::TILE_ROWS);
                    let next = rows.end..self.rows.end.min(rows.end + rows_at_once);
                    for (index, first) in rows.clone().step_by(M::TILE_ROWS).enumerate() {
                        let rows = first..rows.end.min(first + M::TILE_ROWS);
                        // SAFETY: the scratch has room for all groups that are packed together.
                        let a = unsafe { packed.address.add(index * packed.step) };
                        let (columns, steps) = (columns.clone(), steps.clone());
                        self.row_of_tiles(simd, &Group { rows, columns, steps, a, b, index, count }, next.clone());
                    }
                }
            }
        }
    }
}

/// Room for one packed group of rows, in either layout; off a multiple of 4 KiB like
/// [`own_panel_step`].
const fn group_room<M: MicroKernel>() -> usize {
    M::TILE_ROWS.next_multiple_of(MAX_LANES) * PACKED_ROW
}

/// Groups that are packed together where A is read by depth: [`DEPTH_GROUPS`], or fewer if they are taller.
const fn depth_groups<M: MicroKernel>() -> usize {
    let (room, own) = (DEPTH_GROUPS * MOST_REGISTER_ROWS * PACKED_ROW, group_room::<M>());
    if room / own < DEPTH_GROUPS { room / own } else { DEPTH_GROUPS }
}

/// Rows of a packed group for tiles in registers.
const MOST_REGISTER_ROWS: usize = MAX_TILE_ROWS.next_multiple_of(MAX_LANES);

type PackedRows = Aligned<{ DEPTH_GROUPS * MOST_REGISTER_ROWS * PACKED_ROW }>;

/// One group of rows in one block of columns and steps.
struct Group {
    rows: Range<usize>,
    columns: Range<usize>,
    steps: Range<usize>,
    /// The group's rows of A, packed.
    a: *const f32,
    b: PackedBlock,
    /// Which of how many groups that were packed together.
    index: usize,
    count: usize,
}

/// A packed block of B: its first panel at the block's first step, and the distance of panels.
#[derive(Clone, Copy)]
struct PackedBlock {
    first: *const f32,
    panel_step: usize,
    smallest: Smallest,
}

impl<M: MicroKernel> LargeProduct<'_, M> {
    /// Checks that the panels are as long as this instruction set needs them.
    #[inline(always)]
    fn check_panels<S: Simd>(&self) {
        let (width, found) = (
            panel_width::<S>(),
            match &self.panels {
                Panels::Shared(panels) => panels.len(),
                Panels::Own(room) => room.len(),
            },
        );
        let needed = match self.panels {
            Panels::Shared(_) => self.product.cols().next_multiple_of(width) * padded_steps::<M>(self.product),
            Panels::Own(_) => own_panel_step::<S>() * (BLOCK_COLUMNS / width),
        };
        assert!(self.cols.start.is_multiple_of(width), "a block from column {} on", self.cols.start);
        assert!(found >= needed, "{found} elements of panels, {needed} are needed");
    }

    /// The block of B at these columns and steps.
    #[inline(always)]
    fn packed_block<S: Simd>(&mut self, simd: S, columns: Range<usize>, steps: Range<usize>) -> PackedBlock {
        let (panels, elements) = (columns.len().div_ceil(panel_width::<S>()), steps.len() * panel_width::<S>());
        let (first, panel_step) = self.find_or_pack(simd, columns, steps);
        let mut smallest = Smallest::UNKNOWN;
        if M::WANTS_SMALLEST {
            smallest = Smallest::NONE;
            for panel in 0..panels {
                // SAFETY: a panel has that many elements at the block's steps.
                let panel = unsafe { std::slice::from_raw_parts(first.add(panel * panel_step), elements) };
                smallest = smallest.min(Smallest::of_pairs(panel));
            }
        }
        PackedBlock { first, panel_step, smallest }
    }

    /// The address of that block's first panel, and the distance of panels.
    #[inline(always)]
    fn find_or_pack<S: Simd>(&mut self, simd: S, columns: Range<usize>, steps: Range<usize>) -> (*const f32, usize) {
        let (b, all, width) = (self.product.b(), padded_steps::<M>(self.product), panel_width::<S>());
        match &mut self.panels {
            Panels::Shared(panels) => {
                // SAFETY: panels of all columns, `all · width` elements each, were packed.
                (unsafe { panels.as_ptr().add(columns.start * all + steps.start * width) }, all * width)
            }
            Panels::Own(room) => {
                let (address, step) = (room.as_mut_ptr(), own_panel_step::<S>());
                let target = PartTarget { address, step };
                // SAFETY: the columns and steps are inside B, and a block has room for its panels;
                // B is row-major, as `new` checked.
                let whole =
                    unsafe { pack_whole_panels::<S, M::Element>(simd, b, columns.clone(), steps.clone(), target) };
                let rest = columns.start + whole * width..columns.end;
                if !rest.is_empty() {
                    // SAFETY: as above, for the last, narrower panel.
                    unsafe { pack_panel::<S, M::Element>(simd, b, rest, steps.clone(), address.add(whole * step)) };
                }
                let missing = steps.len().next_multiple_of(M::STEPS) - steps.len();
                if missing > 0 {
                    for panel in 0..columns.len().div_ceil(width) {
                        // SAFETY: a panel has room for a block of steps, which is a multiple of the padding.
                        unsafe { address.add(panel * step + steps.len() * width).write_bytes(0, missing * width) };
                    }
                }
                (address.cast_const(), step)
            }
        }
    }

    /// Packs one group of A's rows, or several where A is read by depth. The target has room for [`depth_groups`].
    #[inline(always)]
    fn pack_a<S: Simd>(&self, simd: S, rows: Range<usize>, steps: Range<usize>, address: *mut f32) -> PartTarget {
        let (a, target) = (self.product.a(), PartTarget { address, step: group_room::<M>() });
        // SAFETY: the rows and steps are inside A; the target has room for all groups, which follow each other row by row
        // where they are packed by rows only.
        unsafe {
            if a.depth_step == 1 {
                pack_rows::<S, M::Element>(simd, a, rows, steps, address);
            } else if M::ROWS_ONLY {
                const { assert!(!M::ROWS_ONLY || M::TILE_ROWS.is_multiple_of(MAX_LANES)) };
                pack_depths_to_rows::<S, M::Element>(simd, a, rows, steps, address);
            } else {
                pack_depths::<S, M::Element>(simd, a, rows, steps, target);
            }
        }
        target
    }

    /// All tiles of one group of rows; `next` are the rows that are packed after this group.
    #[inline(always)]
    fn row_of_tiles<S: Simd>(&self, simd: S, group: &Group, next: Range<usize>) {
        let product = self.product;
        let (width, rows) = (panel_width::<S>(), group.rows.len());
        let packed_by = if product.a().depth_step == 1 || M::ROWS_ONLY { PackedBy::Rows } else { PackedBy::Depths };
        let panels = group.columns.len().div_ceil(width);
        let per_step = M::Element::DEPTHS;
        let depths = group.steps.start * per_step..product.depth().min(group.steps.end * per_step);
        let upcoming = Upcoming { a: product.a(), rows: next, depths };
        for (panel, column) in group.columns.clone().step_by(width).enumerate() {
            upcoming.prefetch(simd, group.index * panels + panel, group.count * panels);
            let cols = width.min(product.cols() - column);
            // SAFETY: the tile is inside the block of C that is this task's own; B's panel is packed to its full
            // width; packed A holds `rows` rows of all steps; `run` has begun.
            unsafe {
                let tile = Tile {
                    steps: group.steps.len(),
                    a: group.a,
                    a_row: packed_by.row_step(),
                    a_depth: packed_by.depth_step::<S>(),
                    b: group.b.first.add(panel * group.b.panel_step),
                    b_depth: width,
                    b_smallest: group.b.smallest,
                    c: product.c_at(group.rows.start, column),
                    c_row: product.c_row(),
                    start: product.start_at(column, group.steps.start),
                };
                self.micro.multiply(simd, &tile, TileSize { rows, cols }, packed_by);
            }
        }
    }
}

/// The part of A that is packed next.
struct Upcoming<'a> {
    a: Operand<'a>,
    rows: Range<usize>,
    depths: Range<usize>,
}

impl Upcoming<'_> {
    /// Prefetches part `part` of `parts` of these rows: spread over the tiles before them, so that packing does not wait
    /// for memory and memory does not wait for arithmetic.
    #[inline(always)]
    fn prefetch<S: Simd>(&self, simd: S, part: usize, parts: usize) {
        const LINE: usize = 16;
        let by_rows = self.a.depth_step == 1;
        let (rows, depths) = (self.rows.len(), self.depths.len());
        let (outer, inner) = if by_rows { (rows, depths) } else { (depths, rows) };
        for i in part * outer / parts..(part + 1) * outer / parts {
            for j in (0..inner).step_by(LINE) {
                let (row, depth) = if by_rows { (i, j) } else { (j, i) };
                simd.prefetch_far(self.a.at(self.rows.start + row, self.depths.start + depth));
            }
        }
    }
}
