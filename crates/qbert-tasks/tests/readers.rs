//! Readers on small files written for the project: what comes out of well-formed input.

use std::path::{Path, PathBuf};

use qbert_tasks::qa::QaOptions;
use qbert_tasks::stats::statistics;
use qbert_tasks::{
    ClassifyData, Columns, Dataset, Error, LabelSource, Labels, NerData, QaData, ReadOptions, TagScheme, Task,
    Tokenizer, VocabOptions, read,
};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn classify(task: Task, name: &str, options: &ReadOptions) -> ClassifyData {
    match read(task, &[data(name)], options) {
        Ok(Dataset::Classify(data)) => data,
        other => panic!("{name}: {other:?}"),
    }
}

fn ner(task: Task, names: &[&str], options: &ReadOptions) -> NerData {
    let paths: Vec<PathBuf> = names.iter().map(|name| data(name)).collect();
    match read(task, &paths, options) {
        Ok(Dataset::Ner(data)) => data,
        other => panic!("{names:?}: {other:?}"),
    }
}

fn qa(options: &ReadOptions) -> QaData {
    match read(Task::Qa, &[data("questions.json")], options) {
        Ok(Dataset::Qa(data)) => data,
        other => panic!("{other:?}"),
    }
}

fn unlabelled() -> ReadOptions {
    ReadOptions { require_labels: false, ..ReadOptions::default() }
}

/// Writes bytes to a file with this name and reads it.
fn read_bytes(task: Task, name: &str, bytes: &[u8], options: &ReadOptions) -> Result<Dataset, Error> {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join(name);
    std::fs::write(&path, bytes).expect("written");
    read(task, &[path], options)
}

#[test]
fn sst2_has_named_labels_and_no_quoting() {
    let data = classify(Task::Sst2, "reviews.tsv", &ReadOptions::default());
    assert_eq!(data.labels.unwrap().names(), ["negative", "positive"]);
    let labels: Vec<_> = data.examples.iter().map(|example| example.label.unwrap()).collect();
    assert_eq!(labels, [1, 0, 0]);
    assert_eq!(data.examples[1].text, "\"quotes\" mean nothing here , he said");
    assert_eq!((data.examples[1].id.as_str(), &data.examples[1].text2), ("3", &None));
}

#[test]
fn mnli_goes_by_column_names_and_skips_undecided_pairs() {
    let data = classify(Task::Mnli, "pairs.tsv", &ReadOptions::default());
    assert_eq!(data.skipped, 1);
    let rows: Vec<_> = data.examples.iter().map(|row| (row.id.as_str(), row.label.unwrap())).collect();
    assert_eq!(rows, [("0", 0), ("1", 2), ("3", 1)]);
    assert_eq!(data.examples[2].text2.as_deref(), Some("It is Tuesday."));
    // The same file as a user's own: `-` is then a label like any other, and labels are sorted.
    let own = classify(Task::Pair, "pairs.tsv", &ReadOptions::default());
    assert_eq!(own.labels.unwrap().names(), ["-", "contradiction", "entailment", "neutral"]);
}

#[test]
fn csv_quoting_and_jsonl_values() {
    let data = classify(Task::Classify, "tickets.csv", &ReadOptions::default());
    let texts: Vec<_> = data.examples.iter().map(|row| (row.id.as_str(), row.text.as_str())).collect();
    assert_eq!(
        texts,
        [("t1", "The lamp, again, is broken"), ("t2", "He wrote \"urgent\"\non two lines"), ("t3", "no light")]
    );
    assert_eq!(data.labels.unwrap().names(), ["hardware", "other"]);
    let data = classify(Task::Classify, "tickets.jsonl", &ReadOptions::default());
    assert_eq!(data.labels.unwrap().names(), ["9", "10"]);
    let rows: Vec<_> = data.examples.iter().map(|row| (row.id.as_str(), row.label)).collect();
    assert_eq!(rows, [("1", Some(1)), ("3", Some(0)), ("4", Some(0))]);
}

#[test]
fn columns_and_labels_can_be_given() {
    let options = ReadOptions {
        columns: Columns { text: Some("label".into()), label: Some("sentence".into()), ..Columns::default() },
        ..ReadOptions::default()
    };
    let data = classify(Task::Classify, "reviews.tsv", &options);
    assert_eq!((data.examples[0].text.as_str(), data.labels.unwrap().len()), ("1", 3));
    let given = Labels::new(["contradiction", "entailment", "neutral"]).unwrap();
    let options = ReadOptions { labels: LabelSource::Given(given), ..ReadOptions::default() };
    let data = classify(Task::Mnli, "pairs.tsv", &options);
    assert_eq!(data.examples.iter().map(|row| row.label.unwrap()).collect::<Vec<_>>(), [1, 0, 2]);
}

#[test]
fn labels_are_optional_for_prediction() {
    let file = "\u{feff}text\r\nan owl\r\n\r\na bell".as_bytes();
    let Dataset::Classify(data) = read_bytes(Task::Classify, "x.tsv", file, &unlabelled()).unwrap() else { panic!() };
    assert_eq!(data.examples.iter().map(|row| row.text.as_str()).collect::<Vec<_>>(), ["an owl", "a bell"]);
    assert_eq!((data.labels, data.examples[0].label), (None, None));
    let some = b"text\tlabel\nan owl\tyes\na bell\t\n";
    let Dataset::Classify(data) = read_bytes(Task::Classify, "x.tsv", some, &unlabelled()).unwrap() else { panic!() };
    assert_eq!(data.examples.iter().map(|row| row.label).collect::<Vec<_>>(), [Some(0), None]);
    let words = b"an\nowl\n\nbell\n";
    let Dataset::Ner(data) = read_bytes(Task::Ner, "x.txt", words, &unlabelled()).unwrap() else { panic!() };
    assert_eq!((data.sentences.len(), data.scheme), (2, None));
    assert_eq!((data.sentences[0].words.len(), &data.sentences[0].tags), (2, &None));
}

#[test]
fn conll_is_iob1_and_becomes_iob2() {
    let data = ner(Task::Conll03, &["entities.conll"], &ReadOptions::default());
    assert_eq!((data.sentences.len(), data.documents, data.scheme), (2, 1, Some(TagScheme::Iob1)));
    let labels = data.labels.unwrap();
    let tags: Vec<&str> = data.sentences[0].tags.iter().flatten().map(|&tag| labels.name(tag).unwrap()).collect();
    assert_eq!(tags, ["B-PER", "I-PER", "O", "B-LOC", "B-LOC", "O"]);
}

#[test]
fn own_entity_types_over_several_files() {
    let data = ner(Task::Ner, &["own-entities.conll", "entities.conll"], &ReadOptions::default());
    assert_eq!((data.sentences.len(), data.scheme), (4, Some(TagScheme::Iob2)));
    let names = data.labels.unwrap();
    assert_eq!(names.names(), ["O", "B-BIRD", "I-BIRD", "B-LOC", "I-LOC", "B-PER", "I-PER", "B-TOOL", "I-TOOL"]);
    assert_eq!(data.sentences[0].tags.as_deref(), Some(&[7, 0, 1, 2][..]));
    assert_eq!(data.sentences[1].words, ["nothing"]);
}

#[test]
fn no_break_spaces_belong_to_their_word() {
    let file = "New\u{a0}Harn B-LOC\n".as_bytes();
    let Dataset::Ner(data) = read_bytes(Task::Ner, "x.conll", file, &ReadOptions::default()).unwrap() else { panic!() };
    assert_eq!(data.sentences[0].words, ["New\u{a0}Harn"]);
}

#[test]
fn questions_count_characters_and_skip_the_impossible() {
    let data = qa(&ReadOptions::default());
    assert_eq!((data.examples.len(), data.skipped), (2, 1));
    let first = &data.examples[0];
    assert_eq!((first.id.as_str(), first.title.as_str(), first.answers.len()), ("h1", "Harn", 2));
    assert_eq!((data.examples[1].id.as_str(), data.examples[1].answers[0].start), ("2", 44));
    assert!(std::sync::Arc::ptr_eq(&first.context, &data.examples[1].context));
    let all = qa(&unlabelled());
    assert_eq!((all.examples.len(), all.skipped, all.examples[2].answers.len()), (3, 0, 0));
}

#[test]
fn statistics_of_every_kind() {
    let vocab = std::fs::read(data("vocab.txt")).unwrap();
    let tokenizer = Tokenizer::from_vocab("vocab.txt", &vocab, VocabOptions::default()).unwrap();
    let options = QaOptions { max_len: 12, stride: 2, max_question: 4, ..QaOptions::default() };
    for (task, name) in [
        (Task::Mnli, "pairs.tsv"),
        (Task::Classify, "tickets.csv"),
        (Task::Conll03, "entities.conll"),
        (Task::Qa, "questions.json"),
    ] {
        let dataset = read(task, &[data(name)], &ReadOptions::default()).unwrap();
        let statistics = statistics(&dataset, Some(&tokenizer), &options).unwrap();
        insta::assert_json_snapshot!(format!("statistics_{task}"), statistics);
    }
}
