//! Marks that tell kinds apart by their shape, so that colour is never all there is.

use super::canvas::Canvas;

/// How many shapes there are.
const SHAPES: usize = 4;
/// How many colours there are.
const COLOURS: usize = 7;

/// The number of a kind's colour in the style sheet; 28 kinds differ in colour or shape.
pub(crate) fn colour(kind: usize) -> usize {
    kind % COLOURS + 1
}

/// A circle, square, triangle or diamond, in this order and over again.
pub(crate) fn draw(canvas: &mut Canvas, kind: usize, class: &str, (x, y): (f64, f64), size: f64, title: Option<&str>) {
    let corners: &[(f64, f64)] = match kind % SHAPES {
        0 => return canvas.circle(class, (x, y), size, title),
        1 => &[(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
        2 => &[(0.0, -1.15), (1.1, 0.85), (-1.1, 0.85)],
        _ => &[(0.0, -1.25), (1.25, 0.0), (0.0, 1.25), (-1.25, 0.0)],
    };
    let points: Vec<(f64, f64)> = corners.iter().map(|(dx, dy)| (x + dx * size, y + dy * size)).collect();
    canvas.path(class, &points, true, title);
}
