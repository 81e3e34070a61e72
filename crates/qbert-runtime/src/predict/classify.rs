//! Labels of texts and pairs of texts.

use qbert_model::Head;
use qbert_tasks::classify::{decode, encode};
use serde::Serialize;

use crate::error::Result;
use crate::session::Session;

/// The label of a text or a pair.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Classification {
    /// The most probable label.
    pub label: String,
    /// Its probability.
    pub probability: f64,
    /// Every label, in the order of the model's outputs.
    pub scores: Vec<LabelScore>,
    /// How many pieces of the text were cut off because it is longer than the model takes.
    pub removed: usize,
}

/// What a model says about one label.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LabelScore {
    /// The label.
    pub label: String,
    /// Its probability.
    pub probability: f64,
    /// The score that the probability is made of.
    pub logit: f32,
}

impl Session {
    /// The labels of texts, in their order.
    ///
    /// # Errors
    /// [`crate::Error::WrongTask`] when the model is no classifier of texts.
    pub fn classify<S: AsRef<str> + Sync>(&self, texts: &[S]) -> Result<Vec<Classification>> {
        let texts: Vec<_> = texts.iter().map(|text| (text.as_ref(), None)).collect();
        self.classify_all(&texts)
    }

    /// The labels of pairs of texts, in their order.
    ///
    /// # Errors
    /// As [`Session::classify`].
    pub fn classify_pairs<S: AsRef<str> + Sync>(&self, pairs: &[(S, S)]) -> Result<Vec<Classification>> {
        let pairs: Vec<_> = pairs.iter().map(|(text, text2)| (text.as_ref(), Some(text2.as_ref()))).collect();
        self.classify_all(&pairs)
    }

    pub(super) fn classify_all(&self, texts: &[(&str, Option<&str>)]) -> Result<Vec<Classification>> {
        self.require(Head::SequenceClassification, "a label of a text")?;
        let encoded =
            self.encode_each(texts, |_, (text, text2)| Ok(encode(self.tokenizer(), text, *text2, self.max_len())?))?;
        let mut found = Vec::with_capacity(texts.len());
        self.score_each(&encoded, |index, logits| found.push(self.classification(logits, encoded[index].removed)))?;
        Ok(found)
    }

    fn classification(&self, logits: &[f32], removed: usize) -> Classification {
        let choice = decode(logits);
        let scores = self.labels().iter().zip(choice.probabilities).zip(logits);
        let scores: Vec<LabelScore> = scores
            .map(|((label, probability), &logit)| LabelScore { label: label.clone(), probability, logit })
            .collect();
        let (label, probability) =
            scores.get(choice.label).map_or((String::new(), 0.0), |score| (score.label.clone(), score.probability));
        Classification { label, probability, scores, removed }
    }
}
