//! Answers to questions about a context.

use qbert_model::Head;
use qbert_tasks::qa::{Answer, DecodeOptions, QaOptions, QaWindow, decode_each, encode};
use serde::Serialize;

use crate::error::Result;
use crate::session::Session;

/// What a model answers to a question.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Answers {
    /// The best answers, best first; empty only for a context without a word.
    pub answers: Vec<Answer>,
    /// How many pieces of the question were cut off because it is too long. Contexts are seen through windows, not cut.
    pub removed: usize,
}

impl Session {
    /// The answers to questions, each with its context, in their order.
    ///
    /// # Errors
    /// [`crate::Error::WrongTask`] when the model is not for questions.
    pub fn answer<S: AsRef<str> + Sync>(&self, questions: &[(S, S)]) -> Result<Vec<Answers>> {
        self.require(Head::QuestionAnswering, "a question")?;
        let options = self.qa_options();
        let windows = self.encode_each(questions, |index, (question, context)| {
            Ok(encode(self.tokenizer(), question.as_ref(), context.as_ref(), index, &options)?)
        })?;
        let windows: Vec<QaWindow> = windows.into_iter().flatten().collect();
        let mut removed = vec![0; questions.len()];
        windows.iter().for_each(|window| removed[window.example] = window.encoded.removed);
        let mut scores: Vec<Vec<f32>> = Vec::with_capacity(windows.len());
        self.score_each(windows.iter().map(|window| &window.encoded), |_, logits| scores.push(logits.to_vec()))?;
        let contexts = questions.iter().map(|(_, context)| context.as_ref());
        let found = decode_each(contexts, &windows, &scores, DecodeOptions::default());
        let found = found.zip(removed).map(|(answers, removed)| Ok(Answers { answers: answers?, removed }));
        found.collect()
    }

    /// BERT's usual lengths, where the model takes them.
    fn qa_options(&self) -> QaOptions {
        let usual = QaOptions::default();
        let max_len = usual.max_len.min(self.max_len());
        // A short model shares its length between question and context.
        let max_question = usual.max_question.min(max_len.saturating_sub(4) / 2);
        QaOptions { max_len, max_question, ..usual }
    }
}
