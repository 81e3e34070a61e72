//! A small layer of scales, marks and palettes that writes SVG.
//!
//! Ours rather than a crate's: figures must follow the page's theme (every colour is a CSS class, none is written into a
//! mark), carry tooltips and descriptions, and come out the same to the byte. `plotters` writes colours and measured
//! fonts into its SVG, `charming` needs a JavaScript engine, `poloto` draws lines only.

pub(crate) mod axis;
pub(crate) mod canvas;
pub(crate) mod contour;
pub(crate) mod heat;
pub(crate) mod legend;
pub(crate) mod mark;
pub(crate) mod palette;
pub(crate) mod scale;
pub(crate) mod surface;

/// A figure is drawn once for screens and paper, once for phones: text keeps its size.
pub(crate) const WIDE: f64 = 800.0;
/// The width of a figure on a phone.
pub(crate) const NARROW: f64 = 360.0;
