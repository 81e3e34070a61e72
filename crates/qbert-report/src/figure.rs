//! Single figures as SVG files, for pages that are not a report: accuracy against size, eigenvalues, landscapes,
//! attention.
//!
//! The drawings are those of the report. A file carries the styles of both themes and its own background, so it is readable
//! anywhere. For a whole page about one run use [`crate::Report`].
//!
//! ```
//! use qbert_report::figure::{Curve, Look, SizeCurves, SizePoint, accuracy_against_size};
//!
//! let point = |name: &str, mib, value| SizePoint { name: name.to_owned(), mib, value, ..SizePoint::default() };
//! let curve = Curve {
//!     name: "trained".to_owned(),
//!     points: vec![point("2 bits", 2.6, 88.1), point("4 bits", 5.1, 90.0)],
//!     ..Curve::default()
//! };
//! let curves = SizeCurves {
//!     metric: "accuracy".to_owned(),
//!     full: 90.1,
//!     looks: vec![(Look::Filled, "Q-BERT".to_owned())],
//!     curves: vec![curve],
//! };
//! let drawing = accuracy_against_size(&curves).expect("there are points");
//! assert!(drawing.svg.starts_with("<svg") && drawing.caption.contains("4 bits"));
//! ```

mod heads;
mod sizes;

pub use heads::Compared;
pub use sizes::{Curve, Look, SizeCurves, SizePoint};

use crate::content::Figure;
use crate::data::{AttentionPart, LandscapePart, SensitivityPart};
use crate::section;

/// One figure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drawing {
    /// The file's content.
    pub svg: String,
    /// Alternative text for screen readers.
    pub description: String,
    /// What it shows and the conclusion, as plain text.
    pub caption: String,
}

impl Drawing {
    fn of(figure: Figure) -> Option<Self> {
        let panel = figure.panels.into_iter().next()?;
        let svg = panel.wide.standalone(&panel.description);
        Some(Self { svg, description: panel.description, caption: figure.caption })
    }
}

/// A metric against the size of the encoder, a curve for each variant; `None` without a usable point.
pub fn accuracy_against_size(curves: &SizeCurves) -> Option<Drawing> {
    Drawing::of(sizes::figure(curves)?)
}

/// Eigenvalues of each layer over the runs (paper, Fig. 2); `None` without any.
pub fn eigenvalues(sensitivity: &SensitivityPart) -> Option<Drawing> {
    Drawing::of(section::sensitivity::figure(sensitivity)?)
}

/// The loss around the weights of each layer (paper, Fig. 1, 3 and 6); `None` without a grid.
pub fn landscape(landscapes: &LandscapePart) -> Option<Drawing> {
    Drawing::of(section::landscape::surfaces(landscapes)?)
}

/// How far each head's attention moved (paper, Fig. 5); `None` without a head.
pub fn attention_kl(attention: &AttentionPart) -> Option<Drawing> {
    Drawing::of(section::attention::figure(attention)?)
}

/// How far attention moved in several quantized models (paper, Fig. 5): heads and the means of layers; `None` without a
/// head.
pub fn attention_of_models(models: &[Compared]) -> Option<Drawing> {
    Drawing::of(heads::figure(models)?)
}
