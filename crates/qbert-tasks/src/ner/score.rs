//! Entity precision, recall and F1, equal to `conlleval` and to `seqeval` in its default mode.
//!
//! An entity counts as right if its type, first and last word are right. What counts as an entity in a broken or
//! mixed sequence of tags is the whole difficulty: a tag is its first character (B, I, E, S, O or anything) and a
//! type; an entity ends after E and S, before B, S and O, and where the type changes; it begins at B and S, at I and
//! E after O, E or S, and where the type changes. Tags without type share the type `_`.
//!
//! That is so for lists of tags with marks. For other lists [`TagStyle`] says what an entity is.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::{METRIC, NerData, TagStyle};
use crate::kinds::{Details, Evaluation};
use crate::metrics::outcomes::{EntityCounts, List, Outcomes};
use crate::metrics::{NamedScores, Scores};
use crate::{Error, Labels, Result};

/// An entity in a sequence of tags.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EntitySpan {
    /// The type, such as `PER`.
    pub kind: String,
    /// The words it covers.
    pub words: Range<usize>,
}

/// How well entities were found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EntityReport {
    /// Over all entities (micro average): the number in the paper's table.
    pub overall: Scores,
    /// The unweighted mean of the types' scores.
    pub macro_average: Scores,
    /// The mean of the types' scores weighted by support.
    pub weighted_average: Scores,
    /// One per type, in code point order.
    pub per_type: Vec<NamedScores>,
    /// The share of words with the right tag.
    pub word_accuracy: f64,
    /// Whether no tag says where an entity begins, so that neighbours with the same tag cannot be told apart and the share
    /// of right words says more than F1.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub plain_tags: bool,
    /// How many sentences were scored.
    pub sentences: usize,
}

/// The entities of one sequence of tags.
pub fn spans<S: AsRef<str>>(style: TagStyle, tags: &[S]) -> Vec<EntitySpan> {
    let mut reader = SpanReader::new(style);
    for tag in tags {
        reader.push(tag.as_ref());
    }
    reader.push(OUTSIDE);
    reader.spans
}

/// Scores the predicted tags of a data set.
pub(crate) fn score(data: &NerData, predictions: &[Vec<usize>], labels: &Labels) -> Result<Evaluation> {
    let gold: Option<Vec<&Vec<usize>>> = data.sentences.iter().map(|sentence| sentence.tags.as_ref()).collect();
    let gold = gold.ok_or(Error::NothingToScore { what: "tags" })?;
    let gold: Vec<Vec<&str>> = gold.into_iter().map(|tags| labels.names_of(tags)).collect::<Result<_>>()?;
    let found: Vec<Vec<&str>> = predictions.iter().map(|tags| labels.names_of(tags)).collect::<Result<_>>()?;
    let style = TagStyle::of(labels);
    let counted = gold.iter().zip(&found).map(|(gold, found)| counts(style, gold, found)).collect();
    let report = report(style, &gold, &found)?;
    Ok(Evaluation {
        metric: METRIC,
        value: 100.0 * report.overall.f1,
        examples: report.sentences,
        left_out: None,
        label_map: Vec::new(),
        details: Details::Entities(report),
        outcomes: Outcomes::Entities(List(counted)),
    })
}

/// Scores predicted tags against the true ones, sentence by sentence.
///
/// # Errors
/// [`Error::Length`] when the numbers of sentences, or of words in one of them, differ.
pub fn report<G: AsRef<str>, P: AsRef<str>>(
    style: TagStyle,
    gold: &[Vec<G>],
    predicted: &[Vec<P>],
) -> Result<EntityReport> {
    if gold.len() != predicted.len() {
        let what = "predicted sentences".to_owned();
        return Err(Error::Length { what, expected: gold.len(), found: predicted.len() });
    }
    let (mut words, mut right_words) = (0, 0);
    for (index, (gold, predicted)) in gold.iter().zip(predicted).enumerate() {
        if gold.len() != predicted.len() {
            let what = format!("predicted tags of sentence {index}");
            return Err(Error::Length { what, expected: gold.len(), found: predicted.len() });
        }
        words += gold.len();
        right_words +=
            gold.iter().zip(predicted).filter(|(gold, predicted)| gold.as_ref() == predicted.as_ref()).count();
    }
    let (gold_entities, predicted_entities) = (entities_by_type(style, gold), entities_by_type(style, predicted));
    let types: BTreeSet<&String> = gold_entities.keys().chain(predicted_entities.keys()).collect();
    let none = BTreeSet::new();
    let (mut per_type, mut totals) = (Vec::new(), (0, 0, 0));
    for kind in types {
        let gold = gold_entities.get(kind).unwrap_or(&none);
        let predicted = predicted_entities.get(kind).unwrap_or(&none);
        let correct = gold.intersection(predicted).count();
        totals = (totals.0 + correct, totals.1 + predicted.len(), totals.2 + gold.len());
        let scores = Scores::from_counts(correct, predicted.len(), gold.len());
        per_type.push(NamedScores { name: kind.clone(), scores });
    }
    let scores: Vec<Scores> = per_type.iter().map(|named| named.scores).collect();
    Ok(EntityReport {
        overall: Scores::from_counts(totals.0, totals.1, totals.2),
        macro_average: Scores::mean(&scores),
        weighted_average: Scores::mean_by_support(&scores),
        per_type,
        word_accuracy: if words == 0 { 0.0 } else { right_words as f64 / words as f64 },
        plain_tags: !style.has_marks(),
        sentences: gold.len(),
    })
}

/// The entities of one sentence.
pub fn counts<G: AsRef<str>, P: AsRef<str>>(style: TagStyle, gold: &[G], predicted: &[P]) -> EntityCounts {
    let (gold, predicted) = (spans(style, gold), spans(style, predicted));
    let correct = predicted.iter().filter(|span| gold.contains(span)).count();
    EntityCounts { correct, predicted: predicted.len(), gold: gold.len() }
}

const OUTSIDE: &str = "O";
const INSIDE: char = 'I';
const SINGLE: char = 'S';
const NO_TYPE: &str = "_";

type Places = BTreeSet<(usize, usize)>;

/// All entities by type, at their places in one long sequence with an `O` after every sentence.
///
/// One sequence, not one per sentence, because the reference carries its state over: with tags that are none (such
/// as a bare `X`) that makes a difference, and the numbers must be equal there too.
fn entities_by_type<S: AsRef<str>>(style: TagStyle, sentences: &[Vec<S>]) -> BTreeMap<String, Places> {
    let mut reader = SpanReader::new(style);
    for sentence in sentences {
        for tag in sentence {
            reader.push(tag.as_ref());
        }
        reader.push(OUTSIDE);
    }
    reader.push(OUTSIDE);
    let mut by_type: BTreeMap<String, Places> = BTreeMap::new();
    for span in reader.spans {
        by_type.entry(span.kind).or_default().insert((span.words.start, span.words.end));
    }
    by_type
}

/// Reads entities off a sequence of tags, one tag at a time.
struct SpanReader {
    style: TagStyle,
    position: usize,
    begin: usize,
    previous: (char, String),
    spans: Vec<EntitySpan>,
}

impl SpanReader {
    fn new(style: TagStyle) -> Self {
        Self { style, position: 0, begin: 0, previous: ('O', String::new()), spans: Vec::new() }
    }

    fn push(&mut self, tag: &str) {
        let (mark, kind) = match self.style {
            TagStyle::Marked => split_tag(tag),
            TagStyle::Mixed if TagStyle::split(tag).is_some() => split_tag(tag),
            _ if tag == OUTSIDE => split_tag(tag),
            TagStyle::Mixed | TagStyle::Types => (INSIDE, tag),
            TagStyle::Words => (SINGLE, tag),
        };
        let type_changes = self.previous.1 != kind;
        if ends(self.previous.0, mark, type_changes) {
            let kind = self.previous.1.clone();
            self.spans.push(EntitySpan { kind, words: self.begin..self.position });
        }
        if begins(self.previous.0, mark, type_changes) {
            self.begin = self.position;
        }
        self.previous = (mark, kind.to_owned());
        self.position += 1;
    }
}

/// A tag's mark and type: `B-PER` is B and `PER`; a tag without type has `_`. An empty tag is outside.
fn split_tag(tag: &str) -> (char, &str) {
    let mut characters = tag.chars();
    let mark = characters.next().unwrap_or('O');
    let rest = characters.as_str();
    let kind = rest.split_once('-').map_or(rest, |(_, kind)| kind);
    (mark, if kind.is_empty() { NO_TYPE } else { kind })
}

fn is_outside(mark: char) -> bool {
    mark == 'O' || mark == '.'
}

fn ends(previous: char, mark: char, type_changes: bool) -> bool {
    match previous {
        'E' | 'S' => true,
        'B' | 'I' if matches!(mark, 'B' | 'S' | 'O') => true,
        _ => !is_outside(previous) && type_changes,
    }
}

fn begins(previous: char, mark: char, type_changes: bool) -> bool {
    match mark {
        'B' | 'S' => true,
        'E' | 'I' if matches!(previous, 'E' | 'S' | 'O') => true,
        _ => !is_outside(mark) && type_changes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(tags: &str) -> String {
        let tags: Vec<&str> = tags.split(' ').collect();
        let name = |span: EntitySpan| format!("{}:{}-{}", span.kind, span.words.start, span.words.end);
        spans(TagStyle::of_names(&tags), &tags).into_iter().map(name).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn entities_of_whole_and_broken_sequences() {
        for (tags, expected) in [
            ("B-A I-A O B-B", "A:0-2 B:3-4"),
            ("I-A I-A B-A I-B", "A:0-2 A:2-3 B:3-4"),
            ("O I-A O I-A", "A:1-2 A:3-4"),
            ("B-A E-A S-B I-B", "A:0-2 B:2-3 B:3-4"),
            ("B I O S", "_:0-2 _:3-4"),
            ("B-x-y I-x-y", "x-y:0-2"),
            ("O O", ""),
        ] {
            assert_eq!(read(tags), expected, "{tags}");
        }
    }

    /// Parts of speech and entity types without marks keep their letters.
    #[test]
    fn tags_without_marks_are_whole() {
        for (tags, expected) in [
            ("DET ADJ NOUN NOUN VERB", "DET:0-1 ADJ:1-2 NOUN:2-3 NOUN:3-4 VERB:4-5"),
            ("LABEL_0 LABEL_1", "LABEL_0:0-1 LABEL_1:1-2"),
            ("PER PER O PER LOC", "PER:0-2 PER:3-4 LOC:4-5"),
            ("B_PER I_PER O", "B_PER:0-1 I_PER:1-2"),
            ("PER-B PER-I O", "PER-B:0-1 PER-I:1-2"),
            ("B-A I-A X X O B-A", "A:0-2 X:2-4 A:5-6"),
        ] {
            assert_eq!(read(tags), expected, "{tags}");
        }
    }

    /// For parts of speech F1 is the share of right words.
    #[test]
    fn f1_of_words_is_their_accuracy() {
        let (gold, found) = (vec![vec!["DET", "NOUN", "NOUN", "VERB"]], vec![vec!["DET", "NOUN", "VERB", "VERB"]]);
        let report = report(TagStyle::Words, &gold, &found).unwrap();
        assert_eq!((report.overall.f1, report.word_accuracy, report.plain_tags), (0.75, 0.75, true));
    }

    proptest::proptest! {
        /// Counted sentence by sentence it is the same F1.
        #[test]
        fn counts_of_sentences_come_to_the_score(sentences in proptest::collection::vec(
            proptest::collection::vec((0_usize..5, 0_usize..5), 0..8), 0..12,
        )) {
            const TAGS: [&str; 5] = ["O", "B-A", "I-A", "B-B", "I-B"];
            let side = |pick: fn(&(usize, usize)) -> usize| -> Vec<Vec<&str>> {
                sentences.iter().map(|words| words.iter().map(|word| TAGS[pick(word)]).collect()).collect()
            };
            let (gold, predicted) = (side(|word| word.0), side(|word| word.1));
            let counted = gold.iter().zip(&predicted).map(|(gold, predicted)| counts(TagStyle::Marked, gold, predicted)).collect();
            let value = Outcomes::Entities(List(counted)).value();
            let f1 = 100.0 * report(TagStyle::Marked, &gold, &predicted).unwrap().overall.f1;
            proptest::prop_assert!((value - f1).abs() < 1e-9, "{} but {}", value, f1);
        }
    }

    #[test]
    fn lists_that_do_not_fit_are_refused() {
        let gold = vec![vec!["O", "O"]];
        assert!(report(TagStyle::Marked, &gold, &Vec::<Vec<&str>>::new()).is_err());
        let error = report(TagStyle::Marked, &gold, &[vec!["O"]]).unwrap_err();
        assert_eq!(error.to_string(), "predicted tags of sentence 0: found 1, expected 2");
    }
}
