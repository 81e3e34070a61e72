//! From start and end scores to answers, which are spans of the original context.
//!
//! This is BERT's n-best rule: in every window the best starts are paired with the best ends. A pair counts if both are
//! in the context, the start is in the window where it has the most context, and the answer is not too long. Unlike
//! BERT's script, only context tokens are ranked, so that scores on the question cannot crowd them out, and the text
//! is taken by offsets, so that nothing has to be detokenized.
//!
//! The order is total: higher score, then earlier window, start and end. Among equal texts only the best is kept. NaN
//! scores count as −∞.

use std::collections::HashSet;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::QaWindow;
use super::encode::character_range;
use crate::{Error, Result};

/// How many answers to look for, and how long they may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeOptions {
    /// Best starts and ends per window, and answers returned.
    pub n_best: usize,
    /// The longest answer, in pieces.
    pub max_answer_len: usize,
}

impl Default for DecodeOptions {
    fn default() -> Self {
        Self { n_best: 20, max_answer_len: 30 }
    }
}

/// An answer in its context.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// The text, as it stands in the context.
    pub text: String,
    /// Its place in Unicode code points.
    pub characters: Range<usize>,
    /// Its place in bytes.
    pub bytes: Range<usize>,
    /// The sum of start and end score.
    pub score: f64,
    /// The softmax of the score over the answers returned.
    pub probability: f64,
}

/// Start and end scores of one window, one per token of its sequence.
#[derive(Debug, Clone, Copy)]
pub struct SpanScores<'a> {
    /// For the answer's first token.
    pub start: &'a [f32],
    /// For the answer's last token.
    pub end: &'a [f32],
}

#[derive(Debug, Clone)]
struct Candidate {
    score: f64,
    window: usize,
    start: usize,
    end: usize,
}

/// The best answers to each question, best first, from the scores of all windows.
///
/// The windows of a question follow each other, in the order of `contexts`. A window's scores are the rows of a span
/// head: the start and end score of each token.
pub fn decode_each<'a, C: AsRef<str> + 'a, S: AsRef<[f32]>>(
    contexts: impl IntoIterator<Item = C> + 'a,
    windows: &'a [QaWindow],
    scores: &'a [S],
    options: DecodeOptions,
) -> impl Iterator<Item = Result<Vec<Answer>>> + 'a {
    let mut first = 0;
    contexts.into_iter().enumerate().map(move |(index, context)| {
        let count = windows[first..].iter().take_while(|window| window.example == index).count();
        let own = first..first + count;
        first = own.end;
        let found = scores.len();
        let rows = scores.get(own.clone()).ok_or_else(|| Error::Length {
            what: "scored windows".to_owned(),
            expected: windows.len(),
            found,
        })?;
        let side = |rows: &S, side| rows.as_ref().iter().skip(side).step_by(2).copied().collect::<Vec<f32>>();
        let split: Vec<[Vec<f32>; 2]> = rows.iter().map(|rows| [side(rows, 0), side(rows, 1)]).collect();
        let spans: Vec<SpanScores<'_>> = split.iter().map(|[start, end]| SpanScores { start, end }).collect();
        answers(context.as_ref(), &windows[own], &spans, &options)
    })
}

/// The best answers to one question, best first, from the windows of its context.
///
/// Empty if no pair of tokens qualifies, which happens only for a context without pieces.
///
/// # Errors
/// [`Error::Length`] when scores and windows do not fit each other.
pub fn answers(
    context: &str,
    windows: &[QaWindow],
    scores: &[SpanScores<'_>],
    options: &DecodeOptions,
) -> Result<Vec<Answer>> {
    if windows.len() != scores.len() {
        let what = "scored windows".to_owned();
        return Err(Error::Length { what, expected: windows.len(), found: scores.len() });
    }
    let mut candidates = Vec::new();
    for (index, (window, scores)) in windows.iter().zip(scores).enumerate() {
        collect(index, window, *scores, options, &mut candidates)?;
    }
    candidates.sort_by(|a, b| {
        b.score.total_cmp(&a.score).then_with(|| (a.window, a.start, a.end).cmp(&(b.window, b.start, b.end)))
    });
    let mut seen = HashSet::new();
    let mut found = Vec::new();
    for candidate in candidates {
        let offsets = &windows[candidate.window].offsets;
        let bytes = offsets[candidate.start].0..offsets[candidate.end].1;
        let Some(text) = context.get(bytes.clone()) else { continue };
        if found.len() < options.n_best && seen.insert(text.to_owned()) {
            let characters = character_range(context, bytes.clone());
            found.push(Answer { text: text.to_owned(), characters, bytes, score: candidate.score, probability: 0.0 });
        }
    }
    set_probabilities(&mut found);
    Ok(found)
}

fn collect(
    index: usize,
    window: &QaWindow,
    scores: SpanScores<'_>,
    options: &DecodeOptions,
    candidates: &mut Vec<Candidate>,
) -> Result<()> {
    for (name, list) in [("start", scores.start), ("end", scores.end)] {
        if list.len() != window.encoded.len() {
            let what = format!("{name} scores of window {index}");
            return Err(Error::Length { what, expected: window.encoded.len(), found: list.len() });
        }
    }
    let start_scores = clean(&scores.start[window.context.clone()]);
    let end_scores = clean(&scores.end[window.context.clone()]);
    let ends = best_indices(&end_scores, options.n_best, |_| true);
    for start in best_indices(&start_scores, options.n_best, |start| window.most_context[start]) {
        for &end in ends.iter().filter(|&&end| end >= start && end - start < options.max_answer_len) {
            let score = start_scores[start] + end_scores[end];
            candidates.push(Candidate { score, window: index, start, end });
        }
    }
    // If all n-best ends lie before all n-best starts, a one-piece answer keeps the window in the running.
    if !window.most_context.is_empty() && !candidates.iter().any(|candidate| candidate.window == index) {
        let single = |start: usize| Candidate {
            score: start_scores[start] + end_scores[start],
            window: index,
            start,
            end: start,
        };
        candidates.extend(best_indices(&start_scores, 1, |start| window.most_context[start]).into_iter().map(single));
    }
    Ok(())
}

fn clean(scores: &[f32]) -> Vec<f64> {
    scores.iter().map(|&score| if score.is_nan() { f64::NEG_INFINITY } else { f64::from(score) }).collect()
}

/// The indices of the `count` largest scores among those allowed, largest first, earlier first if equal.
fn best_indices(scores: &[f64], count: usize, allowed: impl Fn(usize) -> bool) -> Vec<usize> {
    let mut indices: Vec<usize> = (0..scores.len()).filter(|&index| allowed(index)).collect();
    indices.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
    indices.truncate(count);
    indices
}

fn set_probabilities(answers: &mut [Answer]) {
    let Some(best) = answers.first().map(|answer| answer.score) else { return };
    // With an infinite best score there are no finite differences: the best answers share all of the probability.
    let weight = |score: f64| if score == best { 1.0 } else { libm::exp(score - best) };
    let total: f64 = answers.iter().map(|answer| weight(answer.score)).sum();
    for answer in answers {
        answer.probability = weight(answer.score) / total;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Encoded;

    const CONTEXT: &str = "Ödön saw two owls";

    /// A window of whole words, three question tokens before them.
    fn window(words: Range<usize>, most_context: &[bool]) -> QaWindow {
        let offsets = [(0, 6), (7, 10), (11, 14), (15, 19)];
        let length = 3 + words.len() + 1;
        QaWindow {
            encoded: Encoded { input_ids: vec![0; length], segments: vec![0; length], removed: 0 },
            example: 0,
            context: 3..3 + words.len(),
            context_begin: words.start,
            offsets: offsets[words].to_vec(),
            most_context: most_context.to_vec(),
            answer: None,
        }
    }

    #[test]
    fn the_best_span_is_cut_from_the_text() {
        let windows = [window(0..4, &[true; 4])];
        let start = [9.0, 9.0, 9.0, 0.0, 1.0, 5.0, 0.0, 9.0];
        let end = [9.0, 9.0, 9.0, 0.0, 1.0, 0.0, 4.0, 9.0];
        let scores = [SpanScores { start: &start, end: &end }];
        let found = answers(CONTEXT, &windows, &scores, &DecodeOptions::default()).unwrap();
        assert_eq!(
            (found[0].text.as_str(), found[0].bytes.clone(), found[0].characters.clone()),
            ("two owls", 11..19, 9..17)
        );
        assert_eq!(found[0].score, 9.0);
        assert_eq!(found.len(), 10, "all spans of four words");
        assert!((found.iter().map(|answer| answer.probability).sum::<f64>() - 1.0).abs() < 1e-12);
        let short = DecodeOptions { n_best: 4, max_answer_len: 1 };
        let found = answers(CONTEXT, &windows, &scores, &short).unwrap();
        assert_eq!((found[0].text.as_str(), found.len()), ("two", 4));
    }

    #[test]
    fn a_start_counts_only_where_it_has_most_context() {
        let windows = [window(0..3, &[true, true, false]), window(2..4, &[true, true])];
        let high = [0.0, 0.0, 0.0, 0.0, 0.0, 8.0, 0.0];
        let low = [0.0, 0.0, 0.0, 1.0, 0.0, 0.0];
        let scores = [SpanScores { start: &high, end: &high }, SpanScores { start: &low, end: &low }];
        let found = answers(CONTEXT, &windows, &scores, &DecodeOptions::default()).unwrap();
        let two = found.iter().find(|answer| answer.text == "two").unwrap();
        assert_eq!(two.score, 2.0, "taken from the second window");
    }

    #[test]
    fn ties_nan_and_infinity_have_one_order() {
        let windows = [window(0..4, &[true; 4])];
        for level in [0.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let same = [level; 8];
            let scores = [SpanScores { start: &same, end: &same }];
            let found = answers(CONTEXT, &windows, &scores, &DecodeOptions::default()).unwrap();
            assert_eq!(found[0].text, "Ödön", "{level}");
            assert!(found.iter().all(|answer| answer.probability.is_finite()), "{level}");
        }
    }

    #[test]
    fn ends_before_all_starts_still_leave_an_answer() {
        let windows = [window(0..4, &[true; 4])];
        let start = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 9.0, 0.0];
        let end = [0.0, 0.0, 0.0, 9.0, 0.0, 0.0, 0.0, 0.0];
        let scores = [SpanScores { start: &start, end: &end }];
        let found = answers(CONTEXT, &windows, &scores, &DecodeOptions { n_best: 1, max_answer_len: 30 }).unwrap();
        assert_eq!(found[0].text, "owls");
    }

    #[test]
    fn wrong_lengths_and_empty_contexts_are_no_panic() {
        let windows = [window(0..0, &[])];
        let four = [0.0; 4];
        let scores = [SpanScores { start: &four, end: &four }];
        assert!(answers("", &windows, &scores, &DecodeOptions::default()).unwrap().is_empty());
        let scores = [SpanScores { start: &four, end: &four[..3] }];
        assert!(answers("", &windows, &scores, &DecodeOptions::default()).is_err());
        assert!(answers("", &windows, &[], &DecodeOptions::default()).is_err());
    }
}
