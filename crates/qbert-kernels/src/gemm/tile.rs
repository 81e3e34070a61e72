//! The micro-kernel: one tile of C in registers, the whole depth in one loop.
//!
//! Every element of a tile is `start + Σ_k a·b` with k ascending and one accumulator, whatever the
//! tile's size: results do not depend on how a matrix is cut into tiles.

use std::marker::PhantomData;

use super::element::Element;
use super::emulated::Smallest;
use super::pack::{PACKED_ROW, depth_width};
use crate::simd::{Kernel, MAX_TILE_ROWS, Simd};

/// What a tile of C starts from.
#[derive(Clone, Copy)]
pub(super) enum TileStart {
    /// `factor · C`; with factor 0, C is not read.
    Scaled(f32),
    /// One number per column, the same for all rows; readable for the tile's columns.
    Bias(*const f32),
}

/// One tile `C[rows × cols] = start + A · B` by address.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    pub(super) steps: usize,
    pub(super) a: *const f32,
    /// Elements between `a[i][k]` and `a[i + 1][k]`.
    pub(super) a_row: usize,
    /// Elements between `a[i][k]` and `a[i][k + 1]`.
    pub(super) a_depth: usize,
    pub(super) b: *const f32,
    /// Elements between `b[k][j]` and `b[k + 1][j]`; columns are adjacent.
    pub(super) b_depth: usize,
    /// Nothing in B but zeros is smaller in magnitude, where the micro-kernel asks for it.
    pub(super) b_smallest: Smallest,
    pub(super) c: *mut f32,
    pub(super) c_row: usize,
    pub(super) start: TileStart,
}

impl Tile {
    /// Writes the first `count` sums at a row and a column of C, added to what the tile starts from: what
    /// [`RegisterTile`] does for whole tiles.
    ///
    /// # Safety
    /// `count` elements of C there must be readable and writable, and those of a bias readable.
    #[inline(always)]
    pub(super) unsafe fn write<S: Simd>(&self, simd: S, (row, column): (usize, usize), count: usize, sum: S::F32) {
        // SAFETY: passed on from the caller.
        unsafe {
            let c = self.c.add(row * self.c_row + column);
            let value = match self.start {
                TileStart::Scaled(0.0) => sum,
                TileStart::Scaled(1.0) => simd.add(sum, simd.load_first_ptr(c, count)),
                TileStart::Scaled(factor) => simd.mul_add(simd.splat(factor), simd.load_first_ptr(c, count), sum),
                TileStart::Bias(bias) => simd.add(sum, simd.load_first_ptr(bias.add(column), count)),
            };
            simd.store_first_ptr(c, count, value);
        }
    }
}

/// How A was packed, which fixes its strides at compile time.
#[derive(Clone, Copy)]
pub(super) enum PackedBy {
    /// Rows of [`PACKED_ROW`] elements.
    Rows,
    /// Steps of [`depth_width`] elements.
    Depths,
}

impl PackedBy {
    /// Elements between rows.
    #[inline(always)]
    pub(super) fn row_step(self) -> usize {
        match self {
            Self::Rows => PACKED_ROW,
            Self::Depths => 1,
        }
    }

    /// Elements between depths.
    #[inline(always)]
    pub(super) fn depth_step<S: Simd>(self) -> usize {
        match self {
            Self::Rows => 1,
            Self::Depths => depth_width::<S>(),
        }
    }
}

/// [`RegisterTile`]'s kinds of A: at the tile's own strides, or packed in one of two ways.
const ANY: u8 = 0;
const BY_ROWS: u8 = 1;
const BY_DEPTHS: u8 = 2;

/// A tile of `ROWS` rows and `cols` columns in `VECTORS` vectors: `cols == VECTORS·LANES`, unless
/// `PARTIAL`. `A` is the kind of A; the strides of packed ones are constants in the loop.
struct RegisterTile<'a, E, const ROWS: usize, const VECTORS: usize, const PARTIAL: bool, const A: u8> {
    tile: &'a Tile,
    cols: usize,
    element: PhantomData<E>,
}

impl<'a, E: Element, const ROWS: usize, const VECTORS: usize, const PARTIAL: bool, const A: u8>
    RegisterTile<'a, E, ROWS, VECTORS, PARTIAL, A>
{
    /// # Safety
    /// The tile's addresses must be valid for `ROWS × cols` elements of C, which overlaps neither A nor B, and no
    /// other thread may use C at the same time. `cols` must need `VECTORS` vectors. A must be packed as `A` says.
    #[inline(always)]
    unsafe fn new(tile: &'a Tile, cols: usize) -> Self {
        Self { tile, cols, element: PhantomData }
    }
}

impl<E: Element, const ROWS: usize, const VECTORS: usize, const PARTIAL: bool, const A: u8> Kernel
    for RegisterTile<'_, E, ROWS, VECTORS, PARTIAL, A>
{
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { tile, cols, .. } = self;
        let (a_row, a_depth) = match A {
            BY_ROWS => (PackedBy::Rows.row_step(), PackedBy::Rows.depth_step::<S>()),
            BY_DEPTHS => (PackedBy::Depths.row_step(), PackedBy::Depths.depth_step::<S>()),
            _ => (tile.a_row, tile.a_depth),
        };
        let last = cols - (VECTORS - 1) * S::LANES;
        let partial = |vector: usize| PARTIAL && vector + 1 == VECTORS;
        for row in 0..ROWS {
            // C is needed only after the loop over the depth, so there is time to fetch it.
            for vector in 0..VECTORS {
                simd.prefetch(tile.c.wrapping_add(row * tile.c_row + vector * S::LANES));
            }
        }
        let mut sums = [[simd.splat(0.0); VECTORS]; ROWS];
        let (mut a, mut b) = (tile.a, tile.b);
        for _ in 0..tile.steps {
            // SAFETY: the maker of the tile promised ROWS × steps elements of A and steps × cols
            // of B at these strides.
            unsafe {
                let mut columns = [simd.splat(0.0); VECTORS];
                for (vector, column) in columns.iter_mut().enumerate() {
                    *column = load(simd, b.add(vector * S::LANES), partial(vector), last);
                }
                for (row, sums) in sums.iter_mut().enumerate() {
                    let value = simd.splat(*a.add(row * a_row));
                    for (sum, &column) in sums.iter_mut().zip(&columns) {
                        *sum = E::add_products(simd, value, column, *sum);
                    }
                }
                a = a.wrapping_add(a_depth);
                b = b.wrapping_add(tile.b_depth);
            }
        }
        // One small loop per kind of start, rather than one loop with a choice inside: the compiler must unroll it
        // completely, or the sums end up in memory instead of registers.
        macro_rules! finish {
            (|$sum:ident, $c:ident, $vector:ident| $value:expr) => {
                for (row, sums) in sums.iter().enumerate() {
                    for ($vector, &$sum) in sums.iter().enumerate() {
                        // SAFETY: the maker of the tile promised ROWS × cols elements of C and cols
                        // of the bias.
                        unsafe {
                            let $c = tile.c.add(row * tile.c_row + $vector * S::LANES);
                            let value = $value;
                            if partial($vector) {
                                simd.store_first_ptr($c, last, value);
                            } else {
                                simd.store_ptr($c, value);
                            }
                        }
                    }
                }
            };
        }
        match tile.start {
            TileStart::Scaled(0.0) => finish!(|sum, c, vector| sum),
            TileStart::Scaled(1.0) => {
                finish!(|sum, c, vector| simd.add(sum, load(simd, c, partial(vector), last)));
            }
            TileStart::Scaled(factor) => {
                let factor = simd.splat(factor);
                finish!(|sum, c, vector| simd.mul_add(factor, load(simd, c, partial(vector), last), sum));
            }
            TileStart::Bias(bias) => {
                finish!(|sum, c, vector| {
                    let from = bias.add(vector * S::LANES);
                    simd.add(sum, load(simd, from, partial(vector), last))
                });
            }
        }
    }
}

/// A whole vector, or only its first `count` numbers.
///
/// # Safety
/// That many numbers must be readable.
#[inline(always)]
unsafe fn load<S: Simd>(simd: S, from: *const f32, partial: bool, count: usize) -> S::F32 {
    // SAFETY: passed on from the caller.
    unsafe { if partial { simd.load_first_ptr(from, count) } else { simd.load_ptr(from) } }
}

/// A tile of the instruction set's full size over packed A.
///
/// # Safety
/// As [`any_tile`] with `TILE_ROWS × 2·LANES`; A is packed as `packed_by` says.
#[inline(always)]
pub(super) unsafe fn whole_tile<S: Simd, E: Element>(simd: S, tile: &Tile, packed_by: PackedBy) {
    let cols = 2 * S::LANES;
    macro_rules! by_rows {
        ($($count:literal)*) => {
            match packed_by {
                // The condition is constant: one height per instruction set is compiled in.
                // SAFETY: passed on from the caller.
                $(PackedBy::Rows if $count == S::TILE_ROWS => simd.vectorize_apart(unsafe {
                    RegisterTile::<E, $count, 2, false, BY_ROWS>::new(tile, cols)
                }),
                // SAFETY: passed on from the caller.
                PackedBy::Depths if $count == S::TILE_ROWS => simd.vectorize_apart(unsafe {
                    RegisterTile::<E, $count, 2, false, BY_DEPTHS>::new(tile, cols)
                }),)*
                _ => unreachable!("tile of {} rows", S::TILE_ROWS),
            }
        };
    }
    by_rows!(1 2 3 4 5 6 7 8 9 10 11 12);
}

/// A tile of `1..=TILE_ROWS` rows and `1..=2·LANES` columns at any strides.
///
/// # Safety
/// The tile's addresses must be valid for `rows × cols`, C must overlap neither A nor B, and no other thread may use C
/// at the same time.
#[inline(always)]
pub(super) unsafe fn any_tile<S: Simd, E: Element>(simd: S, tile: &Tile, rows: usize, cols: usize) {
    macro_rules! apart {
        ($rows:literal, $vectors:literal, $partial:literal) => {{
            // SAFETY: passed on from the caller; the branch fits the columns.
            let tile = unsafe { RegisterTile::<E, $rows, $vectors, $partial, ANY>::new(tile, cols) };
            simd.vectorize_apart(tile)
        }};
    }
    macro_rules! by_rows {
        ($($count:literal)*) => {
            match rows {
                // The condition is constant per instruction set: tiles too tall for its registers
                // are not compiled in.
                $($count if $count <= S::TILE_ROWS => match (cols > S::LANES, cols % S::LANES > 0) {
                    (true, false) => apart!($count, 2, false),
                    (true, true) => apart!($count, 2, true),
                    (false, false) => apart!($count, 1, false),
                    (false, true) => apart!($count, 1, true),
                },)*
                _ => unreachable!("tile of {rows} rows"),
            }
        };
    }
    assert!((1..=2 * S::LANES).contains(&cols), "tile of {cols} columns");
    by_rows!(1 2 3 4 5 6 7 8 9 10 11 12);
}

// The lists of heights above are complete.
const _: () = assert!(MAX_TILE_ROWS == 12);
