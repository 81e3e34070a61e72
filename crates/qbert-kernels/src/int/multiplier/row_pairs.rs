//! Rows of activations two by two, eight inputs at a time: the order in which ARM's matrix instructions take them.
//!
//! A *pair* is 16 bytes: eight inputs of one row, then the same inputs of the next. A tile of rows is pair after pair for the
//! first eight inputs, then for the next eight, so that a kernel reads it from end to end. Zeros stand for a missing second
//! row, and for the inputs after an odd last step.
//!
//! This is plain Rust for any CPU, so that the multiplier of the unit tests can use it everywhere.

use crate::int::layout::CELL_INPUTS;
use crate::int::tile::Rows;

/// Inputs of a pair: two steps.
pub(super) const PAIR_INPUTS: usize = 2 * CELL_INPUTS;
/// Bytes of a pair.
pub(super) const PAIR: usize = 2 * PAIR_INPUTS;

/// Pairs of a tile of rows at each eight inputs.
pub(super) const fn pairs(rows: usize) -> usize {
    rows.div_ceil(2)
}

/// Bytes of a tile of rows.
pub(super) const fn bytes(rows: usize, steps: usize) -> usize {
    steps.div_ceil(2) * pairs(rows) * PAIR
}

/// Writes the rows of one tile; `arranged` has at least their [`bytes`].
pub(super) fn arrange(rows: Rows<'_>, arranged: &mut [i8]) {
    let pairs = pairs(rows.count);
    for row in 0..rows.count {
        let place = row * PAIR_INPUTS;
        let groups = arranged.chunks_exact_mut(pairs * PAIR);
        write_row(row_of(rows, row), groups.map(|group| &mut group[place..][..PAIR_INPUTS]));
    }
    if rows.count % 2 == 1 {
        let place = rows.count * PAIR_INPUTS;
        for group in arranged.chunks_exact_mut(pairs * PAIR).take(rows.steps.div_ceil(2)) {
            group[place..][..PAIR_INPUTS].fill(0);
        }
    }
}

/// The codes of one row.
///
/// # Panics
/// When there are too few.
pub(super) fn row_of(rows: Rows<'_>, row: usize) -> &[i8] {
    &rows.codes[row * rows.stride..][..rows.steps * CELL_INPUTS]
}

/// Writes one row, eight codes to each of the places.
fn write_row<'a>(codes: &[i8], mut places: impl Iterator<Item = &'a mut [i8]>) {
    let (eights, rest) = codes.as_chunks::<PAIR_INPUTS>();
    for (eight, place) in eights.iter().zip(&mut places) {
        place.copy_from_slice(eight);
    }
    if let (false, Some(place)) = (rest.is_empty(), places.next()) {
        place.fill(0);
        place[..rest.len()].copy_from_slice(rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_of_rows_follow_each_other_and_the_rest_is_zero() {
        // Three rows of three steps, the second pair without a second row.
        let codes: Vec<i8> = (0..3 * 16).collect();
        let rows = Rows { count: 3, codes: &codes, stride: 16, steps: 3 };
        let mut arranged = vec![99; bytes(3, 3) + 1];
        arrange(rows, &mut arranged);
        let expected: Vec<i8> = [
            (0..8).chain(16..24).chain(32..40).chain([0; 8]).collect::<Vec<_>>(),
            [8, 9, 10, 11, 0, 0, 0, 0, 24, 25, 26, 27, 0, 0, 0, 0].into(),
            [40, 41, 42, 43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0].into(),
            vec![99],
        ]
        .concat();
        assert_eq!(arranged, expected);
    }
}
