//! From texts to answers: tokenization, batches, the forward pass, decoding.
//!
//! The texts of a request are tokenized on all threads, laid end to end and computed in batches of a few thousand
//! tokens. A sequence gets the same scores in every batch, so batching never changes a result. An input that cannot be
//! answered leaves the batch before anything is computed and does not affect the others.

pub(crate) mod answer;
pub(crate) mod classify;
pub(crate) mod tag;
pub(crate) mod values;

use std::fmt;
use std::path::PathBuf;

use qbert_model::{Head, Problem};
use qbert_tasks::{Encoded, Kind, Task};
use serde::Serialize;

pub use answer::Answers;
pub use classify::{Classification, LabelScore};
pub use tag::Tagging;
pub use values::{LabelSet, Score};

use crate::encoder::Scope;
use crate::error::{Error, Result};
use crate::input::Input;
use crate::session::Session;

/// The answer to an [`Input`].
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum Prediction {
    /// The label of a text or a pair of texts.
    Classification(Classification),
    /// Any number of labels of a text.
    LabelSet(LabelSet),
    /// The value of a text or a pair of texts.
    Score(Score),
    /// The entities of a text or a list of words.
    Tagging(Tagging),
    /// The answers to a question.
    Answers(Answers),
}

/// Why the answer to an input may mean little, although the model gives one. See [`Session::check`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// A single text for a model that was trained on pairs.
    MissingSecondText {
        /// The model.
        path: PathBuf,
        /// The task it was trained for.
        task: Task,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::MissingSecondText { path, task } = self;
        write!(formatter, "a text without the second one that {} ({task}) needs", path.display())
    }
}

impl Session {
    /// Answers every input, in order. What the answers are depends on the model's head.
    ///
    /// Inputs may be anything that becomes an [`Input`]: strings, pairs of strings, lists of words, or `Input` values.
    ///
    /// ```
    /// # mod tiny { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/model.rs")); }
    /// use qbert_runtime::Prediction;
    ///
    /// # let session = tiny::classifier();
    /// for prediction in session.predict(["the owls of Ostby", "two owls"])? {
    ///     match prediction {
    ///         Prediction::Classification(found) => println!("{} {:.3}", found.label, found.probability),
    ///         Prediction::Tagging(found) => println!("{:?}", found.entities),
    ///         Prediction::Answers(found) => println!("{:?}", found.answers.first()),
    ///         _ => {}
    ///     }
    /// }
    /// # Ok::<(), qbert_runtime::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Item`] with the index of the first input that cannot be answered. [`Session::predict_each`] answers the
    /// others.
    pub fn predict<I>(&self, inputs: I) -> Result<Vec<Prediction>>
    where
        I: IntoIterator<Item: Into<Input>>,
    {
        indexed(self.predict_each(inputs))
    }

    /// Answers one input.
    ///
    /// ```
    /// # mod tiny { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/model.rs")); }
    /// use qbert_runtime::{Input, Prediction};
    ///
    /// # let session = tiny::reader();
    /// let question = Input::question("who saw the owls ?", "ostby saw two owls");
    /// if let Prediction::Answers(found) = session.predict_one(question)? {
    ///     println!("{}", found.answers[0].text);
    /// }
    /// # Ok::<(), qbert_runtime::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Session::predict_each`].
    pub fn predict_one(&self, input: impl Into<Input>) -> Result<Prediction> {
        self.predict_each([input.into()]).pop().unwrap_or_else(|| Err(self.wrong_task("nothing")))
    }

    /// Answers every input on its own: one result per input, in order. An input that cannot be answered does not affect
    /// the others, and they are still computed in batches.
    ///
    /// ```
    /// # mod tiny { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/model.rs")); }
    /// use qbert_runtime::Input;
    ///
    /// # let session = tiny::classifier();
    /// let inputs = [Input::text("two owls"), Input::question("who ?", "the owl")];
    /// let results = session.predict_each(&inputs);
    /// assert!(results[0].is_ok());
    /// assert!(results[1].is_err(), "a classifier answers no questions");
    /// ```
    ///
    /// # Errors
    /// For an input: [`Error::WrongTask`] or [`Error::SingleTexts`] if it does not suit the model, [`Error::Task`] if it
    /// cannot be encoded, [`Error::Tokens`] if the model cannot compute its tokens.
    pub fn predict_each<I>(&self, inputs: I) -> Vec<Result<Prediction>>
    where
        I: IntoIterator<Item: Into<Input>>,
    {
        let inputs: Vec<Input> = inputs.into_iter().map(Into::into).collect();
        match self.head() {
            Head::None => inputs.iter().map(|input| Err(self.wrong_task(input.describe()))).collect(),
            Head::SequenceClassification => {
                let sources = self.sources(&inputs, classify::source);
                match self.problem() {
                    Problem::SingleLabel => {
                        wrapped(self.run_each::<_, classify::EncodedText>(sources), Prediction::Classification)
                    }
                    Problem::MultiLabel => {
                        wrapped(self.run_each::<_, values::EncodedLabels>(sources), Prediction::LabelSet)
                    }
                    Problem::Regression => {
                        wrapped(self.run_each::<_, values::EncodedValue>(sources), Prediction::Score)
                    }
                }
            }
            Head::TokenClassification => {
                let source = |input| tag::source(input, self.tokenizer().ideographs());
                let results = self.run_each::<_, tag::EncodedSentence>(self.sources(&inputs, source));
                wrapped(results, Prediction::Tagging)
            }
            Head::QuestionAnswering => {
                let results = self.run_each::<_, answer::EncodedQuestion<'_>>(self.sources(&inputs, answer::source));
                wrapped(results, Prediction::Answers)
            }
        }
    }

    /// Checks an input without computing anything: an error if the model cannot answer it, a warning if the answer would
    /// mean little.
    ///
    /// Models of pairs and of single texts have the same head. Where the file says what the model was trained for, a pair
    /// for a model of single texts is an error, and a single text for a model of pairs a warning.
    ///
    /// ```
    /// # mod tiny { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/model.rs")); }
    /// use qbert_runtime::{Error, Input};
    ///
    /// # let session = tiny::session_for(qbert_model::Head::SequenceClassification, "sst2");
    /// assert_eq!(session.check(&Input::text("two owls"))?, None);
    /// assert!(matches!(session.check(&Input::pair("two", "owls")), Err(Error::SingleTexts { .. })));
    ///
    /// # let session = tiny::session_for(qbert_model::Head::SequenceClassification, "mnli");
    /// // A model of pairs:
    /// if let Some(warning) = session.check(&Input::text("two owls"))? {
    ///     eprintln!("warning: {warning}");
    /// }
    /// # assert!(session.check(&Input::text("two owls"))?.is_some());
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::WrongTask`] or [`Error::SingleTexts`].
    pub fn check(&self, input: &Input) -> Result<Option<Warning>> {
        let suits = match self.head() {
            Head::None => false,
            Head::SequenceClassification => matches!(input, Input::Text { .. } | Input::Pair { .. }),
            Head::TokenClassification => matches!(input, Input::Text { .. } | Input::Words { .. }),
            Head::QuestionAnswering => matches!(input, Input::Question { .. }),
        };
        if !suits {
            return Err(self.wrong_task(input.describe()));
        }
        match input {
            Input::Pair { .. } => self.check_pair().map(|()| None),
            Input::Text { .. } => Ok(self
                .task()
                .filter(|task| matches!(task.kind(), Kind::Pair | Kind::ScorePair))
                .map(|task| Warning::MissingSecondText { path: self.model().path().to_owned(), task })),
            _ => Ok(None),
        }
    }

    /// Refuses pairs where the model was trained on single texts.
    fn check_pair(&self) -> Result<()> {
        match self.task() {
            Some(task) if matches!(task.kind(), Kind::Classify | Kind::MultiLabel | Kind::Score) => {
                Err(Error::SingleTexts { path: self.model().path().to_owned(), task })
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn wrong_task(&self, asked: &'static str) -> Error {
        Error::WrongTask { path: self.model().path().to_owned(), asked, head: self.head() }
    }

    fn require(&self, head: Head, asked: &'static str) -> Result<()> {
        if self.head() == head { Ok(()) } else { Err(self.wrong_task(asked)) }
    }

    /// Every input as what the head needs, or why the model cannot answer it.
    fn sources<'a, S>(&self, inputs: &'a [Input], source: impl Fn(&'a Input) -> Option<S>) -> Vec<Result<S>> {
        let checked = |input: &'a Input| {
            self.check(input)?;
            source(input).ok_or_else(|| self.wrong_task(input.describe()))
        };
        inputs.iter().map(checked).collect()
    }

    /// Takes inputs all the way: encodes them on all threads, computes their sequences in batches, decodes the scores.
    fn run_each<S: Send, E: Encoding<S>>(&self, sources: Vec<Result<S>>) -> Vec<Result<E::Output>> {
        let encodings: Vec<Result<E>> = self.map_each(sources, |source| {
            let encoding = E::encode(self, source?)?;
            encoding.sequences().try_for_each(|sequence| self.check_sequence(sequence))?;
            Ok(encoding)
        });
        let (mut values, mut ends) = (Vec::new(), vec![0]);
        let sequences = encodings.iter().flatten().flat_map(E::sequences);
        let computed = self.forward_each(sequences, Scope::Scores, |output, sequence| {
            values.extend_from_slice(output.logits_of(sequence));
            ends.push(values.len());
        });
        if computed.is_err() {
            let changed = || qbert_model::Error::Changed { path: self.model().path().to_owned() };
            return encodings.into_iter().map(|encoding| encoding.and_then(|_| Err(changed().into()))).collect();
        }
        let scores: Vec<&[f32]> = ends.windows(2).map(|pair| &values[pair[0]..pair[1]]).collect();
        let mut rest = &scores[..];
        let decode = |encoding: Result<E>| {
            let encoding = encoding?;
            let (own, after) = rest.split_at(encoding.sequences().count());
            rest = after;
            encoding.decode(self, own)
        };
        encodings.into_iter().map(decode).collect()
    }

    /// `[change(items[0]), …]`, computed on all threads.
    pub(crate) fn map_each<T: Send, R: Send>(&self, items: Vec<T>, change: impl Fn(T) -> R + Sync) -> Vec<R> {
        let mut slots: Vec<(Option<T>, Option<R>)> = items.into_iter().map(|item| (Some(item), None)).collect();
        self.compute().threads().for_each_item(&mut slots, |_, (item, result)| *result = item.take().map(&change));
        slots.into_iter().filter_map(|(_, result)| result).collect()
    }
}

/// An input on its way through the model. This is what differs between tasks; batches and the forward pass are the same.
pub(crate) trait Encoding<Source>: Sized + Send {
    /// What the scores are decoded to.
    type Output;

    fn encode(session: &Session, source: Source) -> Result<Self>;

    /// The sequences that the model has to compute, at least one.
    fn sequences(&self) -> impl Iterator<Item = &Encoded>;

    /// Decodes the scores of each sequence.
    fn decode(self, session: &Session, scores: &[&[f32]]) -> Result<Self::Output>;
}

fn wrapped<T>(results: Vec<Result<T>>, wrap: impl Fn(T) -> Prediction) -> Vec<Result<Prediction>> {
    results.into_iter().map(|result| result.map(&wrap)).collect()
}

/// All results, or the first error with its index.
pub(crate) fn indexed<T>(results: Vec<Result<T>>) -> Result<Vec<T>> {
    let name =
        |(index, result): (usize, Result<T>)| result.map_err(|error| Error::Item { index, source: Box::new(error) });
    results.into_iter().enumerate().map(name).collect()
}
