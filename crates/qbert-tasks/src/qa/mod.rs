//! Question answering: a span of the context.

mod decode;
mod encode;
mod read;
mod score;

pub use decode::{Answer, DecodeOptions, SpanScores, answers, decode_each};
pub use encode::{Answerless, QaOptions, QaWindow, encode, encode_all};
pub(crate) use read::read;
pub(crate) use score::score;
pub use score::{SquadReport, best_of, exact_match, f1, normalize, report, report_by_id};

use std::collections::HashSet;
use std::sync::Arc;

use crate::batch::Targets;
use crate::kinds::{Examples, InputShape, LeftOut, Output, Profile, Recipe};
use crate::stats::{DataStatistics, ExampleLengths};
use crate::{Error, Result, Tokenizer};

/// The metric in tables: F1 over the words of answers.
pub(crate) const METRIC: &str = "f1";

pub(crate) const PROFILE: Profile = Profile {
    examples: "questions",
    sequence: "window",
    sequences: "windows",
    purpose: "answering questions about a text",
    hub_task: "question-answering",
    default_max_len: 384,
    input: InputShape::Question,
    output: Output::Span,
    has_columns: false,
    has_labels: false,
    recipe: Recipe { epochs: 2, quantization_epochs: 2, batch: 16, learning_rate: 2e-4 },
};

/// An answer as it stands in the context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QaAnswer {
    /// The text, equal to the context's at `start`.
    pub text: String,
    /// Where it begins, in Unicode code points of the context (as SQuAD counts).
    pub start: usize,
}

/// One question about one paragraph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QaExample {
    /// The question's id.
    pub id: String,
    /// The article's title; empty where the file has none.
    pub title: String,
    /// The paragraph, shared between its questions.
    pub context: Arc<str>,
    /// The question.
    pub question: String,
    /// The accepted answers; empty only where answers were not required.
    pub answers: Vec<QaAnswer>,
}

/// Questions of a QA task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QaData {
    /// In the order of the files.
    pub examples: Vec<QaExample>,
    /// Questions left out because the file marks them `is_impossible` (SQuAD 2.0) and answers were required.
    pub skipped: usize,
}

impl QaData {
    pub(crate) fn first(&self, count: usize) -> Self {
        let examples = self.examples.iter().take(count).cloned().collect();
        Self { examples, skipped: self.skipped }
    }
}

impl Examples for QaData {
    fn len(&self) -> usize {
        self.examples.len()
    }

    fn left_out(&self) -> Option<LeftOut> {
        LeftOut::some(self.skipped, "questions without an answer (`is_impossible`), which are not supported yet")
    }

    fn count(&self, statistics: &mut DataStatistics) {
        statistics.skipped = self.skipped;
        statistics.unlabelled = self.examples.iter().filter(|example| example.answers.is_empty()).count();
        let contexts: HashSet<&str> = self.examples.iter().map(|example| &*example.context).collect();
        statistics.contexts = Some(contexts.len());
    }

    fn lengths(&self, tokenizer: &Tokenizer, options: &QaOptions) -> Result<Vec<ExampleLengths>> {
        let empty = |_| ExampleLengths { whole: 0, truncated: false, sequences: Vec::new() };
        let mut lengths: Vec<ExampleLengths> = self.examples.iter().map(empty).collect();
        let kept = QaOptions { answerless: Answerless::PointAtCls, ..*options };
        for window in encode_all(tokenizer, &self.examples, &kept)? {
            let length = &mut lengths[window.example];
            let (removed, specials) = (window.encoded.removed, 3);
            let question = window.context.start - 2 + removed;
            length.truncated = removed > 0;
            length.sequences.push(window.encoded.len());
            // Windows come in order, and the last one reaches the end of the context.
            length.whole = specials + question + window.context_begin + window.context.len();
        }
        Ok(lengths)
    }
}

/// The answer spans of these windows, for the loss.
pub(crate) fn targets(windows: &[QaWindow], indices: &[usize]) -> Result<Targets> {
    let span = |&index: &usize| {
        let answer = windows[index].answer.map(|(first, last)| (first as u32, last as u32));
        answer.ok_or(Error::Unlabelled { sequence: index })
    };
    Ok(Targets::Spans(indices.iter().map(span).collect::<Result<_>>()?))
}

/// The best answer to each question with its probability, from the scores of every window; empty where there is none.
pub(crate) fn predict(data: &QaData, windows: &[QaWindow], scores: &[Vec<f32>]) -> Result<Vec<(String, f64)>> {
    let contexts = data.examples.iter().map(|example| &*example.context);
    let best = |found: Vec<Answer>| {
        found.into_iter().next().map_or((String::new(), 0.0), |answer| (answer.text, answer.probability))
    };
    decode_each(contexts, windows, scores, DecodeOptions::default()).map(|found| found.map(best)).collect()
}
