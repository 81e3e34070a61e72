//! The paper's experiments on any checkpoint and data: every row of its tables is one run, and its result one file.
//!
//! [`paper`] has the tables as printed, [`rows`] says which runs they come to, [`Study`] is a checkpoint with its data
//! on which the runs are made, [`RowResult`] what is kept of one. A row is known by its name, such as
//! `qbert-mp-2-3.min-max.seed1`; rows of different tables that are the same run are one row.
//!
//! This is for comparing methods at equal budgets, and it keeps figures rather than models. For one model that is to be
//! used, take `qbert quantize` with its own defaults.

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
pub use rows::{PaperTable, Ranges, Row, RowTreatment, Selection};
pub use run::Ran;
pub use study::{Experiment, MeasuredSensitivity, State, Study, usual_high};
pub use weight_error::{WeightError, WeightErrors};
