//! The legend above a plot: entries side by side, in as many lines as they need.

use super::canvas::text_width;

/// The height of a line.
pub(crate) const LINE: f64 = 20.0;
const LEFT: f64 = 14.0;
/// From an entry's mark to its name.
const NAME: f64 = 24.0;

/// Where the entries of a legend go.
#[derive(Debug)]
pub(crate) struct Legend {
    x: f64,
    /// The baseline of the current line.
    pub(crate) y: f64,
    width: f64,
    gap: f64,
}

/// The places of one entry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    /// The middle of its mark.
    pub(crate) mark: (f64, f64),
    /// Both ends of its piece of line.
    pub(crate) line: [(f64, f64); 2],
    /// The start of its name.
    pub(crate) name: (f64, f64),
}

impl Legend {
    /// A legend on a canvas of this width, with this much room between entries.
    pub(crate) fn new(width: f64, gap: f64) -> Self {
        Self { x: LEFT, y: 14.0, width, gap }
    }

    /// The next entry, on this line or the next.
    pub(crate) fn entry(&mut self, name: &str) -> Entry {
        let needed = NAME + text_width(name, 12.0) + self.gap;
        if self.x > LEFT && self.x + needed > self.width {
            self.next_line();
        }
        let (x, y) = (self.x, self.y);
        self.x += needed;
        Entry { mark: (x + 6.0, y - 4.0), line: [(x - 8.0, y - 4.0), (x + 20.0, y - 4.0)], name: (x + NAME, y) }
    }

    /// Goes on at the start of the next line.
    pub(crate) fn next_line(&mut self) {
        (self.x, self.y) = (LEFT, self.y + LINE);
    }
}
