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
