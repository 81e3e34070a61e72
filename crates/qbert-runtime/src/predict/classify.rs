//! Labels of texts and pairs of texts.

use qbert_model::Problem;
use qbert_tasks::Encoded;
use qbert_tasks::classify::{decode, encode};
use serde::Serialize;

use super::{Encoding, indexed};
use crate::error::Result;
use crate::input::Input;
use crate::session::Session;

/// The label of a text or a pair of texts.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Classification {
    /// The most probable label.
    pub label: String,
    /// Its probability.
    pub probability: f64,
    /// All labels, in the order of the model's outputs.
    pub scores: Vec<LabelScore>,
    /// The number of pieces cut off because the text is longer than the model allows.
    pub removed: usize,
}

/// The score of one label.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LabelScore {
    /// The label.
    pub label: String,
    /// Its probability.
    pub probability: f64,
    /// The model's raw score, before softmax.
    pub logit: f32,
}

/// A text or a pair, encoded.
#[derive(Debug)]
pub(crate) struct EncodedText(Encoded);

/// A text, and the second one of a pair.
pub(crate) type Source<'a> = (&'a str, Option<&'a str>);

impl<'a> Encoding<Source<'a>> for EncodedText {
    type Output = Classification;

    fn encode(session: &Session, (text, text2): Source<'a>) -> Result<Self> {
        Ok(Self(encode(session.tokenizer(), text, text2, session.max_len())?))
    }

    fn sequences(&self) -> impl Iterator<Item = &Encoded> {
        std::iter::once(&self.0)
    }

    fn decode(self, session: &Session, scores: &[&[f32]]) -> Result<Classification> {
        let logits = scores.first().copied().unwrap_or_default();
        Ok(session.classification(logits, self.0.removed))
    }
}

pub(crate) fn source(input: &Input) -> Option<Source<'_>> {
    match input {
        Input::Text { text } => Some((text, None)),
        Input::Pair { text, text2 } => Some((text, Some(text2))),
        _ => None,
    }
}

impl Session {
    /// Labels texts, in order.
    ///
    /// ```
    /// # mod tiny { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/model.rs")); }
    /// # let session = tiny::classifier();
    /// let found = session.classify(&["the owls of Ostby", "two owls"])?;
    /// println!("{} ({:.1} %)", found[0].label, 100.0 * found[0].probability);
    /// assert_eq!(found[0].scores.len(), session.labels().len());
    /// # Ok::<(), qbert_runtime::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::WrongTask`](crate::Error::WrongTask) if the model does not label texts,
    /// [`Error::Item`](crate::Error::Item) for a text that cannot be encoded.
    pub fn classify<S: AsRef<str>>(&self, texts: &[S]) -> Result<Vec<Classification>> {
        self.require_problem(Problem::SingleLabel, "the one label of a text")?;
        let sources = texts.iter().map(|text| Ok((text.as_ref(), None)));
        indexed(self.run_each::<_, EncodedText>(sources.collect()))
    }

    /// Labels pairs of texts, in order.
    ///
    /// ```
    /// # mod tiny { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/model.rs")); }
    /// # let session = tiny::classifier();
    /// let found = session.classify_pairs(&[("two owls saw ostby", "owls saw ostby")])?;
    /// println!("{}", found[0].label);
    /// # Ok::<(), qbert_runtime::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Session::classify`]; [`Error::SingleTexts`](crate::Error::SingleTexts) if the model was trained on single
    /// texts.
    pub fn classify_pairs<S: AsRef<str>>(&self, pairs: &[(S, S)]) -> Result<Vec<Classification>> {
        self.require_problem(Problem::SingleLabel, "the one label of a text")?;
        self.check_pair()?;
        let sources = pairs.iter().map(|(text, text2)| Ok((text.as_ref(), Some(text2.as_ref()))));
        indexed(self.run_each::<_, EncodedText>(sources.collect()))
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
