//! Marks written as SVG. Text is escaped here and nowhere else; a coordinate that is not a number never gets in.

use std::fmt::Write as _;

use crate::text::safe;

/// A rectangle in pixels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Area {
    pub(crate) left: f64,
    pub(crate) top: f64,
    pub(crate) width: f64,
    pub(crate) height: f64,
}

impl Area {
    pub(crate) fn right(&self) -> f64 {
        self.left + self.width
    }

    pub(crate) fn bottom(&self) -> f64 {
        self.top + self.height
    }
}

/// Which end of a text its position is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

/// A drawing.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Canvas {
    pub(crate) width: f64,
    pub(crate) height: f64,
    body: String,
}

/// A coordinate: one decimal is a tenth of a pixel.
pub(crate) fn coordinate(value: f64) -> String {
    let value = if value.is_finite() { (value * 10.0).round() / 10.0 } else { 0.0 };
    // Adding zero turns −0 into 0.
    format!("{}", value + 0.0)
}

/// Roughly how wide a text is; system fonts differ, so this errs on the wide side.
pub(crate) fn text_width(text: &str, size: f64) -> f64 {
    text.chars().map(|c| if matches!(c, 'i' | 'l' | '.' | ',' | ' ' | ':') { 0.34 } else { 0.6 }).sum::<f64>() * size
}

impl Canvas {
    pub(crate) fn new(width: f64, height: f64) -> Self {
        Self { width, height, body: String::new() }
    }

    fn close(&mut self, tag: &str, title: Option<&str>) {
        match title {
            Some(title) => {
                let _ = write!(self.body, "><title>{}</title></{tag}>", safe(title));
            }
            None => self.body.push_str("/>"),
        }
    }

    pub(crate) fn rect(&mut self, class: &str, area: Area, title: Option<&str>) {
        let [x, y, w, h] = [area.left, area.top, area.width.max(0.0), area.height.max(0.0)].map(coordinate);
        let _ = write!(self.body, "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\"");
        self.close("rect", title);
    }

    pub(crate) fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let [x1, y1, x2, y2] = [from.0, from.1, to.0, to.1].map(coordinate);
        let _ = write!(self.body, "<line class=\"{class}\" x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\"/>");
    }

    pub(crate) fn circle(&mut self, class: &str, at: (f64, f64), radius: f64, title: Option<&str>) {
        let [x, y, r] = [at.0, at.1, radius].map(coordinate);
        let _ = write!(self.body, "<circle class=\"{class}\" cx=\"{x}\" cy=\"{y}\" r=\"{r}\"");
        self.close("circle", title);
    }

    /// Straight lines through the points; `closed` joins the last to the first.
    pub(crate) fn path(&mut self, class: &str, points: &[(f64, f64)], closed: bool, title: Option<&str>) {
        if points.is_empty() {
            return;
        }
        let _ = write!(self.body, "<path class=\"{class}\" d=\"");
        for (index, &(x, y)) in points.iter().enumerate() {
            let letter = if index == 0 { 'M' } else { 'L' };
            let _ = write!(self.body, "{letter}{} {}", coordinate(x), coordinate(y));
        }
        self.body.push_str(if closed { "Z\"" } else { "\"" });
        self.close("path", title);
    }

    /// Text whose base line is at the position.
    pub(crate) fn text(&mut self, class: &str, (x, y): (f64, f64), anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let [x, y] = [x, y].map(coordinate);
        let _ = write!(
            self.body,
            "<text class=\"{class}\" x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\">{}</text>",
            safe(text)
        );
    }

    /// Another drawing as a part of this one, its upper left corner at the position.
    pub(crate) fn place(&mut self, part: &Self, (x, y): (f64, f64)) {
        let [x, y] = [x, y].map(coordinate);
        let _ = write!(self.body, "<g transform=\"translate({x} {y})\">{}</g>", part.body);
    }

    /// For a page, which has the style sheet.
    pub(crate) fn inline(&self, description: &str) -> String {
        let (w, h) = (coordinate(self.width), coordinate(self.height));
        format!(
            "<svg class=\"plot\" viewBox=\"0 0 {w} {h}\" width=\"{w}\" height=\"{h}\" role=\"img\" aria-label=\"{}\">{}</svg>",
            safe(description),
            self.body
        )
    }

    /// A file of its own, with the styles of both themes and a margin.
    pub(crate) fn standalone(&self, description: &str) -> String {
        const MARGIN: f64 = 10.0;
        let [w, h] = [self.width, self.height].map(|side| coordinate(side + 2.0 * MARGIN));
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"-{MARGIN} -{MARGIN} {w} {h}\" width=\"{w}\" height=\"{h}\" \
             role=\"img\"><title>{}</title><style>{}</style>\
             <rect class=\"paper\" x=\"-{MARGIN}\" y=\"-{MARGIN}\" width=\"{w}\" height=\"{h}\"/>{}</svg>\n",
            safe(description),
            super::palette::standalone_styles(),
            self.body
        )
    }
}
