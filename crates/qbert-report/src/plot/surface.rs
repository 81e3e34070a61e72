//! A surface over a square, seen from an angle.
//!
//! The page's script draws the same view with the same projection and lets the reader turn it (`assets/page.js`); this
//! one is for readers without script, for paper and for Markdown.

use super::canvas::{Anchor, Canvas};
use super::heat;
use crate::text::significant;

/// Side of the drawing.
pub(crate) const SIDE: f64 = 390.0;
/// Height of the drawing.
pub(crate) const HEIGHT: f64 = 320.0;
/// Where the reader stands at first: turned by and tilted by, in degrees.
pub(crate) const VIEW: (f64, f64) = (35.0, 28.0);
/// A static surface has at most this many rows and columns, a turnable one [`TURNABLE`].
pub(crate) const STATIC: usize = 31;
/// More could not be redrawn while the pointer moves.
pub(crate) const TURNABLE: usize = 61;

/// What is drawn.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Surface {
    /// Heights, row by row; not a number where there is none.
    pub(crate) heights: Vec<Vec<f64>>,
    /// Lowest and highest value of this surface: its colours.
    pub(crate) own: (f64, f64),
    /// Lowest and highest of all surfaces: what its height is drawn against.
    pub(crate) shared: (f64, f64),
    /// Names of the directions of rows and columns.
    pub(crate) names: [String; 2],
    /// The value in the middle.
    pub(crate) middle: f64,
}

/// The projection, shared with the script: turn round the upright axis, then look down at a tilt.
#[derive(Debug, Clone, Copy)]
struct Projection {
    turn: f64,
    tilt: f64,
    low: f64,
    high: f64,
}

impl Projection {
    /// `x` and `y` from −1 to 1; returns the place on the drawing and the depth (larger is nearer).
    fn place(&self, x: f64, y: f64, value: f64) -> ((f64, f64), f64) {
        let (sin, cos) = self.turn.to_radians().sin_cos();
        let (across, near) = (x * cos - y * sin, x * sin + y * cos);
        let width = self.high - self.low;
        let height = if width > 0.0 { (value - self.low) / width } else { 0.0 };
        let (down, up) = self.tilt.to_radians().sin_cos();
        let scale = SIDE * 0.3;
        let screen = (SIDE * 0.53 + across * scale, HEIGHT * 0.6 + (near * down - (height * 1.15 - 0.15) * up) * scale);
        (screen, near)
    }
}

/// Every n-th row and column, ends included, so that at most `most` are left.
pub(crate) fn thinned(grid: &[Vec<f64>], most: usize) -> Vec<Vec<f64>> {
    let pick = |count: usize| -> Vec<usize> {
        if count <= most || most < 2 {
            return (0..count).collect();
        }
        (0..most).map(|index| (index * (count - 1) + (most - 1) / 2) / (most - 1)).collect()
    };
    let columns = grid.iter().map(Vec::len).min().unwrap_or(0);
    let (rows, columns) = (pick(grid.len()), pick(columns));
    rows.iter().map(|&row| columns.iter().map(|&column| grid[row][column]).collect()).collect()
}

fn position(index: usize, count: usize) -> f64 {
    2.0 * index as f64 / (count.max(2) - 1) as f64 - 1.0
}

struct Facet {
    depth: f64,
    corners: [(f64, f64); 4],
    class: usize,
}

fn facets(surface: &Surface, view: Projection) -> Vec<Facet> {
    let grid = thinned(&surface.heights, STATIC);
    let (rows, columns) = (grid.len(), grid.first().map_or(0, Vec::len));
    let mut facets = Vec::new();
    for row in 0..rows.saturating_sub(1) {
        for column in 0..columns.saturating_sub(1) {
            let around = [(row, column), (row, column + 1), (row + 1, column + 1), (row + 1, column)];
            let values = around.map(|(r, c)| grid[r][c]);
            if values.iter().any(|value| !value.is_finite()) {
                continue;
            }
            let placed = around.map(|(r, c)| view.place(position(c, columns), position(r, rows), grid[r][c]));
            let depth = placed.iter().map(|(_, depth)| depth).sum::<f64>();
            let mean = values.iter().sum::<f64>() / 4.0;
            let class = heat::class(mean, surface.own).unwrap_or(0);
            facets.push(Facet { depth, corners: placed.map(|(place, _)| place), class });
        }
    }
    facets.sort_by(|one, other| one.depth.total_cmp(&other.depth));
    facets
}

/// The static view.
pub(crate) fn draw(surface: &Surface) -> Canvas {
    let (turn, tilt) = VIEW;
    let view = Projection { turn, tilt, low: surface.shared.0, high: surface.shared.1 };
    let mut canvas = Canvas::new(SIDE, HEIGHT);
    let floor = |x: f64, y: f64| view.place(x, y, surface.shared.0).0;
    let corners = [(-1.0, -1.0), (1.0, -1.0), (1.0, 1.0), (-1.0, 1.0)].map(|(x, y)| floor(x, y));
    canvas.path("frame", &corners, true, None);
    for facet in facets(surface, view) {
        canvas.path(&format!("facet s{}", facet.class), &facet.corners, true, None);
    }
    let pole = [view.place(-1.0, 1.0, surface.shared.0).0, view.place(-1.0, 1.0, surface.shared.1).0];
    canvas.line("rule", pole[0], pole[1]);
    canvas.text("tick", (pole[0].0 - 5.0, pole[0].1 + 3.0), Anchor::End, &significant(surface.shared.0, 2));
    canvas.text("tick", (pole[1].0 - 5.0, pole[1].1 + 3.0), Anchor::End, &significant(surface.shared.1, 2));
    canvas.text("name", (pole[1].0, pole[1].1 - 10.0), Anchor::Middle, "loss");
    let [row_name, column_name] = &surface.names;
    let place = floor(0.0, 1.0);
    canvas.text("name", (place.0 - 8.0, place.1 + 22.0), Anchor::End, column_name);
    let place = floor(1.0, 0.0);
    canvas.text("name", (place.0 + 8.0, place.1 + 22.0), Anchor::Start, row_name);
    if surface.middle.is_finite() {
        canvas.circle("model", view.place(0.0, 0.0, surface.middle).0, 4.5, Some("the model itself"));
    }
    canvas
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinning_keeps_ends_and_middle() {
        let grid: Vec<Vec<f64>> = (0..201).map(|r| (0..201).map(|c| f64::from(r * 1000 + c)).collect()).collect();
        let small = thinned(&grid, 31);
        assert_eq!((small.len(), small[0].len()), (31, 31));
        assert_eq!([small[0][0], small[15][15], small[30][30]], [0.0, 100_100.0, 200_200.0]);
        assert_eq!(thinned(&grid[..5], 31).len(), 5);
        assert!(thinned(&[], 31).is_empty());
        assert_eq!(thinned(&[vec![1.0, 2.0], vec![3.0]], 31), [[1.0], [3.0]]);
    }

    #[test]
    fn nearer_facets_are_drawn_later_and_higher_values_are_higher_up() {
        let heights = vec![vec![0.0, 1.0, 2.0]; 3];
        let surface = Surface {
            heights,
            own: (0.0, 2.0),
            shared: (0.0, 2.0),
            names: [String::new(), String::new()],
            middle: 1.0,
        };
        let view = Projection { turn: VIEW.0, tilt: VIEW.1, low: 0.0, high: 2.0 };
        let facets = facets(&surface, view);
        assert_eq!(facets.len(), 4);
        assert!(facets.windows(2).all(|pair| pair[0].depth <= pair[1].depth));
        assert!(view.place(0.0, 0.0, 2.0).0.1 < view.place(0.0, 0.0, 0.0).0.1);
    }
}
