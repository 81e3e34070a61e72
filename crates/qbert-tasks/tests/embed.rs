//! Texts for vectors, from every kind of file.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

use std::path::Path;

use qbert_tasks::embed::{EmbedAim, EmbedData, Prompts};
use qbert_tasks::{Dataset, Error, ReadOptions, Task, read};

fn file(directory: &Path, name: &str, text: &str) -> std::path::PathBuf {
    let path = directory.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, text).unwrap();
    path
}

fn load(path: &Path) -> EmbedData {
    load_with(path, &ReadOptions::default())
}

fn load_with(path: &Path, options: &ReadOptions) -> EmbedData {
    match read(Task::Embed, &[path], options).unwrap() {
        Dataset::Embed(data) => data,
        other => panic!("{other:?}"),
    }
}

#[test]
fn one_text_per_line() {
    let directory = tempfile::tempdir().unwrap();
    let data = load(&file(directory.path(), "a.txt", "the owl\n\ntwo owls\n"));
    assert_eq!(data.texts, ["the owl", "two owls"]);
    assert_eq!(data.aim, EmbedAim::None);
}

#[test]
fn tables_give_texts_pairs_and_classes() {
    let directory = tempfile::tempdir().unwrap();
    let data = load(&file(directory.path(), "a.tsv", "sentence\tlabel\nthe owl\tbird\na cat\tmammal\n"));
    let EmbedAim::Classes { of_text, names } = &data.aim else { panic!("{data:?}") };
    assert_eq!(
        (of_text.as_slice(), names.names()),
        ([0, 1].as_slice(), ["bird".to_owned(), "mammal".to_owned()].as_slice())
    );

    let data = load(&file(directory.path(), "b.jsonl", "{\"text\": \"a\", \"text2\": \"b\", \"score\": 3.5}\n"));
    let EmbedAim::Pairs(pairs) = &data.aim else { panic!("{data:?}") };
    assert_eq!((data.texts.len(), pairs[0].score), (2, Some(3.5)));

    let data = load(&file(directory.path(), "c.csv", "text\n\"a, b\"\nc\n"));
    assert_eq!((data.texts, data.aim), (vec!["a, b".to_owned(), "c".to_owned()], EmbedAim::None));
}

#[test]
fn the_sts_files_are_known_by_their_shape() {
    let directory = tempfile::tempdir().unwrap();
    let semeval = load(&file(directory.path(), "STS.input.tsv", "4.5\ta\tb\n\tc\td\n0\te\tf\n"));
    let EmbedAim::Pairs(pairs) = &semeval.aim else { panic!("{semeval:?}") };
    assert_eq!(pairs.iter().map(|pair| pair.score).collect::<Vec<_>>(), [Some(4.5), Some(0.0)]);

    let rows = "genre\tfile\t2012\t1\t5.000\ta \"quoted\" one\tb\ngenre\tfile\t2012\t2\t0.2\tc\td\tsource\n";
    let benchmark = load(&file(directory.path(), "sts-dev.csv", rows));
    assert_eq!(benchmark.texts, ["a \"quoted\" one", "b", "c", "d"]);

    let short = file(directory.path(), "short.tsv", "1\ta\tb\n2\ta\n");
    let error = read(Task::Embed, &[&short], &ReadOptions::default()).unwrap_err();
    assert!(matches!(error, Error::ColumnCount { line: 2, .. }), "{error}");
}

#[test]
fn a_search_is_read_with_its_prompts() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    file(
        root,
        "corpus.jsonl",
        "{\"_id\": \"d1\", \"title\": \"Owls\", \"text\": \"hunt\"}\n{\"_id\": \"q2\", \"text\": \"cats\"}\n",
    );
    file(root, "queries.jsonl", "{\"_id\": \"q1\", \"text\": \"who hunts\"}\n{\"_id\": \"q2\", \"text\": \"cats\"}\n");
    let judgements = file(root, "qrels/test.tsv", "query-id\tcorpus-id\tscore\nq1\td1\t1\nq2\td1\t2\nq2\tq2\t0\n");
    let prompts = Prompts { query: "query: ".into(), document: "passage: ".into(), other: String::new() };
    let options = ReadOptions { prompts, ..ReadOptions::default() };
    let data = load_with(root, &options);
    assert_eq!(data, load_with(&judgements, &options));
    assert_eq!(data.texts, ["passage: Owls hunt", "passage: cats", "query: who hunts", "query: cats"]);
    let EmbedAim::Retrieval { queries, documents } = &data.aim else { panic!("{data:?}") };
    assert_eq!((documents.as_slice(), queries.len()), ([0, 1].as_slice(), 2));
    assert_eq!((queries[1].itself, queries[1].relevant.len()), (Some(1), 1));

    file(root, "qrels/test.tsv", "query-id\tcorpus-id\tscore\nq1\td9\t1\n");
    let error = read(Task::Embed, &[root], &ReadOptions::default()).unwrap_err();
    assert!(error.to_string().ends_with(":2: no document has the id \"d9\""), "{error}");
    let beside = file(root, "more.txt", "a text\n");
    let error = read(Task::Embed, &[root, &beside], &ReadOptions::default()).unwrap_err();
    assert!(matches!(error, Error::SearchAmongFiles { .. }), "{error}");
}
