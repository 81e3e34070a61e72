//! The double of the tile unit: the same instructions on arrays, one set of tiles per thread. It is slow and runs
//! anywhere, so that everything around the instructions can be tested without them. It is chosen only by name.

use std::cell::RefCell;

use super::{ROW_BYTES, Shape, TILE_CELLS, TILE_ROWS, TileUnit};

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
    fn detect() -> Option<Self> {
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

    unsafe fn multiply<const SUMS: usize, const ROWS: usize, const WEIGHTS: usize>(self) {
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

    unsafe fn store_sums<const T: usize>(self, sums: *mut i32, stride: usize) {
        TILES.with_borrow(|tiles| {
            for (index, row) in tiles.bytes[T].iter().enumerate().take(tiles.rows(T)) {
                // SAFETY: the caller promises that the tile's rows are writable.
                unsafe { sums.add(index * stride).cast::<[u8; ROW_BYTES]>().write_unaligned(*row) };
            }
        });
    }
}

fn integer(row: &[u8; ROW_BYTES], index: usize) -> i32 {
    i32::from_ne_bytes(row.as_chunks::<4>().0[index])
}
