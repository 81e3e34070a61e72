//! Metrics and features equal the reference programs: `reference/metrics/make_goldens.py` wrote the goldens.

use std::collections::BTreeMap;

use qbert_tasks::metrics::Scores;
use qbert_tasks::qa::QaOptions;
use qbert_tasks::{Dataset, Labels, ReadOptions, Task, Tokenizer, VocabOptions, classify, ner, qa, read};
use serde::Deserialize;

const VOCAB: &[u8] = include_bytes!("data/vocab.txt");

fn close(ours: f64, reference: f64, what: &str) {
    assert!((ours - reference).abs() <= 1e-12, "{what}: {ours} instead of {reference}");
}

/// Precision, recall, F1 and support, as the goldens have them.
fn same_scores(ours: Scores, reference: (f64, f64, f64, usize), what: &str) {
    close(ours.precision, reference.0, &format!("{what}: precision"));
    close(ours.recall, reference.1, &format!("{what}: recall"));
    close(ours.f1, reference.2, &format!("{what}: f1"));
    assert_eq!(ours.support, reference.3, "{what}: support");
}

#[derive(Deserialize)]
struct SquadGolden {
    normalized: Vec<(String, String)>,
    pairs: Vec<(String, String, bool, f64)>,
    dataset: serde_json::Value,
    predictions: BTreeMap<String, String>,
    report: BTreeMap<String, f64>,
}

#[test]
fn squad_scores_are_the_official_scripts() {
    let golden: SquadGolden = serde_json::from_str(include_str!("goldens/squad.json")).unwrap();
    for (text, expected) in &golden.normalized {
        assert_eq!(&qa::normalize(text), expected, "{text:?}");
    }
    for (prediction, gold, exact, f1) in &golden.pairs {
        assert_eq!(qa::exact_match(prediction, gold), *exact, "{prediction:?} {gold:?}");
        close(qa::f1(prediction, gold), *f1, &format!("{prediction:?} {gold:?}"));
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), golden.dataset.to_string()).unwrap();
    let Dataset::Qa(data) = read(Task::Squad, &[file.path()], &ReadOptions::default()).unwrap() else { panic!() };
    let report = qa::report_by_id(&data.examples, |id| golden.predictions.get(id).map(String::as_str));
    close(report.exact_match, golden.report["exact_match"], "exact match");
    close(report.f1, golden.report["f1"], "f1");
    assert_eq!((report.questions, report.unanswered), (120, 120 + 1 - golden.predictions.len()));
}

/// Type, first word, one past the last word.
type Span = (String, usize, usize);

#[derive(Deserialize)]
struct EntityGolden {
    cases: Vec<EntityCase>,
    spans: Vec<(Vec<String>, Vec<Span>)>,
}

#[derive(Deserialize)]
struct EntityCase {
    name: String,
    gold: Vec<Vec<String>>,
    predicted: Vec<Vec<String>>,
    averages: BTreeMap<String, (f64, f64, f64, usize)>,
    per_type: Vec<(String, (f64, f64, f64, usize))>,
    word_accuracy: f64,
}

#[test]
fn entity_scores_are_seqevals() {
    let golden: EntityGolden = serde_json::from_str(include_str!("goldens/entities.json")).unwrap();
    assert!(golden.cases.len() > 20);
    for case in golden.cases {
        let report = ner::report(ner::TagStyle::Marked, &case.gold, &case.predicted).unwrap();
        same_scores(report.overall, case.averages["micro"], &case.name);
        same_scores(report.macro_average, case.averages["macro"], &case.name);
        same_scores(report.weighted_average, case.averages["weighted"], &case.name);
        close(report.word_accuracy, case.word_accuracy, &case.name);
        assert_eq!(report.per_type.len(), case.per_type.len(), "{}", case.name);
        for (ours, (kind, reference)) in report.per_type.iter().zip(case.per_type) {
            assert_eq!(ours.name, kind, "{}", case.name);
            same_scores(ours.scores, reference, &format!("{} {kind}", case.name));
        }
    }
    for (tags, expected) in golden.spans {
        let ours: Vec<Span> = ner::spans(ner::TagStyle::Marked, &tags)
            .into_iter()
            .map(|span| (span.kind, span.words.start, span.words.end))
            .collect();
        assert_eq!(ours, expected, "{tags:?}");
    }
}

#[derive(Deserialize)]
struct ClassificationCase {
    classes: usize,
    gold: Vec<usize>,
    predicted: Vec<usize>,
    accuracy: f64,
    matthews: f64,
    per_class: Vec<(f64, f64, f64, usize)>,
    #[serde(rename = "macro")]
    macro_average: (f64, f64, f64),
    confusion: Vec<Vec<usize>>,
}

#[test]
fn classification_scores_are_scikit_learns() {
    let cases: Vec<ClassificationCase> = serde_json::from_str(include_str!("goldens/classification.json")).unwrap();
    assert_eq!(cases.len(), 7);
    for (index, case) in cases.into_iter().enumerate() {
        let labels = Labels::new((0..case.classes).map(|class| format!("class {class}"))).unwrap();
        let report = classify::report(&case.gold, &case.predicted, &labels).unwrap();
        let what = format!("case {index}");
        close(report.accuracy, case.accuracy, &what);
        close(report.matthews, case.matthews, &what);
        let mean = (case.macro_average.0, case.macro_average.1, case.macro_average.2, case.gold.len());
        same_scores(report.macro_average, mean, &what);
        assert_eq!(report.confusion, case.confusion, "{what}");
        for (ours, reference) in report.per_class.iter().zip(case.per_class) {
            same_scores(ours.scores, reference, &what);
        }
    }
}

#[derive(Deserialize)]
struct TokenizationGolden {
    texts: Vec<TextCase>,
    singles: Vec<SingleCase>,
    pairs: Vec<PairCase>,
    windows: Vec<WindowCase>,
    words: Vec<WordsCase>,
}

#[derive(Deserialize)]
struct TextCase {
    #[serde(flatten)]
    options: VocabOptions,
    text: String,
    ids: Vec<u32>,
    characters: Vec<(usize, usize)>,
}

#[derive(Deserialize)]
struct SingleCase {
    text: String,
    max_len: usize,
    ids: Vec<u32>,
}

#[derive(Deserialize)]
struct PairCase {
    first: String,
    second: String,
    max_len: usize,
    ids: Vec<u32>,
    segments: Vec<u8>,
}

#[derive(Deserialize)]
struct WindowCase {
    question: String,
    context: String,
    max_len: usize,
    stride: usize,
    max_question: usize,
    ids: Vec<Vec<u32>>,
}

#[derive(Deserialize)]
struct WordsCase {
    words: Vec<String>,
    ids: Vec<u32>,
    first: Vec<usize>,
}

fn tokenization() -> TokenizationGolden {
    serde_json::from_str(include_str!("goldens/tokenization.json")).expect("the goldens are JSON")
}

fn tokenizer(options: VocabOptions) -> Tokenizer {
    Tokenizer::from_vocab("vocab.txt", VOCAB, options).expect("the vocabulary is good")
}

#[test]
fn pieces_and_offsets_are_those_of_transformers() {
    let cases = tokenization().texts;
    let unknown = tokenizer(VocabOptions::default()).special().unk;
    assert!(cases.iter().filter(|case| case.ids.iter().all(|&id| id != unknown)).count() > 100, "real pieces");
    for case in cases {
        let pieces = tokenizer(case.options).pieces(&case.text).unwrap();
        assert_eq!(pieces.ids, case.ids, "{:?}", case.text);
        let characters = |byte: usize| case.text[..byte].chars().count();
        let offsets: Vec<_> = pieces.offsets.iter().map(|&(from, to)| (characters(from), characters(to))).collect();
        assert_eq!(offsets, case.characters, "{:?}", case.text);
    }
}

#[test]
fn truncation_is_that_of_transformers() {
    let tokenizer = tokenizer(VocabOptions::default());
    let golden = tokenization();
    for case in golden.singles {
        let encoded = classify::encode(&tokenizer, &case.text, None, case.max_len).unwrap();
        assert_eq!(encoded.input_ids, case.ids, "{:?}", case.text);
        assert_eq!(encoded.segments, vec![0; case.ids.len()]);
    }
    let mut cut = 0;
    for case in golden.pairs {
        let encoded = classify::encode(&tokenizer, &case.first, Some(&case.second), case.max_len).unwrap();
        assert_eq!(encoded.input_ids, case.ids, "{:?} {:?} {}", case.first, case.second, case.max_len);
        assert_eq!(encoded.segments, case.segments);
        cut += usize::from(encoded.removed > 0);
    }
    assert!(cut > 50, "{cut}");
}

#[test]
fn windows_are_those_of_transformers() {
    let tokenizer = tokenizer(VocabOptions::default());
    let mut several = 0;
    for case in tokenization().windows {
        let options = QaOptions {
            max_len: case.max_len,
            stride: case.stride,
            max_question: case.max_question,
            ..QaOptions::default()
        };
        let windows = qa::encode(&tokenizer, &case.question, &case.context, 0, &options).unwrap();
        let ids: Vec<_> = windows.into_iter().map(|window| window.encoded.input_ids).collect();
        assert_eq!(ids, case.ids, "{:?}", case.context);
        several += usize::from(ids.len() > 1);
    }
    assert!(several > 20, "{several}");
}

#[test]
fn word_alignment_is_that_of_transformers() {
    let tokenizer = tokenizer(VocabOptions::default());
    for case in tokenization().words {
        let windows = ner::encode(&tokenizer, &case.words, None, 0, 2048).unwrap();
        assert_eq!(windows.len(), 1);
        assert_eq!(windows[0].encoded.input_ids, case.ids, "{:?}", case.words);
        let first: Vec<usize> = windows[0].words.iter().map(|position| position.token).collect();
        assert_eq!(first, case.first, "{:?}", case.words);
    }
}
