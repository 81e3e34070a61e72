//! Tasks: everything between a user's file and the token ids that go into a model, and between a model's scores and
//! the number in a table. Models are not known here.
//!
//! A task is a module that owns its whole way: [`classify`] (texts and pairs), [`ner`] (named entities) and [`qa`]
//! (question answering) each read files, encode examples, decode scores and score predictions. Training's evaluation
//! and the runtime's predictions call the same decoding. Code that works for any task goes through a few types:
//!
//! 1. [`Task`] is a task by name, [`Kind`] the kind of work behind it, [`Profile`] what there is to know about a kind;
//! 2. [`DataSource`] says where data is and how to read it, [`Dataset`] holds the examples;
//! 3. [`Tokenizer`] and [`Features`] turn examples into unpadded [`Encoded`] sequences and [`Batch`]es;
//! 4. [`Features::predict`] decodes scores to [`Predictions`], [`Features::score`] compares them with the data;
//! 5. [`stats`] describes a data set before training.
//!
//! Nothing here prints, exits or panics on bad input: every fault is an [`Error`] that names file and line, with a
//! [`Error::hint`] on what to do.

pub mod batch;
pub mod classify;
pub mod embed;
mod encoded;
mod error;
pub mod features;
pub mod files;
mod head_labels;
mod kinds;
mod labels;
pub mod metrics;
pub mod multilabel;
pub mod ner;
pub mod qa;
mod shared;
mod source;
pub mod stats;
mod task;
mod tokenizer;
pub mod values;

pub use batch::{Batch, LabelledPair, Targets};
pub use classify::{ClassifyData, ClassifyExample};
pub use embed::EmbedData;
pub use encoded::Encoded;
pub use error::{Error, Result};
pub use features::Features;
pub use files::{Columns, Format, LabelSource, ReadOptions, read};
pub use head_labels::HeadLabels;
pub use kinds::{Dataset, Details, Evaluation, InputShape, Kind, LeftOut, Output, Predictions, Profile, Recipe};
pub use labels::Labels;
pub use multilabel::MultiLabelData;
pub use ner::{NerData, NerSentence, TagScheme};
pub use qa::{QaAnswer, QaData, QaExample};
pub use shared::SharedData;
pub use source::{DataSource, TaskData, mapping_note};
pub use stats::DataStatistics;
pub use task::Task;
pub use tokenizer::{Pieces, PrunedTokenizer, SpecialIds, Tokenizer, VocabOptions};
pub use values::ValueData;
