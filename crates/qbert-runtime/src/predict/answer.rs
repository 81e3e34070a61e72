//! Answers to questions about a context.

use std::borrow::Cow;

use qbert_model::Head;
use qbert_tasks::Encoded;
use qbert_tasks::qa::{Answer, DecodeOptions, QaOptions, QaWindow, decode_each, encode};
use serde::Serialize;

use super::{Encoding, indexed};
use crate::error::Result;
use crate::input::Input;
use crate::session::Session;

/// A model's answers to a question.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Answers {
    /// The best answers, best first. Empty only if the context has no words.
    pub answers: Vec<Answer>,
    /// The number of pieces cut off an overlong question. Contexts are never cut: long ones are read in windows.
    pub removed: usize,
}

/// A question with the windows of its context.
#[derive(Debug)]
pub(crate) struct EncodedQuestion<'a> {
    context: Cow<'a, str>,
    windows: Vec<QaWindow>,
}

/// Question and context.
pub(crate) type Source<'a> = (&'a str, &'a str);

impl EncodedQuestion<'_> {
    /// The same with a context of its own.
    pub(crate) fn into_owned(self) -> EncodedQuestion<'static> {
        EncodedQuestion { context: Cow::Owned(self.context.into_owned()), windows: self.windows }
    }
}

impl<'a> Encoding<Source<'a>> for EncodedQuestion<'a> {
    type Output = Answers;

    fn encode(session: &Session, (question, context): Source<'a>) -> Result<Self> {
        session.check_bytes(question.len() + context.len())?;
        let windows = encode(session.tokenizer(), question, context, 0, &session.qa_options())?;
        Ok(Self { context: Cow::Borrowed(context), windows })
    }

    fn sequences(&self) -> impl Iterator<Item = &Encoded> {
        self.windows.iter().map(|window| &window.encoded)
    }

    fn decode(self, _: &Session, scores: &[&[f32]]) -> Result<Answers> {
        let mut answers = decode_each([&*self.context], &self.windows, scores, DecodeOptions::default());
        let answers = answers.next().transpose()?.unwrap_or_default();
        let removed = self.windows.first().map_or(0, |window| window.encoded.removed);
        Ok(Answers { answers, removed })
    }
}

pub(crate) fn source(input: &Input) -> Option<Source<'_>> {
    if let Input::Question { question, context } = input { Some((question, context)) } else { None }
}

impl Session {
    /// Answers questions, each with its context, in order. Contexts may be longer than a sequence.
    ///
    /// ```
    /// # mod tiny { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/model.rs")); }
    /// # let session = tiny::reader();
    /// let context = "ostby saw two owls";
    /// let found = session.answer(&[("who saw the owls ?", context)])?;
    /// let best = &found[0].answers[0];
    /// assert_eq!(best.text, context[best.bytes.clone()]);
    /// # Ok::<(), qbert_runtime::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::WrongTask`](crate::Error::WrongTask) if the model does not answer questions,
    /// [`Error::Item`](crate::Error::Item) for a question that cannot be answered.
    pub fn answer<S: AsRef<str>>(&self, questions: &[(S, S)]) -> Result<Vec<Answers>> {
        self.require(Head::QuestionAnswering, "a question")?;
        let sources = questions.iter().map(|(question, context)| Ok((question.as_ref(), context.as_ref())));
        indexed(self.run_each::<_, EncodedQuestion<'_>>(sources.collect()))
    }

    /// BERT's usual lengths, as far as the model allows them.
    fn qa_options(&self) -> QaOptions {
        let usual = QaOptions::default();
        let max_len = usual.max_len.min(self.max_len());
        // A short model shares its length between question and context.
        let max_question = usual.max_question.min(max_len.saturating_sub(4) / 2);
        QaOptions { max_len, max_question, ..usual }
    }
}
