//! The real data sets, where they are: every file loads, and the counts are the published ones.
//!
//! Looks in the directory named by `QBERT_DATA`, else in `../shared/data` beside the workspace; without either the
//! tests say that they are skipped.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use qbert_tasks::{ClassifyData, Dataset, NerData, QaData, ReadOptions, TagScheme, Task, ner, qa, read};

fn data_directory() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let directory = std::env::var_os("QBERT_DATA").map_or(beside, PathBuf::from);
    directory.is_dir().then_some(directory)
}

/// The file, or a line that says why the test does nothing.
#[expect(clippy::print_stderr, reason = "a skipped test must say so")]
fn file(name: &str) -> Option<PathBuf> {
    let found = data_directory().map(|directory| directory.join(name)).filter(|path| path.is_file());
    if found.is_none() {
        eprintln!("skipped: no {name} in QBERT_DATA or ../shared/data");
    }
    found
}

fn load(task: Task, name: &str) -> Option<Dataset> {
    let path = file(name)?;
    Some(read(task, &[path], &ReadOptions::default()).unwrap_or_else(|error| panic!("{error}")))
}

fn classify(task: Task, name: &str) -> Option<ClassifyData> {
    match load(task, name)? {
        Dataset::Classify(data) => Some(data),
        other => panic!("{other:?}"),
    }
}

fn ner(name: &str) -> Option<NerData> {
    match load(Task::Conll03, name)? {
        Dataset::Ner(data) => Some(data),
        other => panic!("{other:?}"),
    }
}

fn questions(name: &str) -> Option<QaData> {
    match load(Task::Squad, name)? {
        Dataset::Qa(data) => Some(data),
        other => panic!("{other:?}"),
    }
}

fn counts(data: &ClassifyData) -> Vec<usize> {
    let labels = data.labels.as_ref().map_or(0, qbert_tasks::Labels::len);
    (0..labels).map(|id| data.examples.iter().filter(|example| example.label == Some(id)).count()).collect()
}

#[test]
fn sst2() {
    for (name, expected) in [("sst2/train.tsv", [67_349 - 37_569, 37_569]), ("sst2/dev.tsv", [872 - 444, 444])] {
        let Some(data) = classify(Task::Sst2, name) else { return };
        assert_eq!(counts(&data), expected, "{name}");
    }
}

#[test]
fn mnli() {
    // Entailment, neutral, contradiction.
    for (name, expected) in
        [("mnli/dev_matched.tsv", [3_479, 3_123, 3_213]), ("mnli/train_subset.tsv", [12_934, 20_196, 13_074])]
    {
        let Some(data) = classify(Task::Mnli, name) else { return };
        assert_eq!(counts(&data), expected, "{name}");
        assert_eq!(data.skipped, 0);
    }
    let Some(data) = classify(Task::Mnli, "snli-subset/snli_train_subset.tsv") else { return };
    assert_eq!(data.examples.len() + data.skipped, 72_679);
}

#[test]
fn conll03() {
    for (name, sentences, documents, entity_count) in
        [("conll2003/eng.train", 14_041, 946, 23_499), ("conll2003/eng.testa", 3_250, 216, 5_942)]
    {
        let Some(data) = ner(name) else { return };
        assert_eq!((data.sentences.len(), data.documents), (sentences, documents), "{name}");
        assert_eq!(data.scheme, Some(TagScheme::Iob1));
        let labels = data.labels.unwrap();
        let tags: Vec<Vec<&str>> = data
            .sentences
            .iter()
            .map(|sentence| sentence.tags.iter().flatten().map(|&tag| labels.name(tag).unwrap()).collect())
            .collect();
        let report = ner::report(ner::TagStyle::Marked, &tags, &tags).unwrap();
        assert_eq!((report.overall.support, report.overall.f1), (entity_count, 1.0), "{name}");
    }
}

#[test]
fn squad_files() {
    for (name, expected) in [
        ("squad/dev-v1.1.json", 10_570),
        ("squad/train-v1.1.first12articles.json", 4_370),
        ("squad/train_extra_paragraphs.json", 3_830),
        ("squad/squadshifts_new_wiki_v1.0.json", 7_938),
        ("squad/squadshifts_reddit_v1.0.json", 9_803),
        ("squad/squadshifts_amazon_reviews_v1.0.json", 9_885),
    ] {
        let Some(data) = questions(name) else { return };
        assert_eq!((data.examples.len(), data.skipped), (expected, 0), "{name}");
        let first: HashMap<&str, &str> =
            data.examples.iter().map(|example| (example.id.as_str(), example.answers[0].text.as_str())).collect();
        let report = qa::report_by_id(&data.examples, |id| first.get(id).copied());
        assert_eq!(report.exact_match, 100.0, "{name}");
    }
}
