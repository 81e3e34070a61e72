//! The paper's experiments on any checkpoint and data: every row of its tables is one run with one result file.
//!
//! [`paper`] has the tables as printed, [`rows`] lists the runs behind them, [`Study`] makes the runs on a checkpoint and
//! its data, and [`RowResult`] is the result of one. A row is identified by its name, such as
//! `qbert-mp-2-3.min-max.seed1`; rows of different tables that are the same run are one row.
//!
//! Use it to compare methods at equal budgets: it keeps figures, not models. To make a model for use, run
//! `qbert quantize` with its own defaults.

pub mod paper;
mod render;
mod result;
pub mod rows;
mod run;
mod study;
mod weight_error;

pub use render::{Rendered, render};
pub use result::{
    Bits, Compression, Drops, Epoch, Metrics, PaperMib, RowOutcomes, RowResult, RowSettings, Sizes, Source, Training,
};
pub use rows::{PaperTable, Ranges, Recipe, Row, RowTreatment, Selection};
pub use run::Ran;
pub use study::{Experiment, MeasuredSensitivity, State, Study, usual_high};
pub use weight_error::{WeightError, WeightErrors};
