//! Shared data: read once, and equal to what reading it again would give.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use qbert_tasks::{DataSource, Features, LabelSource, Labels, SharedData, Task, Tokenizer, VocabOptions};

const VOCAB: &[u8] = include_bytes!("data/vocab.txt");

fn tokenizer() -> Tokenizer {
    Tokenizer::from_vocab("vocab.txt", VOCAB, VocabOptions::default()).expect("a good vocabulary")
}

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// Questions whose contexts need several windows of 80 tokens.
fn questions(directory: &Path, count: usize) -> PathBuf {
    let paragraph = |index: usize| {
        let context = "owl ".repeat(100 + 40 * index);
        let answers = serde_json::json!([{ "text": "owl", "answer_start": 4 * (30 * index) }]);
        serde_json::json!({ "context": context, "qas": [{ "id": index, "question": "which bell", "answers": answers }] })
    };
    let paragraphs: Vec<_> = (0..count).map(paragraph).collect();
    let path = directory.join(format!("questions-{count}.json"));
    std::fs::write(&path, serde_json::json!({ "data": [{ "paragraphs": paragraphs }] }).to_string())
        .expect("a directory to write to");
    path
}

fn assert_same(ours: &Features, theirs: &Features) {
    assert_eq!(ours.dataset(), theirs.dataset());
    assert_eq!(ours.len(), theirs.len());
    let all: Vec<usize> = (0..ours.len()).collect();
    let [ours, theirs] = [ours, theirs].map(|features| features.batch(&all, true).expect("labelled data"));
    assert_eq!((ours.input_ids, ours.segments, ours.offsets), (theirs.input_ids, theirs.segments, theirs.offsets));
    assert_eq!(format!("{:?}", ours.targets), format!("{:?}", theirs.targets));
}

#[test]
fn files_are_read_once_and_encoded_once_for_each_limit() {
    let mut shared = SharedData::default();
    let source = DataSource::new(Task::Sst2, [file("reviews.tsv")]);
    let all = shared.load(source.clone(), &tokenizer(), None).unwrap();
    // An equal tokenizer, a limit beyond the end, and the task's own labels by name change nothing.
    let json = Tokenizer::from_json("tokenizer.json", tokenizer().to_json().unwrap().as_bytes()).unwrap();
    let named = source.clone().with_labels(LabelSource::Given(Task::Sst2.default_labels().unwrap()));
    let again = shared.load(named, &json, Some(1000)).unwrap();
    assert!(Arc::ptr_eq(&all.features, &again.features));
    let first = shared.load(source.clone(), &tokenizer(), Some(2)).unwrap();
    assert_eq!((first.features.len(), first.labels.len(), shared.reads()), (2, 2, 1));
    let cased = VocabOptions { lowercase: false, ..VocabOptions::default() };
    let cased = Tokenizer::from_vocab("vocab.txt", VOCAB, cased).unwrap();
    let other = shared.load(source.clone(), &cased, None).unwrap();
    assert!(!Arc::ptr_eq(&all.features, &other.features));
    let short = shared.load(DataSource { max_len: 5, ..source }, &tokenizer(), None).unwrap();
    assert!((0..short.features.len()).all(|index| short.features.length(index) <= 5));
    assert_eq!(shared.reads(), 1);
}

#[test]
fn found_labels_may_be_given_but_another_order_is_read_again() {
    let mut shared = SharedData::default();
    let source = DataSource::new(Task::Ner, [file("own-entities.conll")]);
    let found = shared.load(source.clone(), &tokenizer(), None).unwrap();
    let given = source.clone().with_labels(LabelSource::Given(found.labels.clone()));
    assert!(Arc::ptr_eq(&found.features, &shared.load(given, &tokenizer(), None).unwrap().features));
    assert_eq!(shared.reads(), 1);
    let reversed = Labels::new(found.labels.names().iter().rev().cloned()).unwrap();
    let reversed = source.with_labels(LabelSource::Given(reversed));
    let lent = shared.load(reversed.clone(), &tokenizer(), None).unwrap();
    assert_eq!(shared.reads(), 2);
    assert_same(&lent.features, &reversed.load(&tokenizer(), None).unwrap().features);
}

#[test]
fn the_first_examples_equal_a_file_that_ends_there() {
    let home = tempfile::tempdir().unwrap();
    let mut shared = SharedData::default();
    let source = |count| DataSource { max_len: 80, ..DataSource::new(Task::Qa, [questions(home.path(), count)]) };
    let all = shared.load(source(5), &tokenizer(), None).unwrap();
    let first = shared.load(source(5), &tokenizer(), Some(3)).unwrap();
    assert_same(&first.features, &source(3).load(&tokenizer(), None).unwrap().features);
    assert!(first.features.len() > 3 && first.features.len() < all.features.len(), "several windows each");
    assert_eq!(shared.reads(), 1);
}
