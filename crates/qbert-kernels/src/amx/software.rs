//! The double of the tile unit: the same instructions on arrays, one set of tiles per thread. It is slow and runs
//! anywhere, so that everything around the instructions can be tested without them. It is chosen only by name.

use std::cell::RefCell;

use super::{ROW_BYTES, Shape, TILE_CELLS, TILE_ROWS, TileNumbers, TileUnit};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Software;

type TileBytes = [[u8; ROW_BYTES]; TILE_ROWS];

/// The tiles of a thread.
struct Tiles {
    /// `None` when they were released.
    shape: Option<Shape>,
    bytes: [TileBytes; 8],
}

thread_local! {
    static TILES: RefCell<Tiles> = const { RefCell::new(Tiles { shape: None, bytes: [[[0; ROW_BYTES]; TILE_ROWS]; 8] }) };
}

impl Tiles {
    /// Rows of a tile, as configured. The CPU refuses tiles that are not configured, and so does this.
    fn rows(&self, tile: usize) -> usize {
        let rows = self.shape.map_or(0, |shape| shape.rows(tile));
        assert!(rows > 0, "tile {tile} is used but not configured");
        usize::from(rows)
    }
}

impl TileUnit for Software {
    fn detect(_: TileNumbers, _: fn(Self) -> bool) -> Option<Self> {
        Some(Self)
    }

    // Other code may do anything to the tiles.
    fn forget(self) {
        TILES.with_borrow_mut(|tiles| {
            tiles.shape = None;
            tiles.bytes = [[[0xA5; ROW_BYTES]; TILE_ROWS]; 8];
        });
    }

    fn configure(self, shape: Shape) {
        TILES.with_borrow_mut(|tiles| {
            if tiles.shape != Some(shape) {
                tiles.bytes = [[[0; ROW_BYTES]; TILE_ROWS]; 8];
            }
            tiles.shape = Some(shape);
        });
    }

    fn release(self) {
        TILES.with_borrow_mut(|tiles| tiles.shape = None);
    }

    unsafe fn zero<const T: usize>(self) {
        TILES.with_borrow_mut(|tiles| {
            tiles.rows(T);
            tiles.bytes[T] = [[0; ROW_BYTES]; TILE_ROWS];
        });
    }

    unsafe fn load_rows<const T: usize>(self, rows: *const u8, stride: usize) {
        TILES.with_borrow_mut(|tiles| {
            let count = tiles.rows(T);
            let (used, rest) = tiles.bytes[T].split_at_mut(count);
            for (index, row) in used.iter_mut().enumerate() {
                // SAFETY: the caller promises that the tile's rows are readable.
                *row = unsafe { rows.add(index * stride).cast::<[u8; ROW_BYTES]>().read() };
            }
            rest.fill([0; ROW_BYTES]);
        });
    }

    unsafe fn multiply_bytes<const SUMS: usize, const ROWS: usize, const WEIGHTS: usize>(self) {
        TILES.with_borrow_mut(|tiles| {
            let count = tiles.rows(SUMS);
            assert!(tiles.rows(ROWS) == count && tiles.rows(WEIGHTS) == TILE_CELLS, "tiles of different shapes");
            let (rows, weights) = (tiles.bytes[ROWS], tiles.bytes[WEIGHTS]);
            for (sums, codes) in tiles.bytes[SUMS].iter_mut().zip(&rows).take(count) {
                let mut totals: [i32; 16] = std::array::from_fn(|neuron| integer(sums, neuron));
                for (codes, cell) in codes.as_chunks::<4>().0.iter().zip(&weights) {
                    for (neuron, total) in totals.iter_mut().enumerate() {
                        for (input, code) in codes.iter().enumerate() {
                            let product = i32::from(code.cast_signed()) * i32::from(cell[4 * neuron + input]);
                            *total = total.wrapping_add(product);
                        }
                    }
                }
                for (place, total) in sums.as_chunks_mut::<4>().0.iter_mut().zip(totals) {
                    *place = total.to_ne_bytes();
                }
            }
        });
    }

    unsafe fn multiply_bf16<const SUMS: usize, const ROWS: usize, const COLUMNS: usize>(self) {
        add_products::<SUMS, ROWS, COLUMNS>(|before, pairs| {
            let sums = pairs.fold([0.0; 2], |sums, (a, b)| {
                std::array::from_fn(|part| without_subnormals(a[part].mul_add(b[part], sums[part])))
            });
            without_subnormals(before + without_subnormals(sums[0] + sums[1]))
        });
    }

    unsafe fn store_sums<const T: usize>(self, sums: *mut i32, stride: usize) {
        TILES.with_borrow(|tiles| {
            for (index, row) in tiles.bytes[T].iter().enumerate().take(tiles.rows(T)) {
                // SAFETY: the caller promises that the tile's rows are writable.
                unsafe { sums.add(index * stride).cast::<[u8; ROW_BYTES]>().write_unaligned(*row) };
            }
        });
    }
}

/// A row's pairs of bf16 and a column's, as f32.
type Pairs<'a> = &'a mut dyn Iterator<Item = ([f32; 2], [f32; 2])>;

/// The frame of the products of bf16: `sum(before, pairs)` for every sum of a tile.
pub(super) fn add_products<const SUMS: usize, const ROWS: usize, const COLUMNS: usize>(
    sum: impl Fn(f32, Pairs<'_>) -> f32,
) {
    TILES.with_borrow_mut(|tiles| {
        let count = tiles.rows(SUMS);
        assert!(tiles.rows(ROWS) == count && tiles.rows(COLUMNS) == TILE_CELLS, "tiles of different shapes");
        let (rows, columns) = (tiles.bytes[ROWS], tiles.bytes[COLUMNS]);
        for (sums, row) in tiles.bytes[SUMS].iter_mut().zip(&rows).take(count) {
            for (column, place) in sums.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                let pairs = (0..TILE_CELLS).map(|cell| (pair(row, cell), pair(&columns[cell], column)));
                *place = sum(f32::from_ne_bytes(*place), &mut { pairs }).to_ne_bytes();
            }
        }
    });
}

/// Two neighbours as f32; what is too small for a normal number is zero.
fn pair(row: &[u8; ROW_BYTES], index: usize) -> [f32; 2] {
    let bits = u32::from_ne_bytes(row.as_chunks().0[index]);
    [bits << 16, bits & 0xffff_0000].map(|bits| without_subnormals(f32::from_bits(bits)))
}

fn without_subnormals(x: f32) -> f32 {
    if x.is_subnormal() { 0.0_f32.copysign(x) } else { x }
}

fn integer(row: &[u8; ROW_BYTES], index: usize) -> i32 {
    i32::from_ne_bytes(row.as_chunks::<4>().0[index])
}
