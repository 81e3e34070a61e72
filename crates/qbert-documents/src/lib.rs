//! The JSON files that one qbert crate writes and another reads.
//!
//! Each file has one type here, so writer and reader cannot drift apart:
//!
//! | file | type | written by |
//! |---|---|---|
//! | `sensitivity.json` | [`Sensitivity`] | `qbert analyze` |
//! | `plan-search.json` | [`PlanSearch`] | `qbert plan --max-drop`, `qbert run --max-drop` |
//! | `landscape.json` | [`LossLandscapes`] | `qbert landscape` |
//! | `attention-kl.json` | [`AttentionKl`] | `qbert attention-kl` |
//! | `train.jsonl` | [`LogRecord`], one per line | `qbert finetune`, `qbert quantize` |
//! | `metrics.json` beside a checkpoint | [`TrainingMetrics`] | `qbert finetune`, `qbert quantize` |
//! | `metrics.json` of a whole run | [`RunMetrics`] | `qbert run` |
//! | `changes.json` | [`Changes`] | `qbert run` |
//! | `summary.json` | [`Summary`] | `qbert run` |
//! | `models.json` | [`Models`] | `qbert run` |
//! | `provenance.json` | [`Provenance`] | `qbert run` |
//!
//! [`read`] and [`parse`] check `format` and `version` before the content; [`to_json`] writes them. Readers are lenient:
//! a field that is absent gets a default, and `null` in place of a number reads as NaN, because JSON has no NaN. A
//! caller that cannot do without a field checks for it.
//!
//! A file that only one crate writes and reads (the state of an interrupted run, for example) stays in that crate.

mod attention;
mod bits;
mod changes;
mod document;
mod error;
mod field;
mod landscape;
mod log;
mod metrics;
pub mod number;
mod plan_search;
mod provenance;
mod sensitivity;
mod summary;

pub use attention::{AttentionKl, LayerDivergence};
pub use bits::BitCount;
pub use changes::{Answer, Change, Changes};
pub use document::{Document, Header, parse, read, to_json};
pub use error::{Error, Result};
pub use landscape::{LayerLandscape, LossLandscapes};
pub use log::{DevFigure, EpochRecord, LogRecord, StepRecord};
pub use metrics::{BeforeTraining, DevMetrics, RunMetrics, StageMetrics, TrainingMetrics};
pub use plan_search::{FrontierPoint, MeasuredDrop, PlanSearch, TrainedDrop, TriedPlan};
pub use provenance::{Fact, Provenance};
pub use sensitivity::{
    AnalysisRun, AnalysisSubject, AnalyzedLayer, LayerMetric, MeasuredSite, MeasuredSites, MeasuredWidth, Sensitivity,
};
pub use summary::{BeforeAfter, ModelPoint, Models, Speed, Summary};
