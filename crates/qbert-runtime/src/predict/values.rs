//! Any number of labels of a text, and values of texts and pairs of texts.

use qbert_model::{Head, Problem};
use qbert_tasks::Encoded;
use qbert_tasks::classify::encode;
use qbert_tasks::multilabel::decode;
use serde::Serialize;

use super::classify::Source;
use super::{Encoding, LabelScore, indexed};
use crate::error::Result;
use crate::session::Session;

/// The labels of a text.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LabelSet {
    /// The labels whose probability is at least one half, in the order of the model's outputs.
    pub labels: Vec<String>,
    /// All labels, each with its own probability.
    pub scores: Vec<LabelScore>,
    /// The number of pieces cut off because the text is longer than the model allows.
    pub removed: usize,
}

/// The value of a text or a pair of texts.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Score {
    /// The value.
    pub score: f32,
    /// The number of pieces cut off because the text is longer than the model allows.
    pub removed: usize,
}

/// A text, encoded for a model of label sets.
#[derive(Debug)]
pub(crate) struct EncodedLabels(Encoded);

/// A text or a pair, encoded for a model of values.
#[derive(Debug)]
pub(crate) struct EncodedValue(Encoded);

impl<'a> Encoding<Source<'a>> for EncodedLabels {
    type Output = LabelSet;

    fn encode(session: &Session, (text, text2): Source<'a>) -> Result<Self> {
        Ok(Self(encode(session.tokenizer(), text, text2, session.max_len())?))
    }

    fn sequences(&self) -> impl Iterator<Item = &Encoded> {
        std::iter::once(&self.0)
    }

    fn decode(self, session: &Session, scores: &[&[f32]]) -> Result<LabelSet> {
        let logits = scores.first().copied().unwrap_or_default();
        let (set, probabilities) = decode(logits);
        let all = session.labels().iter().zip(probabilities).zip(logits);
        let scores: Vec<LabelScore> =
            all.map(|((label, probability), &logit)| LabelScore { label: label.clone(), probability, logit }).collect();
        let labels = set.into_iter().filter_map(|label| Some(scores.get(label)?.label.clone())).collect();
        Ok(LabelSet { labels, scores, removed: self.0.removed })
    }
}

impl<'a> Encoding<Source<'a>> for EncodedValue {
    type Output = Score;

    fn encode(session: &Session, (text, text2): Source<'a>) -> Result<Self> {
        Ok(Self(encode(session.tokenizer(), text, text2, session.max_len())?))
    }

    fn sequences(&self) -> impl Iterator<Item = &Encoded> {
        std::iter::once(&self.0)
    }

    fn decode(self, _: &Session, scores: &[&[f32]]) -> Result<Score> {
        let score = scores.first().and_then(|row| row.first()).copied().unwrap_or_default();
        Ok(Score { score, removed: self.0.removed })
    }
}

impl Session {
    /// What the outputs of the model's head mean.
    pub fn problem(&self) -> Problem {
        let outputs = self.labels().len();
        self.config().problem(self.head(), outputs)
    }

    /// Gives texts any number of labels, in order.
    ///
    /// # Errors
    /// [`Error::WrongTask`](crate::Error::WrongTask) if the model does not do that,
    /// [`Error::Item`](crate::Error::Item) for a text that cannot be encoded.
    pub fn label_sets<S: AsRef<str>>(&self, texts: &[S]) -> Result<Vec<LabelSet>> {
        self.require_problem(Problem::MultiLabel, "any number of labels of a text")?;
        let sources = texts.iter().map(|text| Ok((text.as_ref(), None)));
        indexed(self.run_each::<_, EncodedLabels>(sources.collect()))
    }

    /// Gives texts a value, in order.
    ///
    /// # Errors
    /// As for [`Session::label_sets`].
    pub fn score<S: AsRef<str>>(&self, texts: &[S]) -> Result<Vec<Score>> {
        self.require_problem(Problem::Regression, "a value of a text")?;
        let sources = texts.iter().map(|text| Ok((text.as_ref(), None)));
        indexed(self.run_each::<_, EncodedValue>(sources.collect()))
    }

    /// Gives pairs of texts a value, in order: how similar they are, or how well a passage answers a query.
    ///
    /// # Errors
    /// As for [`Session::label_sets`]; [`Error::SingleTexts`](crate::Error::SingleTexts) if the model was trained on single
    /// texts.
    pub fn score_pairs<S: AsRef<str>>(&self, pairs: &[(S, S)]) -> Result<Vec<Score>> {
        self.require_problem(Problem::Regression, "a value of a pair of texts")?;
        self.check_pair()?;
        let sources = pairs.iter().map(|(text, text2)| Ok((text.as_ref(), Some(text2.as_ref()))));
        indexed(self.run_each::<_, EncodedValue>(sources.collect()))
    }

    /// Refuses what a head for something else cannot give.
    pub(crate) fn require_problem(&self, problem: Problem, asked: &'static str) -> Result<()> {
        self.require(Head::SequenceClassification, asked)?;
        if self.problem() == problem { Ok(()) } else { Err(self.wrong_task(asked)) }
    }
}
