//! Classification and sentence-pair data: SST-2 and MNLI as GLUE lays them out, and users' tsv, csv and jsonl files.
//!
//! All are tables with named columns, so one reader is enough; the paper's tasks only fix the names. SST-2 is a
//! tsv with `sentence` and `label`; MNLI one with `sentence1`, `sentence2` and `gold_label`, other columns ignored,
//! rows whose gold label is `-` (no majority among the annotators) skipped and counted.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use qbert_quant::nearest;

use super::{ClassifyData, ClassifyExample};
use crate::files::delimited::Table;
use crate::files::jsonl::{Objects, list_value, name_value, number_value, text_value};
use crate::files::{Format, ReadOptions, unknown_label};
use crate::kinds::InputShape;
use crate::{Error, Kind, Labels, Result, Task};

const TEXT_NAMES: &[&str] = &["text", "sentence", "sentence1", "premise", "question1"];
const TEXT2_NAMES: &[&str] = &["text2", "text_b", "sentence2", "hypothesis", "question2"];
const LABEL_NAMES: &[&str] = &["label", "gold_label", "labels", "class", "category", "target", "sentiment", "score"];
const ID_NAMES: &[&str] = &["id", "index", "idx", "guid"];

/// MNLI's mark for a pair on which the annotators did not agree.
const NO_MAJORITY: &str = "-";

/// A row whose label has not been looked up, because the list of labels may not be known yet.
pub(crate) struct RawExample {
    pub(crate) example: ClassifyExample,
    pub(crate) label: Option<String>,
    pub(crate) line: usize,
}

/// Stands between the names of a list in a JSON file.
pub(crate) const LIST_SEPARATOR: char = '\u{1f}';

/// The columns to use, as indices into the header.
struct Roles {
    text: usize,
    text2: Option<usize>,
    label: Option<usize>,
    id: Option<usize>,
}

/// The rows of all files with their labels as they stand there.
pub(crate) fn read_rows(task: Task, paths: &[&Path], options: &ReadOptions) -> Result<Vec<(PathBuf, RawExample)>> {
    let mut raw: Vec<(PathBuf, RawExample)> = Vec::new();
    for path in paths {
        let rows = read_file(task, path, options)?;
        if rows.is_empty() {
            return Err(Error::NoExamples { path: path.to_path_buf(), what: "only a header" });
        }
        raw.extend(rows.into_iter().map(|row| (path.to_path_buf(), row)));
    }
    Ok(raw)
}

pub(crate) fn read(task: Task, paths: &[&Path], options: &ReadOptions) -> Result<ClassifyData> {
    let mut raw = read_rows(task, paths, options)?;
    let before = raw.len();
    if task == Task::Mnli {
        raw.retain(|(_, row)| row.label.as_deref() != Some(NO_MAJORITY));
    }
    let skipped = before - raw.len();
    let found: BTreeSet<String> = raw.iter().filter_map(|(_, row)| row.label.clone()).collect();
    if options.labels.given().is_none() && task.default_labels().is_none() {
        refuse_regression(&raw)?;
    }
    let labels = match options.labels.for_data(task, &found, found.len())? {
        Some(labels) => Some(labels),
        None if found.is_empty() => None,
        None => Some(Labels::found_in(&found)?),
    };
    let mut examples = Vec::with_capacity(raw.len());
    for (path, row) in raw {
        examples.push(with_label(&path, row, labels.as_ref(), options.require_labels)?);
    }
    Ok(ClassifyData { examples, labels, found, skipped })
}

/// Refuses labels that are all numbers, some of them with a fraction: they are values to be predicted, not classes.
fn refuse_regression(raw: &[(PathBuf, RawExample)]) -> Result<()> {
    let mut fraction = None;
    for (path, row) in raw {
        let Some(label) = &row.label else { continue };
        match label.parse::<f64>() {
            Ok(value) if !value.is_finite() => return Ok(()),
            Ok(value) if value.fract() != 0.0 => fraction = fraction.or(Some((path, row.line, label))),
            Ok(_) => {}
            Err(_) => return Ok(()),
        }
    }
    fraction.map_or(Ok(()), |(path, line, label)| {
        Err(Error::RegressionTarget { path: path.clone(), line, label: label.clone() })
    })
}

fn with_label(path: &Path, row: RawExample, labels: Option<&Labels>, required: bool) -> Result<ClassifyExample> {
    let mut example = row.example;
    match (&row.label, labels) {
        (Some(label), Some(labels)) => {
            let id = labels.id(label).ok_or_else(|| unknown_label(path, row.line, label, labels))?;
            example.label = Some(id);
        }
        _ if required => return Err(Error::MissingLabel { path: path.to_owned(), line: row.line }),
        _ => {}
    }
    Ok(example)
}

fn read_file(task: Task, path: &Path, options: &ReadOptions) -> Result<Vec<RawExample>> {
    match format_of(task, path, options)? {
        Format::Jsonl => read_jsonl(task, path, options),
        format => read_table(task, path, format, options),
    }
}

fn format_of(task: Task, path: &Path, options: &ReadOptions) -> Result<Format> {
    if let Some(format) = options.format {
        return Ok(format);
    }
    let ending = path.extension().map(|ending| ending.to_string_lossy().to_lowercase());
    match ending.as_deref() {
        Some("csv") => Ok(Format::Csv),
        Some("jsonl" | "ndjson") => Ok(Format::Jsonl),
        Some("tsv" | "txt" | "tab") => Ok(Format::Tsv),
        // GLUE has no other layout.
        _ if matches!(task, Task::Sst2 | Task::Mnli) => Ok(Format::Tsv),
        _ => Err(Error::UnknownFormat { path: path.to_owned() }),
    }
}

fn read_table(task: Task, path: &Path, format: Format, options: &ReadOptions) -> Result<Vec<RawExample>> {
    let mut table = Table::open(path, format)?;
    // No label is an answer too where there may be several.
    let keep_empty = task.kind() == Kind::MultiLabel;
    let roles = roles(task, path, table.header(), options)?;
    let mut rows = Vec::new();
    while let Some(row) = table.next_row()? {
        // Cloned, because a user may use one column twice.
        let field = |column: usize| row.fields[column].clone();
        let label = roles.label.map(field).map(|label| label.trim().to_owned());
        let label = label.filter(|label| keep_empty || !label.is_empty());
        let id = roles.id.map(field).unwrap_or_else(|| row.line.to_string());
        let text = field(roles.text);
        let text2 = roles.text2.map(field);
        rows.push(RawExample { example: ClassifyExample { id, text, text2, label: None }, label, line: row.line });
    }
    Ok(rows)
}

fn read_jsonl(task: Task, path: &Path, options: &ReadOptions) -> Result<Vec<RawExample>> {
    let mut objects = Objects::open(path)?;
    let mut rows = Vec::new();
    let mut columns: Option<(Vec<String>, Roles)> = None;
    while let Some(object) = objects.next_object()? {
        let line = object.line;
        if columns.is_none() {
            let names: Vec<String> = object.keys().cloned().collect();
            let roles = roles(task, path, &names, options)?;
            columns = Some((names, roles));
        }
        let Some((names, roles)) = &columns else { continue };
        let text_of = |column: usize| text_value(path, &object, &names[column]).map(str::to_owned);
        let name_of = |column: usize| name_value(path, &object, &names[column]);
        let id = roles.id.map(name_of).transpose()?.flatten().unwrap_or_else(|| line.to_string());
        let label = match task.kind() {
            Kind::MultiLabel => {
                roles.label.map(|column| list_value(path, &object, &names[column])).transpose()?.flatten()
            }
            Kind::Score | Kind::ScorePair | Kind::Embed => {
                roles.label.map(|column| number_value(path, &object, &names[column])).transpose()?.flatten()
            }
            _ => roles.label.map(name_of).transpose()?.flatten(),
        };
        let text2 = roles.text2.map(text_of).transpose()?;
        let example = ClassifyExample { id, text: text_of(roles.text)?, text2, label: None };
        rows.push(RawExample { example, label, line });
    }
    if columns.is_none() {
        return Err(Error::Empty { path: path.to_owned() });
    }
    Ok(rows)
}

fn roles(task: Task, path: &Path, header: &[String], options: &ReadOptions) -> Result<Roles> {
    let columns = &options.columns;
    let find = |asked: &Option<String>, tried| find_column(path, header, asked.as_deref(), tried);
    let required = |column: Option<usize>, role, tried| {
        column.ok_or_else(|| Error::NoColumn { path: path.to_owned(), role, tried, available: header.to_vec() })
    };
    let pair = task.kind().profile().input == InputShape::Pair;
    // Texts to embed may come in pairs.
    let text2 = if pair || task.kind() == Kind::Embed || columns.text2.is_some() {
        find(&columns.text2, TEXT2_NAMES)?
    } else {
        None
    };
    if pair {
        required(text2, "second text", TEXT2_NAMES)?;
    }
    let label = find(&columns.label, LABEL_NAMES)?;
    if options.require_labels {
        required(label, "label", LABEL_NAMES)?;
    }
    Ok(Roles {
        text: required(find(&columns.text, TEXT_NAMES)?, "text", TEXT_NAMES)?,
        text2,
        label,
        id: find(&columns.id, ID_NAMES)?,
    })
}

/// A column by the name that the user gave, which must exist, or by the usual names, which need not.
fn find_column(
    path: &Path,
    header: &[String],
    asked: Option<&str>,
    tried: &'static [&'static str],
) -> Result<Option<usize>> {
    let position = |name: &str| header.iter().position(|column| column == name);
    let Some(name) = asked else { return Ok(tried.iter().find_map(|name| position(name))) };
    match position(name) {
        Some(index) => Ok(Some(index)),
        None => Err(Error::UnknownColumn {
            path: path.to_owned(),
            name: name.to_owned(),
            available: header.to_vec(),
            nearest: nearest(name, header),
        }),
    }
}
