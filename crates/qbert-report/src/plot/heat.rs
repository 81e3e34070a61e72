//! Cells coloured by value, and the strip that says which colour is how much.

use super::canvas::{Anchor, Area, Canvas};
use super::palette::{STEPS, step};
use crate::text::significant;

/// The class of a value within an interval; a value that is no number has none.
pub(crate) fn class(value: f64, (low, high): (f64, f64)) -> Option<usize> {
    let width = high - low;
    value.is_finite().then(|| step(if width > 0.0 { (value - low) / width } else { 0.0 }))
}

/// The palette in a row with the ends of the interval.
pub(crate) fn legend(canvas: &mut Canvas, (left, top): (f64, f64), width: f64, (low, high): (f64, f64), name: &str) {
    let each = width / STEPS as f64;
    for index in 0..STEPS {
        let area = Area { left: left + each * index as f64, top, width: each, height: 8.0 };
        let part = |n: usize| significant(low + (high - low) * n as f64 / STEPS as f64, 3);
        canvas.rect(&format!("s{index}"), area, Some(&format!("{} to {}", part(index), part(index + 1))));
    }
    canvas.text("tick", (left, top + 21.0), Anchor::Start, &significant(low, 3));
    canvas.text("tick", (left + width, top + 21.0), Anchor::End, &significant(high, 3));
    canvas.text("name", (left + width / 2.0, top + 21.0), Anchor::Middle, name);
}
