//! What the tile instructions do, after the operation sections and exception classes of Intel's manual (Software
//! Developer's Manual, volume 2), for palette 1: eight tiles of at most 16 rows of 64 bytes.

use std::fmt;

const TILES: usize = 8;
const MOST_ROWS: usize = 16;
const MOST_BYTES: usize = 64;

type Row = [u8; MOST_BYTES];

/// Why the CPU refuses an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) exception: Exception,
    pub(super) tile: Option<usize>,
    pub(super) reason: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exception {
    /// `#GP`, a segmentation fault in Linux.
    GeneralProtection,
    /// `#UD`, an illegal instruction.
    InvalidOpcode,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.exception {
            Exception::GeneralProtection => "#GP",
            Exception::InvalidOpcode => "#UD",
        };
        match self.tile {
            Some(tile) => write!(f, "{name}, tile {tile}: {}", self.reason),
            None => write!(f, "{name}: {}", self.reason),
        }
    }
}

fn refuse_configuration(tile: Option<usize>, reason: &'static str) -> Result<(), Fault> {
    Err(Fault { exception: Exception::GeneralProtection, tile, reason })
}

fn refuse_operand(tile: usize, reason: &'static str) -> Result<(), Fault> {
    Err(Fault { exception: Exception::InvalidOpcode, tile: Some(tile), reason })
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Shape {
    rows: usize,
    /// The manual's `colsb`.
    bytes: usize,
}

const NO_SHAPE: Shape = Shape { rows: 0, bytes: 0 };

/// The tiles of a thread.
pub(super) struct Tiles {
    configured: bool,
    /// Where an interrupted load or store goes on. Nothing interrupts them here, but a configuration may set it.
    start_row: usize,
    shapes: [Shape; TILES],
    rows: [[Row; MOST_ROWS]; TILES],
    /// How often they were configured.
    pub(super) configurations: u64,
}

impl Tiles {
    pub(super) const fn new() -> Self {
        Self {
            configured: false,
            start_row: 0,
            shapes: [NO_SHAPE; TILES],
            rows: [[[0; MOST_BYTES]; MOST_ROWS]; TILES],
            configurations: 0,
        }
    }

    /// `ldtilecfg`
    pub(super) fn configure(&mut self, bytes: &[u8; 64]) -> Result<(), Fault> {
        let (palette, start_row) = (bytes[0], bytes[1]);
        if palette == 0 {
            self.release();
            return Ok(());
        }
        if palette != 1 {
            return refuse_configuration(None, "there is no such palette");
        }
        if [&bytes[2..16], &bytes[32..48], &bytes[56..64]].into_iter().flatten().any(|&byte| byte != 0) {
            return refuse_configuration(None, "reserved bytes of the configuration are not zero");
        }
        let mut shapes = [NO_SHAPE; TILES];
        for (tile, shape) in shapes.iter_mut().enumerate() {
            let colsb = u16::from_le_bytes([bytes[16 + 2 * tile], bytes[17 + 2 * tile]]);
            *shape = Shape { rows: usize::from(bytes[48 + tile]), bytes: usize::from(colsb) };
            if shape.rows > MOST_ROWS {
                return refuse_configuration(Some(tile), "more than 16 rows");
            }
            if shape.bytes > MOST_BYTES {
                return refuse_configuration(Some(tile), "more than 64 bytes a row");
            }
            if (shape.rows == 0) != (shape.bytes == 0) {
                return refuse_configuration(Some(tile), "rows without bytes, or bytes without rows");
            }
        }
        let configurations = self.configurations + 1;
        *self = Self { configured: true, start_row: usize::from(start_row), shapes, configurations, ..Self::new() };
        Ok(())
    }

    /// `sttilecfg`
    pub(super) fn configuration(&self) -> [u8; 64] {
        let mut bytes = [0; 64];
        if self.configured {
            (bytes[0], bytes[1]) = (1, self.start_row as u8);
            for (tile, shape) in self.shapes.iter().enumerate() {
                bytes[16 + 2 * tile..][..2].copy_from_slice(&(shape.bytes as u16).to_le_bytes());
                bytes[48 + tile] = shape.rows as u8;
            }
        }
        bytes
    }

    /// `tilerelease`
    pub(super) fn release(&mut self) {
        *self = Self { configurations: self.configurations, ..Self::new() };
    }

    /// `tilezero`
    pub(super) fn zero(&mut self, tile: usize) -> Result<(), Fault> {
        self.check(tile)?;
        self.rows[tile] = [[0; MOST_BYTES]; MOST_ROWS];
        self.start_row = 0;
        Ok(())
    }

    /// `tileloadd`: rows from the addresses that `row_at` gives, and zeros behind and below.
    ///
    /// # Safety
    /// As many bytes as the tile's rows have must be readable there.
    pub(super) unsafe fn load(&mut self, tile: usize, row_at: impl Fn(usize) -> *mut u8) -> Result<(), Fault> {
        self.check_moved(tile)?;
        let shape = self.shapes[tile];
        for row in self.start_row..shape.rows {
            let mut bytes = [0; MOST_BYTES];
            // SAFETY: the caller promises as many bytes; a row has room for them.
            unsafe { std::ptr::copy_nonoverlapping(row_at(row), bytes.as_mut_ptr(), shape.bytes) };
            self.rows[tile][row] = bytes;
        }
        self.rows[tile][shape.rows..].fill([0; MOST_BYTES]);
        self.start_row = 0;
        Ok(())
    }

    /// `tilestored`: rows to the addresses that `row_at` gives.
    ///
    /// # Safety
    /// As many bytes as the tile's rows have must be writable there.
    pub(super) unsafe fn store(&mut self, tile: usize, row_at: impl Fn(usize) -> *mut u8) -> Result<(), Fault> {
        self.check_moved(tile)?;
        let shape = self.shapes[tile];
        for row in self.start_row..shape.rows {
            // SAFETY: the caller promises as many bytes; a row has them.
            unsafe { std::ptr::copy_nonoverlapping(self.rows[tile][row].as_ptr(), row_at(row), shape.bytes) };
        }
        self.start_row = 0;
        Ok(())
    }

    /// `tdpbssd`, `tdpbsud`, `tdpbusd` and `tdpbuud`: four bytes of `a` with four of `b`, added to a 32-bit integer that
    /// wraps.
    pub(super) fn multiply_bytes<const SIGNED_A: bool, const SIGNED_B: bool>(
        &mut self,
        sums: usize,
        a: usize,
        b: usize,
    ) -> Result<(), Fault> {
        fn wide<const SIGNED: bool>(byte: u8) -> i32 {
            if SIGNED { i32::from(byte.cast_signed()) } else { i32::from(byte) }
        }
        self.multiply(sums, a, b, |before, left, right, cells| {
            let mut sum = i32::from_le_bytes(before);
            for (left, right) in left.as_chunks::<4>().0.iter().zip(right).take(cells) {
                for (&left, &right) in left.iter().zip(&right) {
                    sum = sum.wrapping_add(wide::<SIGNED_A>(left) * wide::<SIGNED_B>(right));
                }
            }
            sum.to_le_bytes()
        })
    }

    /// `tdpbf16ps`: pairs of bf16. The first and the second of all pairs have a sum each, which are added to the result at
    /// the end.
    pub(super) fn multiply_bf16(&mut self, sums: usize, a: usize, b: usize) -> Result<(), Fault> {
        fn wide(bytes: [u8; 4]) -> [f32; 2] {
            let [low, high, low_of_second, high_of_second] = bytes;
            [[0, 0, low, high], [0, 0, low_of_second, high_of_second]].map(f32::from_le_bytes)
        }
        self.multiply(sums, a, b, |before, left, right, cells| {
            let mut totals = [0.0; 2];
            for (&left, right) in left.as_chunks::<4>().0.iter().zip(right).take(cells) {
                for ((total, left), right) in totals.iter_mut().zip(wide(left)).zip(wide(right)) {
                    *total = multiply_add(left, right, *total);
                }
            }
            add(f32::from_le_bytes(before), add(totals[0], totals[1])).to_le_bytes()
        })
    }

    /// The frame of all products: `element(before, row of a, column of b, cells)` for every element of `sums`. A cell is
    /// four bytes along the sum.
    fn multiply(
        &mut self,
        sums: usize,
        a: usize,
        b: usize,
        element: impl Fn([u8; 4], &Row, [[u8; 4]; MOST_ROWS], usize) -> [u8; 4],
    ) -> Result<(), Fault> {
        self.check_product(sums, a, b)?;
        let (shape, cells) = (self.shapes[sums], self.shapes[b].rows);
        let (left, right) = (self.rows[a], self.rows[b]);
        let mut results = [[0; MOST_BYTES]; MOST_ROWS];
        for column in 0..shape.bytes / 4 {
            let right: [[u8; 4]; MOST_ROWS] = std::array::from_fn(|cell| right[cell].as_chunks().0[column]);
            for row in 0..shape.rows {
                let before = self.rows[sums][row].as_chunks().0[column];
                results[row].as_chunks_mut().0[column] = element(before, &left[row], right, cells);
            }
        }
        // Zeros behind and below, too.
        self.rows[sums] = results;
        self.start_row = 0;
        Ok(())
    }

    /// Refuses tiles that have no shape.
    fn check(&self, tile: usize) -> Result<(), Fault> {
        if !self.configured {
            return refuse_operand(tile, "no tiles are configured");
        }
        if self.shapes[tile] == NO_SHAPE {
            return refuse_operand(tile, "the configuration gives it no rows");
        }
        Ok(())
    }

    /// Refuses what loads and stores refuse.
    fn check_moved(&self, tile: usize) -> Result<(), Fault> {
        self.check(tile)?;
        if !self.shapes[tile].bytes.is_multiple_of(4) {
            return refuse_operand(tile, "its rows are not whole groups of four bytes");
        }
        if self.start_row >= self.shapes[tile].rows {
            return refuse_operand(tile, "the first row to move is behind its last");
        }
        Ok(())
    }

    /// Refuses what products refuse.
    fn check_product(&self, sums: usize, a: usize, b: usize) -> Result<(), Fault> {
        if sums == a || sums == b || a == b {
            return refuse_operand(sums, "the tiles of a product must be three");
        }
        for tile in [sums, a, b] {
            self.check(tile)?;
            if !self.shapes[tile].bytes.is_multiple_of(4) {
                return refuse_operand(tile, "its rows are not whole groups of four bytes");
            }
        }
        let (of_sums, of_a, of_b) = (self.shapes[sums], self.shapes[a], self.shapes[b]);
        if of_sums.rows != of_a.rows {
            return refuse_operand(sums, "it has other rows than the first factor");
        }
        if of_sums.bytes != of_b.bytes {
            return refuse_operand(sums, "it has other columns than the second factor");
        }
        if of_a.bytes / 4 != of_b.rows {
            return refuse_operand(b, "its rows are not the first factor's groups of four bytes");
        }
        Ok(())
    }
}

/// Numbers too small for a full significand count as zero.
fn flushed(value: f32) -> f32 {
    if value.is_subnormal() { 0.0_f32.copysign(value) } else { value }
}

fn add(a: f32, b: f32) -> f32 {
    // Such a small sum is exact, so that it does not matter when it is flushed.
    flushed(flushed(a) + flushed(b))
}

/// `a · b + c` of bf16 and f32, rounded once; small operands and results are zero. Whether a result is small is decided
/// as if exponents had no end: after rounding to 24 bits, which may be fewer than a subnormal result would lose.
fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
    let (a, b, c) = (flushed(a), flushed(b), flushed(c));
    // Exact wherever it is near the smallest normal number: a product has 16 bits.
    let sum = f64::from(a) * f64::from(b) + f64::from(c);
    // What lies above rounds to the smallest normal number; so does the tie itself, which is odd below.
    let small = f64::from(f32::MIN_POSITIVE) * (1.0 - f64::from(f32::EPSILON) / 4.0);
    if sum != 0.0 && sum.abs() < small { 0.0_f32.copysign(sum as f32) } else { a.mul_add(b, c) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A configuration with these rows and bytes per row of the first tiles.
    fn configuration(shapes: &[(u8, u8)]) -> [u8; 64] {
        let mut bytes = [0; 64];
        bytes[0] = 1;
        for (tile, &(rows, row_bytes)) in shapes.iter().enumerate() {
            (bytes[16 + 2 * tile], bytes[48 + tile]) = (row_bytes, rows);
        }
        bytes
    }

    fn configured(shapes: &[(u8, u8)]) -> Tiles {
        let mut tiles = Tiles::new();
        tiles.configure(&configuration(shapes)).expect("a good configuration");
        tiles
    }

    fn refusal(result: Result<(), Fault>) -> String {
        result.expect_err("the CPU refuses it").to_string()
    }

    #[test]
    fn a_bad_configuration_is_refused_and_changes_nothing() {
        let good = configuration(&[(16, 64), (3, 8)]);
        let cases = [
            (0, 2, "#GP: there is no such palette"),
            (2, 1, "#GP: reserved bytes of the configuration are not zero"),
            (15, 1, "#GP: reserved bytes of the configuration are not zero"),
            (32, 4, "#GP: reserved bytes of the configuration are not zero"),
            (47, 1, "#GP: reserved bytes of the configuration are not zero"),
            (56, 1, "#GP: reserved bytes of the configuration are not zero"),
            (63, 1, "#GP: reserved bytes of the configuration are not zero"),
            (48, 17, "#GP, tile 0: more than 16 rows"),
            (18, 65, "#GP, tile 1: more than 64 bytes a row"),
            (17, 1, "#GP, tile 0: more than 64 bytes a row"),
            (49, 0, "#GP, tile 1: rows without bytes, or bytes without rows"),
            (30, 4, "#GP, tile 7: rows without bytes, or bytes without rows"),
        ];
        for (place, byte, expected) in cases {
            let mut tiles = Tiles::new();
            tiles.configure(&good).expect("a good configuration");
            let mut bad = good;
            bad[place] = byte;
            assert_eq!(refusal(tiles.configure(&bad)), expected);
            assert_eq!(tiles.configuration(), good);
        }
        let mut tiles = configured(&[(16, 64)]);
        // Palette 0 releases the tiles, whatever else there is.
        tiles.configure(&[0; 64]).expect("no palette");
        assert_eq!(tiles.configuration(), [0; 64]);
    }

    #[test]
    fn tiles_without_a_fitting_shape_are_refused() {
        let mut tiles = Tiles::new();
        assert_eq!(refusal(tiles.zero(3)), "#UD, tile 3: no tiles are configured");
        assert_eq!(refusal(tiles.multiply_bytes::<true, true>(0, 1, 2)), "#UD, tile 0: no tiles are configured");
        tiles = configured(&[(2, 12), (2, 8), (2, 12), (3, 12), (2, 8), (2, 6)]);
        tiles.multiply_bytes::<true, true>(0, 1, 2).expect("2×2 with 2×3");
        for (operands, expected) in [
            ([0, 1, 6], "#UD, tile 6: the configuration gives it no rows"),
            ([0, 1, 1], "#UD, tile 0: the tiles of a product must be three"),
            ([0, 0, 2], "#UD, tile 0: the tiles of a product must be three"),
            ([0, 1, 0], "#UD, tile 0: the tiles of a product must be three"),
            ([3, 1, 2], "#UD, tile 3: it has other rows than the first factor"),
            ([4, 1, 2], "#UD, tile 4: it has other columns than the second factor"),
            ([0, 1, 3], "#UD, tile 3: its rows are not the first factor's groups of four bytes"),
            ([0, 1, 5], "#UD, tile 5: its rows are not whole groups of four bytes"),
        ] {
            let [sums, a, b] = operands;
            assert_eq!(refusal(tiles.multiply_bytes::<true, false>(sums, a, b)), expected);
            assert_eq!(refusal(tiles.multiply_bf16(sums, a, b)), expected);
        }
        let no_memory = |_: usize| -> *mut u8 { panic!("refused before it reads or writes") };
        for (tile, expected) in [
            (5, "#UD, tile 5: its rows are not whole groups of four bytes"),
            (7, "#UD, tile 7: the configuration gives it no rows"),
        ] {
            // SAFETY: nothing is moved.
            let results = unsafe { [tiles.load(tile, no_memory), tiles.store(tile, no_memory)] };
            assert_eq!(results.map(refusal), [expected; 2]);
        }
        let mut late = configuration(&[(2, 4)]);
        late[1] = 2;
        tiles.configure(&late).expect("a good configuration");
        // SAFETY: nothing is moved.
        let result = unsafe { tiles.load(0, no_memory) };
        assert_eq!(refusal(result), "#UD, tile 0: the first row to move is behind its last");
    }

    #[test]
    fn what_lies_behind_and_below_a_loaded_tile_is_zero() {
        let mut tiles = configured(&[(2, 8)]);
        tiles.rows[0] = [[7; MOST_BYTES]; MOST_ROWS];
        let mut bytes: Vec<u8> = (1..=16).collect();
        let memory = bytes.as_mut_ptr();
        // SAFETY: two rows of eight bytes.
        unsafe { tiles.load(0, |row| memory.add(8 * row)) }.expect("a good tile");
        let [first, second, below @ ..] = &tiles.rows[0];
        assert_eq!(
            (&first[..9], &second[..9]),
            (&[1, 2, 3, 4, 5, 6, 7, 8, 0][..], &[9, 10, 11, 12, 13, 14, 15, 16, 0][..])
        );
        assert!(
            [&first[8..], &second[8..]].into_iter().chain(below.iter().map(|row| &row[..])).flatten().all(|&b| b == 0)
        );
    }

    /// An interrupted load goes on where it stopped, and the next one begins at the top.
    #[test]
    fn a_load_begins_at_the_configured_row() {
        let mut bytes = [[5_u8; 4], [6; 4], [7; 4]];
        let memory = bytes.as_mut_ptr();
        let mut tiles = Tiles::new();
        let mut from_second = configuration(&[(3, 4)]);
        from_second[1] = 1;
        tiles.configure(&from_second).expect("a good configuration");
        for first in [0, 5] {
            // SAFETY: three rows of four bytes.
            unsafe { tiles.load(0, |row| memory.add(row).cast()) }.expect("a good tile");
            assert_eq!(tiles.rows[0].map(|row| row[0])[..4], [first, 6, 7, 0]);
            assert_eq!(tiles.configuration()[1], 0);
        }
    }

    #[test]
    fn small_numbers_are_zero() {
        let (smallest, below) = (f32::MIN_POSITIVE, f32::from_bits(0x7F_FFFF));
        assert_eq!(add(below, smallest), smallest);
        assert_eq!(add(smallest * 1.5, -smallest).to_bits(), 0);
        assert_eq!(add(-smallest * 1.5, smallest).to_bits(), 1 << 31);
        let half = 0.5_f32;
        assert_eq!(multiply_add(smallest, half, 0.0).to_bits(), 0);
        assert_eq!(multiply_add(-smallest, half, 0.0).to_bits(), 1 << 31);
        assert_eq!(multiply_add(below, 1.0, 1.0), 1.0);
        assert_eq!(multiply_add(1.0, 1.0, -below), 1.0);
        // A little less than the smallest normal number: it has 24 bits of its own, and is small.
        let power = |exponent: i32| 2.0_f32.powi(exponent);
        assert_eq!(multiply_add(-power(-75), power(-75), smallest), 0.0);
        assert_eq!(power(-75).mul_add(-power(-75), smallest), smallest, "rounded to a subnormal's bits it is not");
        // Half of that is a tie, which goes up.
        assert_eq!(multiply_add(-power(-75), power(-76), smallest), smallest);
        assert_eq!(multiply_add(3.0, 5.0, -14.5), 0.5);
        assert!(multiply_add(f32::INFINITY, 0.0, 1.0).is_nan() && add(f32::INFINITY, f32::NEG_INFINITY).is_nan());
    }
}
