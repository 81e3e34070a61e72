//! The list of kinds of work, and everything that goes by kind.
//!
//! A kind is a module (`classify`, `multilabel`, `values`, `embed`, `ner`, `qa`) that owns its whole way: reading files, encoding examples, decoding
//! scores, scoring predictions. This file only lists the modules, one line each in every `match`; the rest of the
//! workspace asks [`Kind::profile`], [`Dataset`], [`crate::Features`] and [`Predictions`] and never matches on a kind
//! to compute. To add one, write the module and let the compiler find the lines that are missing here.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::batch::Targets;
use crate::classify::{self, ClassificationReport, ClassifyData};
use crate::embed::{self, EmbedData, ProbeReport, RetrievalReport, SimilarityReport};
use crate::encoded::Encoded;
use crate::metrics::NamedScores;
use crate::metrics::outcomes::Outcomes;
use crate::multilabel::{self, MultiLabelData, MultiLabelReport};
use crate::ner::{self, EntityReport, NerData, NerWindow};
use crate::qa::{self, QaData, QaOptions, QaWindow, SquadReport};
use crate::stats::{DataStatistics, ExampleLengths};
use crate::values::{self, ValueData, ValueReport};
use crate::{Error, Labels, ReadOptions, Result, Task, Tokenizer};

/// What kind of features, head and metric a task needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// One label for one text.
    Classify,
    /// One label for two texts.
    Pair,
    /// Any number of labels for one text.
    MultiLabel,
    /// A value for one text.
    Score,
    /// A value for two texts.
    ScorePair,
    /// A vector for one text.
    Embed,
    /// One tag for each word.
    Ner,
    /// One span of the context.
    Qa,
}

impl Kind {
    /// What the rest of the program has to know about the kind.
    pub fn profile(self) -> &'static Profile {
        match self {
            Kind::Classify => &classify::TEXTS,
            Kind::Pair => &classify::PAIRS,
            Kind::MultiLabel => &multilabel::PROFILE,
            Kind::Score => &values::TEXTS,
            Kind::ScorePair => &values::PAIRS,
            Kind::Embed => &embed::PROFILE,
            Kind::Ner => &ner::PROFILE,
            Kind::Qa => &qa::PROFILE,
        }
    }
}

/// What a model of a kind is asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InputShape {
    /// One text.
    Text,
    /// Two texts.
    Pair,
    /// A question and its context.
    Question,
}

/// What a head must compute for a kind of task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Output {
    /// One row of label scores per sequence.
    Sequence,
    /// One row of scores per sequence, each of which decides about its own label.
    LabelSet,
    /// One value per sequence.
    Value,
    /// A vector per sequence, which no head computes.
    Vector,
    /// One row of label scores per token.
    Token,
    /// A start and an end score per token.
    Span,
}

impl Output {
    /// How many rows of scores a sequence of `tokens` tokens has.
    pub fn rows(self, tokens: usize) -> usize {
        match self {
            Output::Sequence | Output::LabelSet | Output::Value | Output::Vector => 1,
            Output::Token | Output::Span => tokens,
        }
    }
}

/// What the rest of the program has to know about a kind of task.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Profile {
    /// What its examples are called: `texts`, `questions`.
    pub examples: &'static str,
    /// What one sequence is called: `text`, `window`.
    pub sequence: &'static str,
    /// The plural of `sequence`.
    pub sequences: &'static str,
    /// What a model for it does: `classifying texts`.
    pub purpose: &'static str,
    /// The name of the task on the Hugging Face hub.
    pub hub_task: &'static str,
    /// The longest sequence if the user does not choose: 384 for question answering (BERT's SQuAD recipe), 128 for the
    /// others (its GLUE recipe).
    pub default_max_len: usize,
    /// What one of its models is asked about.
    pub input: InputShape,
    /// What its head must compute.
    pub output: Output,
    /// Whether its files are tables with named columns, so that columns and format can be chosen.
    pub has_columns: bool,
    /// Whether it has a list of labels.
    pub has_labels: bool,
    /// How to train for it.
    pub recipe: Recipe,
}

/// Training settings that work for a kind of task. They reached their targets on the paper's four data sets
/// (`results/finetune-*.json`).
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Recipe {
    /// Epochs of fine-tuning.
    pub epochs: usize,
    /// Epochs of quantization-aware training.
    pub quantization_epochs: usize,
    /// Sequences per step.
    pub batch: usize,
    /// Peak learning rate.
    pub learning_rate: f64,
}

/// What a data set can do, whatever its kind.
pub(crate) trait Examples {
    /// The number of examples.
    fn len(&self) -> usize;
    /// The labels, if the kind has any.
    fn labels(&self) -> Option<&Labels> {
        None
    }
    /// The labels as they stand in the files, and how many a head for them has.
    fn found(&self) -> Option<(&BTreeSet<String>, usize)> {
        None
    }
    /// The examples that the reader left out.
    fn left_out(&self) -> Option<LeftOut> {
        None
    }
    /// Fills in what the kind counts.
    fn count(&self, statistics: &mut DataStatistics);
    /// The lengths of each example in tokens.
    fn lengths(&self, tokenizer: &Tokenizer, options: &QaOptions) -> Result<Vec<ExampleLengths>>;
}

/// Examples of the files that are not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// How many.
    pub count: usize,
    /// What they are called, and why they are not used.
    pub why: &'static str,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} left out: {}", self.count, self.why)
    }
}

impl LeftOut {
    /// `None` where nothing was left out.
    pub(crate) fn some(count: usize, why: &'static str) -> Option<Self> {
        (count > 0).then_some(Self { count, why })
    }
}

/// A task's examples, whatever kind they are.
#[derive(Debug, Clone, PartialEq)]
pub enum Dataset {
    /// Of `sst2`, `mnli`, `classify`, `pair`.
    Classify(ClassifyData),
    /// Of `multilabel`.
    MultiLabel(MultiLabelData),
    /// Of `score`, `score-pair`.
    Values(ValueData),
    /// Of `embed`.
    Embed(EmbedData),
    /// Of `conll03`, `ner`.
    Ner(NerData),
    /// Of `squad`, `qa`.
    Qa(QaData),
}

impl Dataset {
    pub(crate) fn read(task: Task, paths: &[&Path], options: &ReadOptions) -> Result<Self> {
        match task.kind() {
            Kind::Classify | Kind::Pair => classify::read(task, paths, options).map(Self::Classify),
            Kind::MultiLabel => multilabel::read(task, paths, options).map(Self::MultiLabel),
            Kind::Score | Kind::ScorePair => values::read(task, paths, options).map(Self::Values),
            Kind::Embed => embed::read(paths, options).map(Self::Embed),
            Kind::Ner => ner::read(task, paths, options).map(Self::Ner),
            Kind::Qa => qa::read(paths, options.require_labels).map(Self::Qa),
        }
    }

    pub(crate) fn examples(&self) -> &dyn Examples {
        match self {
            Self::Classify(data) => data,
            Self::MultiLabel(data) => data,
            Self::Values(data) => data,
            Self::Embed(data) => data,
            Self::Ner(data) => data,
            Self::Qa(data) => data,
        }
    }

    /// The number of examples (texts, sentences, questions).
    pub fn len(&self) -> usize {
        self.examples().len()
    }

    /// Whether there are none; the readers refuse such files.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The labels, for kinds that have any.
    pub fn labels(&self) -> Option<&Labels> {
        self.examples().labels()
    }

    /// The examples that the files have and this data has not.
    pub fn left_out(&self) -> Option<LeftOut> {
        self.examples().left_out()
    }

    /// What the outputs of a head for this data are called: its labels, or the two ends of a span.
    ///
    /// # Errors
    /// Never for data that a reader returned.
    pub fn output_names(&self) -> Result<Labels> {
        match (self.labels(), self) {
            (Some(labels), _) => Ok(labels.clone()),
            (None, Self::Values(_)) => Labels::new([values::OUTPUT_NAME]),
            (None, Self::Embed(_)) => Labels::new([embed::OUTPUT_NAME]),
            (None, _) => Labels::new(["start", "end"]),
        }
    }

    /// A copy of the first `count` examples, in the order of the files. The labels are those of all examples.
    #[must_use]
    pub fn first(&self, count: usize) -> Self {
        match self {
            Self::Classify(data) => Self::Classify(data.first(count)),
            Self::MultiLabel(data) => Self::MultiLabel(data.first(count)),
            Self::Values(data) => Self::Values(data.first(count)),
            Self::Embed(data) => Self::Embed(data.first(count)),
            Self::Ner(data) => Self::Ner(data.first(count)),
            Self::Qa(data) => Self::Qa(data.first(count)),
        }
    }

    /// The metric in tables: `accuracy`, or `f1` for entities and answers.
    pub fn metric(&self) -> &'static str {
        match self {
            Self::Classify(_) => classify::METRIC,
            Self::MultiLabel(_) => multilabel::METRIC,
            Self::Values(_) => values::METRIC,
            Self::Embed(data) => data.aim.metric(),
            Self::Ner(_) => ner::METRIC,
            Self::Qa(_) => qa::METRIC,
        }
    }

    /// What the head must compute.
    pub fn output(&self) -> Output {
        match self {
            Self::Classify(_) => classify::TEXTS.output,
            Self::MultiLabel(_) => multilabel::PROFILE.output,
            Self::Values(_) => values::TEXTS.output,
            Self::Embed(_) => embed::PROFILE.output,
            Self::Ner(_) => ner::PROFILE.output,
            Self::Qa(_) => qa::PROFILE.output,
        }
    }
}

/// What is kept of the encoded examples, beside the sequences: targets, and where predictions come from.
#[derive(Debug)]
pub(crate) enum Encoding {
    Classify(Vec<Option<usize>>),
    MultiLabel(Vec<Option<Vec<usize>>>),
    Values(Vec<Option<f64>>),
    Embed,
    Ner(Vec<NerWindow>),
    Qa(Vec<QaWindow>),
}

impl Encoding {
    pub(crate) fn new(dataset: &Dataset, tokenizer: &Tokenizer, max_len: usize) -> Result<(Vec<Encoded>, Self)> {
        Ok(match dataset {
            Dataset::Classify(data) => {
                let features = classify::encode_all(tokenizer, &data.examples, max_len)?;
                let labels = features.iter().map(|feature| feature.label).collect();
                (features.into_iter().map(|feature| feature.encoded).collect(), Self::Classify(labels))
            }
            Dataset::MultiLabel(data) => {
                let features = classify::encode_all(tokenizer, &data.examples, max_len)?;
                (features.into_iter().map(|feature| feature.encoded).collect(), Self::MultiLabel(data.sets.clone()))
            }
            Dataset::Values(data) => {
                let features = classify::encode_all(tokenizer, &data.examples, max_len)?;
                (features.into_iter().map(|feature| feature.encoded).collect(), Self::Values(data.values.clone()))
            }
            Dataset::Embed(data) => (data.encode(tokenizer, max_len)?, Self::Embed),
            Dataset::Ner(data) => {
                let windows = ner::encode_all(tokenizer, &data.sentences, max_len)?;
                (windows.iter().map(|window| window.encoded.clone()).collect(), Self::Ner(windows))
            }
            Dataset::Qa(data) => {
                let options = QaOptions { max_len, ..QaOptions::default() };
                let windows = qa::encode_all(tokenizer, &data.examples, &options)?;
                (windows.iter().map(|window| window.encoded.clone()).collect(), Self::Qa(windows))
            }
        })
    }

    /// What a model should answer to these sequences.
    pub(crate) fn targets(&self, indices: &[usize]) -> Result<Targets> {
        match self {
            Self::Classify(labels) => classify::targets(labels, indices),
            Self::MultiLabel(sets) => multilabel::targets(sets, indices),
            Self::Values(values) => values::targets(values, indices),
            Self::Embed => Ok(Targets::Vectors { count: indices.len(), pairs: Vec::new() }),
            Self::Ner(windows) => Ok(ner::targets(windows, indices)),
            Self::Qa(windows) => qa::targets(windows, indices),
        }
    }

    /// What a model with these scores answers.
    pub(crate) fn predict(&self, dataset: &Dataset, scores: &[Vec<f32>], outputs: usize) -> Result<Predictions> {
        Ok(match (dataset, self) {
            (Dataset::Classify(_), Self::Classify(_)) => Predictions::Labels(
                scores.iter().map(|row| classify::decode(row)).map(|c| (c.label, c.probability())).collect(),
            ),
            (Dataset::MultiLabel(_), Self::MultiLabel(_)) => {
                Predictions::LabelSets(scores.iter().map(|row| multilabel::decode(row).0).collect())
            }
            (Dataset::Values(_), Self::Values(_)) => {
                let value = |row: &Vec<f32>| row.first().copied().map_or(0.0, f64::from);
                Predictions::Values(scores.iter().map(value).collect())
            }
            (Dataset::Embed(_), Self::Embed) => Predictions::Vectors(scores.to_vec()),
            (Dataset::Ner(data), Self::Ner(windows)) => {
                Predictions::Tags(ner::predict(data, windows, scores, outputs)?)
            }
            (Dataset::Qa(data), Self::Qa(windows)) => Predictions::Answers(qa::predict(data, windows, scores)?),
            _ => return Err(Error::OtherKind),
        })
    }
}

/// What a model predicted, in the order of the data.
#[derive(Debug, Clone, PartialEq)]
pub enum Predictions {
    /// The label of each text and its probability.
    Labels(Vec<(usize, f64)>),
    /// The labels of each text.
    LabelSets(Vec<Vec<usize>>),
    /// The value of each text.
    Values(Vec<f64>),
    /// The vector of each text.
    Vectors(Vec<Vec<f32>>),
    /// The tag of each word of each sentence.
    Tags(Vec<Vec<usize>>),
    /// The answer to each question and its probability; empty where there is none.
    Answers(Vec<(String, f64)>),
}

impl Predictions {
    /// Scores the predictions against the labels of the data.
    ///
    /// # Errors
    /// Data without labels, or of another kind.
    pub fn score(&self, dataset: &Dataset, labels: &Labels) -> Result<Evaluation> {
        let mut evaluation = match (dataset, self) {
            (Dataset::Classify(data), Self::Labels(found)) => classify::score(data, found, labels)?,
            (Dataset::MultiLabel(data), Self::LabelSets(found)) => multilabel::score(data, found, labels)?,
            (Dataset::Values(data), Self::Values(found)) => values::score(data, found)?,
            (Dataset::Embed(data), Self::Vectors(found)) => embed::score(data, found)?,
            (Dataset::Ner(data), Self::Tags(found)) => ner::score(data, found, labels)?,
            (Dataset::Qa(data), Self::Answers(found)) => qa::score(data, found),
            _ => return Err(Error::OtherKind),
        };
        evaluation.left_out = dataset.left_out();
        evaluation.label_map = labels.mapping().to_vec();
        Ok(evaluation)
    }
}

/// The result of an evaluation.
#[derive(Debug, Clone, Serialize)]
pub struct Evaluation {
    /// What `value` is: `accuracy`, or `f1` for entities and answers.
    pub metric: &'static str,
    /// The figure in tables, in percent.
    pub value: f64,
    /// The number of examples scored.
    pub examples: usize,
    /// Examples of the file that were not scored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_out: Option<LeftOut>,
    /// Labels of the data with the head's names for them, where they differ.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub label_map: Vec<(String, String)>,
    /// The whole report.
    pub details: Details,
    /// The outcome of each example; not written to files.
    #[serde(skip)]
    pub outcomes: Outcomes,
}

/// The whole report of a kind of task.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum Details {
    /// One label per text.
    Classification(ClassificationReport),
    /// Any number of labels per text.
    MultiLabel(MultiLabelReport),
    /// Values.
    Values(ValueReport),
    /// Similarities of pairs of texts.
    Similarity(SimilarityReport),
    /// Search.
    Retrieval(RetrievalReport),
    /// A linear probe.
    Probe(ProbeReport),
    /// Entities.
    Entities(EntityReport),
    /// Answers.
    Squad(SquadReport),
}

impl Details {
    /// The scores of each label or entity type; empty for answers.
    pub fn per_class(&self) -> &[NamedScores] {
        match self {
            Self::Classification(report) => &report.per_class,
            Self::MultiLabel(report) => &report.per_class,
            Self::Entities(report) => &report.per_type,
            Self::Values(_) | Self::Similarity(_) | Self::Retrieval(_) | Self::Probe(_) | Self::Squad(_) => &[],
        }
    }
}
