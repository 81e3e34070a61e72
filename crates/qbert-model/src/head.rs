//! The heads that a model can have on top of its encoder.

use std::fmt;

/// The head on top of the encoder. What a family calls it is in its [`HeadClass`](crate::HeadClass).
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Head {
    /// The bare encoder, with or without a pooler.
    None,
    /// One label per sequence.
    SequenceClassification,
    /// One label per token.
    TokenClassification,
    /// Start and end scores per token.
    QuestionAnswering,
}

/// What the outputs of a head on whole sequences mean: `problem_type` in `config.json`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Problem {
    /// One label: the outputs are scores of labels that exclude each other.
    #[default]
    SingleLabel,
    /// Any number of labels: every output decides about its own.
    MultiLabel,
    /// A value: the one output is that.
    Regression,
}

impl Problem {
    /// The name in `config.json`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::SingleLabel => "single_label_classification",
            Self::MultiLabel => "multi_label_classification",
            Self::Regression => "regression",
        }
    }

    /// What a model with such a head does.
    pub fn purpose(self) -> &'static str {
        match self {
            Self::SingleLabel => "one label per text",
            Self::MultiLabel => "any number of labels per text",
            Self::Regression => "a value per text",
        }
    }
}

impl fmt::Display for Head {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::None => "bare encoder",
            Self::SequenceClassification => "classification",
            Self::TokenClassification => "token classification",
            Self::QuestionAnswering => "question answering",
        })
    }
}

impl Head {
    /// All heads.
    pub const ALL: [Self; 4] =
        [Self::None, Self::SequenceClassification, Self::TokenClassification, Self::QuestionAnswering];

    /// Whether the head's outputs are labels.
    pub fn has_labels(self) -> bool {
        matches!(self, Self::SequenceClassification | Self::TokenClassification)
    }

    /// The number of outputs per row of a head with this many labels.
    pub fn outputs(self, labels: usize) -> usize {
        match self {
            Self::None => 0,
            Self::SequenceClassification | Self::TokenClassification => labels,
            Self::QuestionAnswering => 2,
        }
    }
}
