//! Local attention: a token sees those at most `reach` before and behind it.
//!
//! A sequence is cut into tiles: some queries and the keys that any of them sees. Training and both runtimes take the same
//! tiles. A tile's keys begin at a whole number of sum lanes, so a row of probabilities has the same bits in every tile
//! that holds all it sees: keys that it does not see add zeros.

use std::ops::Range;

use crate::cpu::Kernels;
use crate::simd::SUM_LANES;

/// The keys of a tile begin at a multiple of this.
const ALIGNMENT: usize = 2 * SUM_LANES;
/// The most queries of a tile.
const MOST_QUERIES: usize = 64;

/// How far a token sees to each side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// The largest distance at which a token is seen.
    pub reach: usize,
}

/// Some queries of a sequence, and the keys that they see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WindowTile {
    /// Queries, counted in the sequence.
    pub queries: Range<usize>,
    /// Keys, counted in the sequence.
    pub keys: Range<usize>,
}

impl Window {
    /// Whether every token of a sequence of this length sees all others.
    pub fn covers(self, length: usize) -> bool {
        length <= self.reach.saturating_add(1)
    }

    /// The tiles of a sequence, in order. There are O(length) pairs of query and key in all of them, for a given reach.
    pub fn tiles(self, length: usize) -> impl ExactSizeIterator<Item = WindowTile> + Clone {
        let queries = self.reach.next_multiple_of(ALIGNMENT).clamp(ALIGNMENT, MOST_QUERIES);
        (0..length.div_ceil(queries)).map(move |tile| {
            let queries = tile * queries..length.min((tile + 1) * queries);
            let first = queries.start.saturating_sub(self.reach) / ALIGNMENT * ALIGNMENT;
            let keys = first..length.min(queries.end.saturating_add(self.reach));
            WindowTile { queries, keys }
        })
    }

    /// The keys that a query sees, counted from the first key of its tile.
    pub(crate) fn seen(self, query: usize, keys: &Range<usize>) -> Range<usize> {
        let first = query.saturating_sub(self.reach).max(keys.start);
        let end = query.saturating_add(self.reach + 1).min(keys.end);
        first - keys.start..end - keys.start
    }
}

impl Kernels {
    /// [`Kernels::softmax`] of a tile's scores, where a query's row counts only the keys that it sees; the others get the
    /// probability 0.
    ///
    /// # Panics
    /// When the rows are not those of the tile.
    pub fn softmax_windowed(self, rows: &mut [f32], tile: &WindowTile, window: Window, scale: f32) {
        let cols = tile.keys.len();
        assert!(rows.len() == tile.queries.len() * cols, "{} scores for a tile {tile:?}", rows.len());
        for (query, row) in tile.queries.clone().zip(rows.chunks_exact_mut(cols)) {
            let seen = window.seen(query, &tile.keys);
            row[..seen.start].fill(f32::NEG_INFINITY);
            row[seen.end..].fill(f32::NEG_INFINITY);
        }
        self.softmax(rows, cols, scale);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_have_every_query_once_and_every_key_that_is_seen() {
        for reach in [0, 1, 2, 31, 64, 65, 500] {
            for length in [1, 2, 63, 64, 65, 129, 300] {
                let window = Window { reach };
                let tiles: Vec<WindowTile> = window.tiles(length).collect();
                let queries: Vec<usize> = tiles.iter().flat_map(|tile| tile.queries.clone()).collect();
                assert_eq!(queries, (0..length).collect::<Vec<_>>());
                for tile in &tiles {
                    assert!(tile.keys.start.is_multiple_of(SUM_LANES) && tile.keys.end <= length);
                    assert!(tile.keys.len() <= tile.queries.len() + 2 * reach + ALIGNMENT, "{tile:?}");
                    for query in tile.queries.clone() {
                        let seen = window.seen(query, &tile.keys);
                        let all = query.saturating_sub(reach)..length.min(query + reach + 1);
                        assert_eq!(seen.start + tile.keys.start..seen.end + tile.keys.start, all);
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_not_seen_has_no_probability_and_tiles_change_no_bit() {
        let (kernels, window, length) = (Kernels::best(), Window { reach: 20 }, 150);
        let score = |query: usize, key: usize| ((query * 31 + key * 17) % 23) as f32 * 0.3;
        let whole = WindowTile { queries: 0..length, keys: 0..length };
        let mut expected: Vec<f32> = (0..length * length).map(|index| score(index / length, index % length)).collect();
        kernels.softmax_windowed(&mut expected, &whole, window, 0.7);
        for tile in window.tiles(length) {
            let pairs = tile.queries.clone().flat_map(|query| tile.keys.clone().map(move |key| (query, key)));
            let mut rows: Vec<f32> = pairs.map(|(query, key)| score(query, key)).collect();
            kernels.softmax_windowed(&mut rows, &tile, window, 0.7);
            for (query, row) in tile.queries.clone().zip(rows.chunks_exact(tile.keys.len())) {
                let all = &expected[query * length..(query + 1) * length];
                assert!((all.iter().sum::<f32>() - 1.0).abs() < 1e-5);
                for (key, probability) in all.iter().enumerate() {
                    assert_eq!(*probability > 0.0, key.abs_diff(query) <= 20);
                }
                assert!(row.iter().zip(&all[tile.keys.clone()]).all(|(a, b)| a.to_bits() == b.to_bits()), "{query}");
            }
        }
    }
}
