//! From texts to answers: tokenization, batches, the forward pass, decoding.
//!
//! Texts of a batch are tokenized over all threads, laid end to end and computed in batches of a few thousand tokens.
//! However they are batched, every sequence gets the same scores, so results do not depend on it.

mod answer;
mod classify;
mod tag;

use qbert_model::Head;
use qbert_tasks::Encoded;
use serde::{Deserialize, Serialize};

pub use answer::Answers;
pub use classify::{Classification, LabelScore};
pub use tag::Tagging;

use crate::encoder::{Scope, Tokens};
use crate::error::{Error, Result};
use crate::session::Session;

/// Tokens of one forward pass: enough for full speed, little memory.
const BATCH_TOKENS: usize = 2048;

/// Anything a model can be asked.
///
/// As JSON an object: `{"text": …}`, `{"text": …, "text2": …}`, `{"words": […]}` or `{"question": …, "context": …}`; other
/// keys are ignored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Input {
    /// A pair of texts to classify.
    Pair {
        /// The first.
        text: String,
        /// The second.
        text2: String,
    },
    /// A text to classify, or to find entities in.
    Text {
        /// The text.
        text: String,
    },
    /// Words to tag.
    Words {
        /// The words, as they are.
        words: Vec<String>,
    },
    /// A question about a context.
    Question {
        /// The question.
        question: String,
        /// Where the answer is looked for.
        context: String,
    },
}

impl Input {
    /// What it asks for, for messages.
    fn asked(&self) -> &'static str {
        match self {
            Self::Pair { .. } => "a pair of texts",
            Self::Text { .. } => "a text",
            Self::Words { .. } => "a list of words",
            Self::Question { .. } => "a question",
        }
    }

    fn as_texts(&self) -> Option<(&str, Option<&str>)> {
        match self {
            Self::Text { text } => Some((text, None)),
            Self::Pair { text, text2 } => Some((text, Some(text2))),
            _ => None,
        }
    }

    fn as_question(&self) -> Option<(&str, &str)> {
        if let Self::Question { question, context } = self { Some((question, context)) } else { None }
    }
}

/// The answer to any [`Input`].
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Prediction {
    /// Of a text or a pair.
    Classification(Classification),
    /// Of a text or of words.
    Tagging(Tagging),
    /// To a question.
    Answers(Answers),
}

impl Session {
    /// Answers anything the model is for, in the order of the inputs.
    ///
    /// # Errors
    /// [`Error::WrongTask`] for an input that the model's head has no answer to.
    pub fn predict(&self, inputs: &[Input]) -> Result<Vec<Prediction>> {
        match self.head() {
            Head::None => Err(self.wrong_task(inputs.first().map_or("anything", Input::asked))),
            Head::SequenceClassification => {
                let texts = self.all(inputs, Input::as_texts)?;
                Ok(self.classify_all(&texts)?.into_iter().map(Prediction::Classification).collect())
            }
            Head::TokenClassification => {
                let sources = self.all(inputs, tag::Source::of)?;
                Ok(self.tag_all(sources)?.into_iter().map(Prediction::Tagging).collect())
            }
            Head::QuestionAnswering => {
                let questions = self.all(inputs, Input::as_question)?;
                Ok(self.answer(&questions)?.into_iter().map(Prediction::Answers).collect())
            }
        }
    }

    /// Every input as what the head needs.
    fn all<'a, T>(&self, inputs: &'a [Input], view: impl Fn(&'a Input) -> Option<T>) -> Result<Vec<T>> {
        inputs.iter().map(|input| view(input).ok_or_else(|| self.wrong_task(input.asked()))).collect()
    }

    fn wrong_task(&self, asked: &'static str) -> Error {
        Error::WrongTask { path: self.model().path().to_owned(), asked, head: self.head() }
    }

    fn require(&self, head: Head, asked: &'static str) -> Result<()> {
        if self.head() == head { Ok(()) } else { Err(self.wrong_task(asked)) }
    }

    /// `[encode(&items[0]), …]` over all threads.
    fn encode_each<T: Sync, R: Send>(
        &self,
        items: &[T],
        encode: impl Fn(usize, &T) -> Result<R> + Sync,
    ) -> Result<Vec<R>> {
        let mut slots: Vec<Option<Result<R>>> = items.iter().map(|_| None).collect();
        self.compute().threads().for_each_item(&mut slots, |index, slot| *slot = Some(encode(index, &items[index])));
        slots.into_iter().flatten().collect()
    }

    /// Computes sequences in batches and hands each one's scores to `take`, in order.
    fn score_each<'a>(
        &self,
        sequences: impl IntoIterator<Item = &'a Encoded>,
        mut take: impl FnMut(usize, &[f32]),
    ) -> Result<()> {
        let (mut ids, mut segments, mut offsets, mut first) = (Vec::new(), Vec::new(), vec![0], 0);
        let mut sequences = sequences.into_iter().peekable();
        while let Some(sequence) = sequences.next() {
            ids.extend_from_slice(&sequence.input_ids);
            segments.extend_from_slice(&sequence.segments);
            offsets.push(ids.len());
            if sequences.peek().is_some_and(|next| ids.len() + next.len() <= BATCH_TOKENS) {
                continue;
            }
            let output = self.forward(Tokens { ids: &ids, segments: &segments, offsets: &offsets }, Scope::Scores)?;
            (0..output.sequences()).for_each(|index| take(first + index, output.logits_of(index)));
            first += output.sequences();
            ids.clear();
            segments.clear();
            offsets.truncate(1);
        }
        Ok(())
    }
}
