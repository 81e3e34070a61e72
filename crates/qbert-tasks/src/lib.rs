//! Tasks: data readers, tokenization, features, decoding and metrics for classification, pairs, NER and question
//! answering.
//!
//! Everything between a user's file and the token ids that go into a model, and between a model's scores and the
//! number in a table, lives here; models do not. The way of the data:
//!
//! 1. [`readers`] turn files into a [`Dataset`] (examples, [`Labels`], what was skipped);
//! 2. [`Tokenizer`] and [`features`] turn examples into unpadded [`Encoded`] sequences;
//! 3. [`decode`] turns scores back into entities and answer spans of the original text;
//! 4. [`metrics`] score them as `seqeval` and the official SQuAD script do;
//! 5. [`stats`] describes a data set before anybody trains on it.
//!
//! Nothing here prints, exits or panics on bad input: every fault is an [`Error`] that names file and line, with a
//! [`Error::hint`] that says what to do.

pub mod data;
pub mod decode;
mod error;
pub mod features;
mod labels;
pub mod metrics;
pub mod readers;
pub mod stats;
mod suggest;
mod task;
mod tokenizer;

pub use data::{ClassifyData, ClassifyExample, Dataset, NerData, NerSentence, QaAnswer, QaData, QaExample, TagScheme};
pub use error::{Error, Result};
pub use features::Encoded;
pub use labels::Labels;
pub use readers::{Columns, Format, LabelSource, ReadOptions, read};
pub use stats::DataStatistics;
pub use task::{Kind, Task};
pub use tokenizer::{Pieces, SpecialIds, Tokenizer, VocabOptions};
