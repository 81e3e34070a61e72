//! Reports of quantization runs: one self-contained HTML page, Markdown with SVG figures, and JSON.
//!
//! A [`Report`] is plain data with optional parts; [`read::directory`] fills one from the files of a run.
//! [`Report::render`] turns it into texts. This crate writes no files: callers decide how. The same report gives the same
//! bytes.
//!
//! ```
//! use qbert_report::{Report, Summary};
//!
//! let report = Report {
//!     summary: Some(Summary {
//!         task: "sst2".to_owned(),
//!         metric: "accuracy".to_owned(),
//!         full_precision: Some(90.1),
//!         trained: Some(89.8),
//!         ..Summary::default()
//!     }),
//!     ..Report::default()
//! };
//! let rendered = report.render();
//! assert!(rendered.html.contains("0.30 points below"));
//! ```
//!
//! It computes no results; it draws what it is given.

mod content;
pub mod data;
mod error;
pub mod figure;
mod html;
mod markdown;
mod plot;
pub mod read;
mod section;
mod text;

pub use data::{
    AttentionPart, BitPlan, ClassResults, ClassRow, CurvePoint, EpochMetric, LandscapePart, LayerEigenvalues,
    LayerHeads, LayerPlane, Report, Scores, SensitivityPart, SiteBits, TrainingRun,
};
pub use error::{Error, Result};
pub use qbert_documents::{
    Answer, BeforeAfter, Change, Changes, Fact, FrontierPoint, MeasuredDrop, ModelPoint, Models, PlanSearch,
    Provenance, Speed, Summary, TrainedDrop, TriedPlan,
};
pub use text::significant;

/// A report as texts, and the figures that the Markdown shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// The page, self-contained.
    pub html: String,
    /// The same as Markdown; it links to [`Self::figures`].
    pub markdown: String,
    /// The report's data.
    pub json: String,
    /// SVG files by their names in the Markdown (`report-figures/….svg`).
    pub figures: Vec<(String, String)>,
}

impl Rendered {
    /// All files with their names relative to the output directory.
    pub fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        let page = [("report.html", &self.html), ("report.md", &self.markdown), ("report.json", &self.json)];
        let figures = self.figures.iter().map(|(name, text)| (name.as_str(), text.as_str()));
        page.into_iter().map(|(name, text)| (name, text.as_str())).chain(figures)
    }
}

impl Report {
    /// Renders page, Markdown, JSON and figures.
    pub fn render(&self) -> Rendered {
        let sections = section::all(self);
        let (title, headline) = (section::title(self), section::headline(self));
        let (markdown, figures) = markdown::page(&title, headline.as_deref(), &sections);
        Rendered { html: html::page(&title, headline.as_deref(), &sections), markdown, json: self.to_json(), figures }
    }

    /// The data as JSON; [`read::report`] reads it back.
    pub fn to_json(&self) -> String {
        qbert_documents::to_json(self)
    }
}
