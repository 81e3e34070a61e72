//! Axes: a few grid lines, round numbers, no box.

use super::canvas::{Anchor, Area, Canvas, text_width};
use super::scale::Scale;
use crate::text::ticks;

/// Layers, classes or stages side by side: equal places along one axis.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bands {
    start: f64,
    pub(crate) width: f64,
}

impl Bands {
    pub(crate) fn new(count: usize, start: f64, end: f64) -> Self {
        Self { start, width: (end - start) / count.max(1) as f64 }
    }

    pub(crate) fn left(&self, index: usize) -> f64 {
        self.start + self.width * index as f64
    }

    pub(crate) fn middle(&self, index: usize) -> f64 {
        self.left(index) + self.width / 2.0
    }
}

/// Horizontal grid lines with their numbers on the left; returns the numbers that there was room for.
pub(crate) fn vertical(canvas: &mut Canvas, area: Area, scale: &Scale, wanted: usize) -> Vec<f64> {
    let values = scale.ticks(wanted);
    let mut labelled: Vec<(f64, String)> = values.iter().copied().zip(ticks(&values)).collect();
    // Zero first: of ticks too close to each other it is the one to keep.
    labelled.sort_by_key(|(value, _)| *value != 0.0);
    let (mut taken, mut shown) = (Vec::<f64>::new(), Vec::new());
    for (value, text) in labelled {
        let y = scale.place(value);
        let crowded = taken.iter().any(|other| (other - y).abs() < 12.0);
        if crowded || !(area.top - 0.5..=area.bottom() + 0.5).contains(&y) {
            continue;
        }
        taken.push(y);
        shown.push(value);
        canvas.line("grid", (area.left, y), (area.right(), y));
        canvas.text("tick", (area.left - 6.0, y + 4.0), Anchor::End, &text);
    }
    shown
}

/// Numbers below, with small marks; `name` says what they are.
pub(crate) fn horizontal(canvas: &mut Canvas, area: Area, scale: &Scale, wanted: usize, name: &str) {
    canvas.line("rule", (area.left, area.bottom()), (area.right(), area.bottom()));
    let mut free = f64::NEG_INFINITY;
    let values = scale.ticks(wanted);
    for (&value, text) in values.iter().zip(ticks(&values)) {
        let x = scale.place(value);
        let half = text_width(&text, 11.0) / 2.0;
        if !(area.left - 0.5..=area.right() + 0.5).contains(&x) || x - half < free {
            continue;
        }
        free = x + half + 4.0;
        canvas.line("rule", (x, area.bottom()), (x, area.bottom() + 4.0));
        canvas.text("tick", (x, area.bottom() + 17.0), Anchor::Middle, &text);
    }
    if !name.is_empty() {
        canvas.text("name", (area.right(), area.bottom() + 34.0), Anchor::End, name);
    }
}

/// Names of equal places below; when they are too close, only every second, fifth or so is written.
pub(crate) fn named(canvas: &mut Canvas, bands: Bands, bottom: f64, names: &[String]) {
    let widest = names.iter().map(|name| text_width(name, 11.0)).fold(0.0, f64::max);
    let room = bands.width.max(1.0);
    let stride = [1, 2, 3, 5, 10, 20, 50].into_iter().find(|&n| widest + 4.0 <= room * n as f64).unwrap_or(100);
    for (index, name) in names.iter().enumerate().step_by(stride) {
        canvas.text("tick", (bands.middle(index), bottom + 16.0), Anchor::Middle, name);
    }
}
