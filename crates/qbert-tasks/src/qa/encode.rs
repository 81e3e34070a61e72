//! Sequences for question answering: the question and a window of the context, after BERT's own SQuAD recipe.
//!
//! `[CLS] question [SEP] context window [SEP]`. A context that does not fit is split into windows whose starts are
//! `stride` pieces apart (BERT's meaning of "doc stride"; some programs mean the overlap). A piece in several windows
//! counts in the one where it has the most context: the larger
//! `min(left, right) + 0.01 · window length`, the earlier window if equal; decoding starts answers only there.
//!
//! The target of training is the span of pieces that overlap the first answer. A window without the whole answer
//! points at `[CLS]` (0, 0), as in BERT's v1.1 recipe, or is left out (see [`Answerless`]).

use std::ops::Range;

use super::{QaAnswer, QaExample};
use crate::encoded::{CharacterIndex, Encoded, byte_of_character, ids};
use crate::tokenizer::Frame;
use crate::{Error, Result, Tokenizer};

/// What to do with a training window without the answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Answerless {
    /// Keep it, pointing at `[CLS]`, as BERT does.
    #[default]
    PointAtCls,
    /// Leave it out, unless no window of the question has the answer; then keep all.
    Drop,
}

/// Lengths of questions and windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QaOptions {
    /// The longest sequence, special tokens included.
    pub max_len: usize,
    /// From the start of one window to the start of the next, in pieces.
    pub stride: usize,
    /// The longest question in pieces; longer ones are truncated.
    pub max_question: usize,
    /// What to do with training windows without the answer.
    pub answerless: Answerless,
}

impl Default for QaOptions {
    fn default() -> Self {
        Self { max_len: 384, stride: 128, max_question: 64, answerless: Answerless::PointAtCls }
    }
}

impl QaOptions {
    /// # Errors
    /// [`Error::MaxLen`] when the longest question leaves no room for context, [`Error::ZeroStride`].
    pub fn check(&self) -> Result<()> {
        let least = self.max_question + 4;
        if self.max_len < least {
            let what = "a question of the greatest length with one piece of context";
            return Err(Error::MaxLen { max_len: self.max_len, least, what });
        }
        if self.stride == 0 { Err(Error::ZeroStride) } else { Ok(()) }
    }

    /// [`QaOptions::check`] for a tokenizer with this frame, which may have more special tokens than BERT's.
    fn check_within(&self, frame: &Frame) -> Result<()> {
        self.check()?;
        let least = self.max_question + frame.pair() + 1;
        if self.max_len < least {
            let what = "a question of the greatest length with one piece of context";
            return Err(Error::MaxLen { max_len: self.max_len, least, what });
        }
        Ok(())
    }
}

/// One input sequence: the question with a window of its context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QaWindow {
    /// The sequence.
    pub encoded: Encoded,
    /// The question it belongs to.
    pub example: usize,
    /// The tokens of the sequence that are context.
    pub context: Range<usize>,
    /// The number of context pieces before this window.
    pub context_begin: usize,
    /// For each context token, its bytes in the original context.
    pub offsets: Vec<(usize, usize)>,
    /// For each context token, whether this is the window where it has the most context.
    pub most_context: Vec<bool>,
    /// First and last token of the answer in the sequence, (0, 0) if it is not in this window; `None` without answers.
    pub answer: Option<(usize, usize)>,
}

/// Encodes every question into one or more windows, in order.
///
/// # Errors
/// As [`QaOptions::check`].
pub fn encode_all(tokenizer: &Tokenizer, examples: &[QaExample], options: &QaOptions) -> Result<Vec<QaWindow>> {
    let mut windows = Vec::with_capacity(examples.len());
    let mut context_pieces = None;
    for (index, example) in examples.iter().enumerate() {
        // Questions of a paragraph follow each other and share its text, which is tokenized once.
        let same = matches!(&context_pieces, Some((text, _)) if std::sync::Arc::ptr_eq(text, &example.context));
        if !same {
            context_pieces = Some((example.context.clone(), tokenizer.pieces(&example.context)?));
        }
        let Some((context, pieces)) = &context_pieces else { continue };
        let question = ids(tokenizer, &example.question)?;
        let source = Source { question: &question, context, pieces, answer: example.answers.first() };
        windows.extend(source.windows(tokenizer, index, options)?);
    }
    Ok(windows)
}

/// Encodes one question; `example` is its index, copied to the windows.
///
/// # Errors
/// As [`QaOptions::check`].
pub fn encode(
    tokenizer: &Tokenizer,
    question: &str,
    context: &str,
    example: usize,
    options: &QaOptions,
) -> Result<Vec<QaWindow>> {
    let question = ids(tokenizer, question)?;
    let pieces = tokenizer.pieces(context)?;
    Source { question: &question, context, pieces: &pieces, answer: None }.windows(tokenizer, example, options)
}

struct Source<'a> {
    question: &'a [u32],
    context: &'a str,
    pieces: &'a crate::Pieces,
    answer: Option<&'a QaAnswer>,
}

impl Source<'_> {
    fn windows(&self, tokenizer: &Tokenizer, example: usize, options: &QaOptions) -> Result<Vec<QaWindow>> {
        let frame = tokenizer.frame();
        options.check_within(frame)?;
        let question = &self.question[..self.question.len().min(options.max_question)];
        let room = options.max_len - question.len() - frame.pair();
        let spans = window_spans(self.pieces.len(), room, options.stride);
        let best = best_windows(&spans);
        let answer = self.answer.map(|answer| self.answer_pieces(answer));
        let mut windows = Vec::with_capacity(spans.len());
        for (index, span) in spans.iter().enumerate() {
            let begin = frame.start.len() + question.len() + frame.between.len();
            let mut encoded = Encoded::build(frame, question, Some(&self.pieces.ids[span.clone()]));
            encoded.removed = self.question.len() - question.len();
            windows.push(QaWindow {
                encoded,
                example,
                context: begin..begin + span.len(),
                context_begin: span.start,
                offsets: self.pieces.offsets[span.clone()].to_vec(),
                most_context: best[span.clone()].iter().map(|&window| window == index).collect(),
                answer: answer.as_ref().map(|answer| answer_in_window(answer.as_ref(), span, begin)),
            });
        }
        if options.answerless == Answerless::Drop && windows.iter().any(|window| window.answer > Some((0, 0))) {
            windows.retain(|window| window.answer > Some((0, 0)));
        }
        Ok(windows)
    }

    /// The pieces that touch the answer's characters, `None` if it has none (only control characters).
    fn answer_pieces(&self, answer: &QaAnswer) -> Option<Range<usize>> {
        let begin = byte_of_character(self.context, answer.start);
        let end = begin + answer.text.len();
        let touching = |&(from, to): &(usize, usize)| to > begin && from < end;
        let first = self.pieces.offsets.iter().position(touching)?;
        let last = self.pieces.offsets.iter().rposition(touching)?;
        Some(first..last + 1)
    }
}

fn answer_in_window(answer: Option<&Range<usize>>, span: &Range<usize>, begin: usize) -> (usize, usize) {
    match answer {
        Some(answer) if answer.start >= span.start && answer.end <= span.end => {
            (begin + answer.start - span.start, begin + answer.end - 1 - span.start)
        }
        _ => (0, 0),
    }
}

/// Windows of at most `room` pieces, `stride` apart; one (maybe empty) window at least.
fn window_spans(pieces: usize, room: usize, stride: usize) -> Vec<Range<usize>> {
    let mut spans = Vec::new();
    let mut begin = 0;
    loop {
        let end = pieces.min(begin + room);
        spans.push(begin..end);
        if end == pieces {
            return spans;
        }
        begin += stride.min(room);
    }
}

/// For each piece the window in which it has the most context: BERT's rule, in hundredths so that it is exact.
fn best_windows(spans: &[Range<usize>]) -> Vec<usize> {
    let pieces = spans.last().map_or(0, |span| span.end);
    let mut best: Vec<Option<(usize, usize)>> = vec![None; pieces];
    for (index, span) in spans.iter().enumerate() {
        for piece in span.clone() {
            let score = 100 * (piece - span.start).min(span.end - 1 - piece) + span.len();
            if best[piece].is_none_or(|(known, _)| score > known) {
                best[piece] = Some((score, index));
            }
        }
    }
    best.into_iter().map(|window| window.map_or(0, |(_, index)| index)).collect()
}

/// Character offsets of a byte range of a context.
pub(crate) fn character_range(context: &str, bytes: Range<usize>) -> Range<usize> {
    let index = CharacterIndex::new(context);
    index.character(bytes.start)..index.character(bytes.end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_a_stride_apart_and_reach_the_end() {
        assert_eq!(window_spans(10, 6, 3), [0..6, 3..9, 6..10]);
        assert_eq!(window_spans(7, 6, 3), [0..6, 3..7]);
        assert_eq!(window_spans(6, 6, 3), vec![Range { start: 0, end: 6 }]);
        assert_eq!(window_spans(0, 6, 3), vec![Range { start: 0, end: 0 }]);
        // A stride longer than the window would skip text: it is held to the window's length.
        assert_eq!(window_spans(10, 4, 9), [0..4, 4..8, 8..10]);
    }

    #[test]
    fn the_window_with_most_context_wins() {
        let spans = window_spans(10, 6, 3);
        // Piece 4: in 0..6 one piece to its right, in 3..9 one to its left: equal, so the earlier window.
        assert_eq!(best_windows(&spans), [0, 0, 0, 0, 0, 1, 1, 1, 2, 2]);
    }
}
