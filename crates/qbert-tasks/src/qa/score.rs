//! SQuAD v1.1 exact match and F1, equal to the official evaluation script.
//!
//! Answers are compared after lower-casing, dropping punctuation (Python's `string.punctuation`, ASCII only), dropping
//! the articles *a*, *an*, *the*, and joining what is left by single spaces. The official script is Python, so where
//! the languages differ Python's rule holds: white space is what `str.split()` takes for it (U+001C to U+001F too),
//! and a word, for the articles, is what `\w` takes for it (letters and numbers of any script and `_`, but no
//! combining marks). Each question counts its best gold answer; a question without a prediction counts 0. The F1 of
//! two answers that are both empty after normalization is 0 while their exact match is 1, as in the script.

use std::collections::HashMap;
use std::sync::LazyLock;

use regex::Regex;
use serde::{Deserialize, Serialize};

use super::{METRIC, QaData, QaExample};
use crate::kinds::{Details, Evaluation};
use crate::metrics::outcomes::{List, Outcomes, Overlap};

/// How well questions were answered.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SquadReport {
    /// The percentage of answers equal to a gold answer.
    pub exact_match: f64,
    /// The mean overlap with the best gold answer, in percent.
    pub f1: f64,
    /// How many questions there are.
    pub questions: usize,
    /// How many of them have no prediction; they count 0.
    pub unanswered: usize,
}

/// Scores the answers to a data set's questions.
pub(crate) fn score(data: &QaData, predictions: &[(String, f64)]) -> Evaluation {
    let pairs = data.examples.iter().zip(predictions);
    let bests: Vec<(bool, f64)> = pairs.map(|(example, (text, _))| best_of(example, text)).collect();
    let overlaps = bests.iter().map(|(_, overlap)| Overlap(*overlap)).collect();
    let report = report(bests.into_iter().map(Some));
    Evaluation {
        metric: METRIC,
        value: report.f1,
        examples: report.questions,
        left_out: None,
        label_map: Vec::new(),
        details: Details::Squad(report),
        outcomes: Outcomes::Overlap(List(overlaps)),
    }
}

/// Scores predictions given as a lookup from question id to answer text, as the official script takes them.
pub fn report_by_id<'a>(examples: &[QaExample], prediction: impl Fn(&str) -> Option<&'a str>) -> SquadReport {
    report(examples.iter().map(|example| prediction(&example.id).map(|answer| best_of(example, answer))))
}

/// The same from what [`best_of`] said of each question; `None` for those without a prediction.
pub fn report(questions: impl Iterator<Item = Option<(bool, f64)>>) -> SquadReport {
    let (mut all, mut exact, mut overlap, mut unanswered) = (0_usize, 0_usize, 0.0, 0);
    for best in questions {
        all += 1;
        let Some((is_exact, best)) = best else {
            unanswered += 1;
            continue;
        };
        exact += usize::from(is_exact);
        overlap += best;
    }
    let percent = |sum: f64| if all == 0 { 0.0 } else { 100.0 * sum / all as f64 };
    SquadReport { exact_match: percent(exact as f64), f1: percent(overlap), questions: all, unanswered }
}

/// Whether an answer is one of the question's, and its largest overlap with one.
pub fn best_of(example: &QaExample, answer: &str) -> (bool, f64) {
    let answer = normalize(answer);
    let mut best: (bool, f64) = (false, 0.0);
    for gold in example.answers.iter().map(|gold| normalize(&gold.text)) {
        best = (best.0 || answer == gold, best.1.max(token_f1(&answer, &gold)));
    }
    best
}

/// Whether two answers are the same after normalization.
pub fn exact_match(prediction: &str, gold: &str) -> bool {
    normalize(prediction) == normalize(gold)
}

/// The F1 of the words two answers have in common after normalization.
pub fn f1(prediction: &str, gold: &str) -> f64 {
    token_f1(&normalize(prediction), &normalize(gold))
}

/// The official script's normal form of an answer.
pub fn normalize(text: &str) -> String {
    let lower = text.to_lowercase();
    let bare: String = lower.chars().filter(|character| !character.is_ascii_punctuation()).collect();
    let plain = without_articles(&bare);
    let words: Vec<&str> = plain.split(is_python_space).filter(|word| !word.is_empty()).collect();
    words.join(" ")
}

fn token_f1(prediction: &str, gold: &str) -> f64 {
    let words = |text: &'_ str| text.split(' ').filter(|word| !word.is_empty()).count();
    let mut left: HashMap<&str, usize> = HashMap::new();
    for word in gold.split(' ').filter(|word| !word.is_empty()) {
        *left.entry(word).or_default() += 1;
    }
    let mut common = 0_usize;
    for word in prediction.split(' ') {
        if let Some(count) = left.get_mut(word).filter(|count| **count > 0) {
            *count -= 1;
            common += 1;
        }
    }
    if common == 0 {
        return 0.0;
    }
    let precision = common as f64 / words(prediction) as f64;
    let recall = common as f64 / words(gold) as f64;
    (2.0 * precision * recall) / (precision + recall)
}

/// Every run of word characters that is an article becomes a space, as `re.sub(r"\b(a|an|the)\b", " ", text)`.
fn without_articles(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let word = is_python_word(first);
        let end = rest.find(|character| is_python_word(character) != word).unwrap_or(rest.len());
        let (run, after) = rest.split_at(end);
        result.push_str(if matches!(run, "a" | "an" | "the") { " " } else { run });
        rest = after;
    }
    result
}

/// What `str.isspace` and `str.split` of Python take for white space.
fn is_python_space(character: char) -> bool {
    character.is_whitespace() || matches!(character, '\u{1c}'..='\u{1f}')
}

/// What `\w` of Python's `re` matches: `str.isalnum()` or `_`.
fn is_python_word(character: char) -> bool {
    // A pattern written here: the tests build it.
    #[expect(clippy::unwrap_used)]
    static WORD: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^[\p{L}\p{N}]$").unwrap());
    if character.is_ascii() {
        return character.is_ascii_alphanumeric() || character == '_';
    }
    WORD.is_match(character.encode_utf8(&mut [0; 4]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranges of code points, ends included.
    type Ranges = Vec<(u32, u32)>;

    #[derive(Deserialize)]
    struct PythonCharacters {
        word: Ranges,
        space: Ranges,
        unassigned: Ranges,
        lower: Vec<(u32, String)>,
    }

    fn within(ranges: &Ranges, code: u32) -> bool {
        let after = ranges.partition_point(|range| range.0 <= code);
        after > 0 && code <= ranges[after - 1].1
    }

    /// All of Unicode against Python's own answers, but for characters newer than that Python.
    #[test]
    fn words_spaces_and_lower_case_are_pythons() {
        let golden = include_str!("../../tests/goldens/python_characters.json");
        let python: PythonCharacters = serde_json::from_str(golden).unwrap();
        let lower: HashMap<u32, String> = python.lower.into_iter().collect();
        let mut compared = 0;
        for character in '\0'..=char::MAX {
            let code = u32::from(character);
            if within(&python.unassigned, code) {
                continue;
            }
            compared += 1;
            assert_eq!(is_python_word(character), within(&python.word, code), "word U+{code:04X}");
            assert_eq!(is_python_space(character), within(&python.space, code), "space U+{code:04X}");
            let lowered = character.to_string().to_lowercase();
            let expected = lower.get(&code).cloned().unwrap_or_else(|| character.to_string());
            assert_eq!(lowered, expected, "lower U+{code:04X}");
        }
        assert!(compared > 280_000, "{compared}");
    }
}
