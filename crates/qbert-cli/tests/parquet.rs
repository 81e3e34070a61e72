//! Parquet in and out: the same answers as for lines, whatever the batches, the files and the types of the columns.

#![cfg(feature = "parquet")]
#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

mod common;

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Float64Type, Int64Type};
use arrow_array::{Array, ArrayRef, DictionaryArray, Int64Array, LargeStringArray, RecordBatch, StringArray};
use common::{fail, prepare_with, stderr, succeed};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::file::properties::WriterProperties;
use qbert_model::Head;
use serde_json::Value;

/// More rows than are answered together, in row groups that do not fit the batches.
const ROWS: usize = 2500;

fn texts() -> Vec<String> {
    let words = ["good", "bad", "a", "the", "film", "plot", "very", "is"];
    let text = |row: usize| (0..1 + row % 7).map(|k| words[(row * 3 + k * 5) % 8]).collect::<Vec<_>>().join(" ");
    (0..ROWS).map(text).collect()
}

fn write(path: &Path, columns: Vec<(&str, ArrayRef)>) {
    let rows = RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, own)| (name, own, true)));
    let rows = rows.unwrap();
    let settings = WriterProperties::builder().set_max_row_group_row_count(Some(700)).build();
    let mut writer = ArrowWriter::try_new(File::create(path).unwrap(), rows.schema(), Some(settings)).unwrap();
    writer.write(&rows).unwrap();
    writer.close().unwrap();
}

fn read(path: &Path) -> RecordBatch {
    let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(path).unwrap()).unwrap();
    let mut batches = reader.with_batch_size(ROWS * 2).build().unwrap();
    let rows = batches.next().unwrap().unwrap();
    assert!(batches.next().is_none());
    rows
}

fn names(rows: &RecordBatch) -> Vec<String> {
    rows.schema().fields().iter().map(|field| field.name().clone()).collect()
}

fn numbers(from: i64, count: usize) -> ArrayRef {
    Arc::new(Int64Array::from_iter_values((from..).take(count)))
}

fn classifier() -> tempfile::TempDir {
    let home = tempfile::tempdir().unwrap();
    prepare_with(home.path(), Head::SequenceClassification, &["negative", "positive"]);
    succeed(home.path(), "pack model --bits 8 --activation-bits 32 --out small.qbert");
    home
}

#[test]
fn rows_get_the_answers_of_lines() {
    let home = classifier();
    let home = home.path();
    let texts = texts();
    // As polars, pandas' categories and Spark's directories of parts have them.
    std::fs::create_dir(home.join("parts")).unwrap();
    let (first, rest) = texts.split_at(1000);
    write(
        &home.join("parts/part-0.parquet"),
        vec![("id", numbers(0, first.len())), ("review", Arc::new(LargeStringArray::from_iter_values(first)))],
    );
    write(
        &home.join("parts/part-1.parquet"),
        vec![("id", numbers(1000, rest.len())), ("review", Arc::new(LargeStringArray::from_iter_values(rest)))],
    );
    std::fs::write(home.join("parts/_SUCCESS"), "").unwrap();
    let said = succeed(home, "predict small.qbert --data parts --column text=review --out answers.parquet");
    assert_eq!(said, "");
    let found = read(&home.join("answers.parquet"));
    assert_eq!(names(&found), ["id", "review", "label", "probability", "scores", "removed"]);
    assert_eq!(found.num_rows(), ROWS);
    let expected = lines(home, "predict small.qbert --json", &texts);
    for (row, expected) in expected.iter().enumerate() {
        assert_eq!(found["id"].as_primitive::<Int64Type>().value(row), row as i64);
        assert_eq!(found["label"].as_string::<i32>().value(row), expected["label"]);
        assert_eq!(found["probability"].as_primitive::<Float64Type>().value(row), expected["probability"]);
        let scores = found["scores"].as_list::<i32>().value(row);
        let logits = scores.as_struct().column_by_name("logit").unwrap().as_primitive::<Float32Type>().clone();
        for (place, score) in expected["scores"].as_array().unwrap().iter().enumerate() {
            assert_eq!(logits.value(place), score["logit"].as_f64().unwrap() as f32);
        }
    }

    // Another type, a column of the same name as an answer, and only the columns that were asked for.
    let categories: DictionaryArray<arrow_array::types::Int32Type> = first.iter().map(String::as_str).collect();
    write(
        &home.join("rows.parquet"),
        vec![("id", numbers(0, first.len())), ("text", Arc::new(categories)), ("label", numbers(0, first.len()))],
    );
    let said = fail(home, "predict small.qbert --data rows.parquet --out more.parquet");
    assert!(said.contains("a column `label` of their own") && said.contains("--prefix"), "{said}");
    assert!(!home.join("more.parquet").exists());
    succeed(
        home,
        "predict small.qbert --data rows.parquet --prefix answer_ --keep id,label --out more.parquet --format parquet",
    );
    let more = read(&home.join("more.parquet"));
    assert_eq!(names(&more)[..3], ["id", "label", "answer_label"]);
    let (own, one) = (more["answer_label"].clone(), found["label"].slice(0, first.len()));
    assert_eq!(own.as_string::<i32>(), one.as_string::<i32>());
}

/// What the command prints for texts on its standard input.
fn lines(home: &Path, arguments: &str, texts: &[String]) -> Vec<Value> {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_qbert"));
    std::fs::write(home.join("lines.txt"), texts.join("\n") + "\n").unwrap();
    command.current_dir(home).args(arguments.split_whitespace()).stdin(File::open(home.join("lines.txt")).unwrap());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn rows_without_a_text_are_named_or_kept() {
    let home = classifier();
    let home = home.path();
    let texts: StringArray = (0..1500).map(|row| (row != 1200).then_some("good film")).collect();
    write(&home.join("rows.parquet"), vec![("text", Arc::new(texts))]);
    let said = fail(home, "predict small.qbert --data rows.parquet --out answers.parquet");
    assert!(said.contains("rows.parquet, row 1201: `text` is null") && said.contains("--keep-going"), "{said}");
    assert!(!home.join("answers.parquet").exists(), "nothing is half written");
    let said = fail(home, "predict small.qbert --data rows.parquet --out answers.parquet --keep-going");
    assert!(said.contains("1 of 1500 inputs could not be answered"), "{said}");
    let found = read(&home.join("answers.parquet"));
    assert_eq!((found["label"].null_count(), found["error"].null_count()), (1, 1499));
    assert_eq!(found["error"].as_string::<i32>().value(1200), "`text` is null");
}

#[test]
fn bad_files_are_named() {
    let home = classifier();
    let home = home.path();
    write(&home.join("rows.parquet"), vec![("id", numbers(0, 3)), ("notes", numbers(0, 3))]);
    std::fs::write(home.join("no.parquet"), "no").unwrap();
    std::fs::create_dir(home.join("empty")).unwrap();
    for (data, expected) in [
        ("rows.parquet --out a.parquet", "rows.parquet has no column `text`"),
        ("rows.parquet --out a.parquet", "its columns are id, notes"),
        ("rows.parquet --column text=notes --out a.parquet", "the column `notes` has Int64, not text"),
        ("rows.parquet --column txt=notes --out a.parquet", "INPUT is text, text2"),
        ("rows.parquet --keep text --out a.parquet", "has no column `text`"),
        ("no.parquet --out a.parquet", "no.parquet: cannot read it as Parquet"),
        ("none.parquet --out a.parquet", "none.parquet: cannot open"),
        ("empty --out a.parquet", "no .parquet files in this directory"),
        ("rows.parquet", "--data without --out"),
        ("rows.parquet --out empty", "this is a directory"),
        ("rows.parquet --json --out a.parquet", "cannot be used with"),
    ] {
        let output = common::qbert(home, &format!("predict small.qbert --data {data}"));
        let said = stderr(&output);
        assert!(!output.status.success() && said.contains(expected), "{data}: {said}");
    }
    assert!(!home.join("a.parquet").exists());
}

#[test]
fn vectors_are_those_of_the_matrix() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    prepare_with(home, Head::None, &[]);
    succeed(home, "pack model --bits 8 --activation-bits 32 --out small.qbert");
    let texts = texts();
    write(
        &home.join("rows.parquet"),
        vec![("id", numbers(7, ROWS)), ("text", Arc::new(StringArray::from_iter_values(&texts)))],
    );
    let expected = lines(home, "embed small.qbert", &texts);
    succeed(home, "embed small.qbert --data rows.parquet --out vectors.parquet");
    let found = read(&home.join("vectors.parquet"));
    assert_eq!(names(&found), ["id", "text", "vector"]);
    let vectors = found["vector"].as_fixed_size_list();
    for (row, expected) in expected.iter().enumerate() {
        let own: Vec<f32> = vectors.value(row).as_primitive::<Float32Type>().values().to_vec();
        let expected: Vec<f32> = serde_json::from_value(expected["vector"].clone()).unwrap();
        assert_eq!(own, expected);
    }
    // Without columns to copy, and of half the width.
    succeed(home, "embed small.qbert good bad --dim 16 --out two.parquet");
    let two = read(&home.join("two.parquet"));
    assert_eq!(
        (names(&two), two["vector"].as_fixed_size_list().value_length()),
        (vec!["text".into(), "vector".into()], 16)
    );
    // From Parquet into a matrix.
    succeed(home, "embed small.qbert --data rows.parquet --out vectors.npy");
    // Flags for columns are refused where the output has none.
    for (flag, out) in [("--keep id", "--out other.npy"), ("--prefix x_", "--out other.jsonl"), ("--keep id", "")] {
        let said = fail(home, &format!("embed small.qbert --data rows.parquet {flag} {out}"));
        assert!(said.contains("is about the columns of a Parquet file"), "{said}");
    }
    let bytes = std::fs::read(home.join("vectors.npy")).unwrap();
    let last: Vec<f32> =
        bytes[bytes.len() - 4 * 32..].chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    assert_eq!(last, vectors.value(ROWS - 1).as_primitive::<Float32Type>().values().to_vec());
}
