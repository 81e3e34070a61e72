//! Answers to questions about a context.

use qbert_model::Head;
use qbert_tasks::decode::qa::{Answer, DecodeOptions, SpanScores, answers};
use qbert_tasks::features::qa::{QaOptions, encode};
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
        let all: Vec<_> = windows.iter().flatten().collect();
        let mut scores: Vec<[Vec<f32>; 2]> = Vec::with_capacity(all.len());
        self.score_each(all.iter().map(|window| &window.encoded), |_, logits| {
            scores.push([0, 1].map(|side| logits.iter().skip(side).step_by(2).copied().collect()));
        })?;
        let mut rest = &scores[..];
        let mut found = Vec::with_capacity(questions.len());
        for ((_, context), windows) in questions.iter().zip(&windows) {
            let (own, after) = rest.split_at(windows.len());
            rest = after;
            let spans: Vec<_> = own.iter().map(|[start, end]| SpanScores { start, end }).collect();
            let answers = answers(context.as_ref(), windows, &spans, &DecodeOptions::default())?;
            let removed = windows.first().map_or(0, |window| window.encoded.removed);
            found.push(Answers { answers, removed });
        }
        Ok(found)
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
