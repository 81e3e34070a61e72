//! Texts from any file: one per line, the text columns of tables and JSON lines, the layouts of the STS files, and BEIR's
//! directories.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use super::{EmbedAim, EmbedData, Query, Relevant, TextPair};
use crate::classify::{self, RawExample};
use crate::files::jsonl::{Objects, name_value, text_value};
use crate::files::lines::Lines;
use crate::files::{Format, ReadOptions};
use crate::{Error, Labels, Result, Task};

const SCORED: &str = "a score and two texts, separated by tabs";
const JUDGEMENTS: &str = "query, document and grade, separated by tabs";

/// Reads files, or one directory of a search.
pub(crate) fn read(paths: &[&Path], options: &ReadOptions) -> Result<EmbedData> {
    let searches = paths.iter().filter(|path| is_search(path)).count();
    match paths {
        [path] if searches == 1 => read_search(path, options),
        _ => match paths.iter().find(|path| is_search(path)) {
            Some(path) => Err(Error::SearchAmongFiles { path: path.to_path_buf() }),
            None => read_texts(paths, options),
        },
    }
}

/// A row of a file: a text, or two with a score, or one with a class.
struct Row {
    path: PathBuf,
    line: usize,
    text: String,
    text2: Option<String>,
    label: Option<String>,
}

fn read_texts(paths: &[&Path], options: &ReadOptions) -> Result<EmbedData> {
    let mut rows = Vec::new();
    for path in paths {
        let before = rows.len();
        read_file(path, options, &mut rows)?;
        if rows.len() == before {
            return Err(Error::NoExamples { path: path.to_path_buf(), what: "no text" });
        }
    }
    let prompt = &options.prompts.other;
    let with_prompt = |text: &str| format!("{prompt}{text}");
    if rows.iter().any(|row| row.text2.is_some()) {
        let (mut texts, mut pairs) = (Vec::new(), Vec::new());
        for row in &rows {
            texts.push(with_prompt(&row.text));
            let Some(second) = &row.text2 else { continue };
            texts.push(with_prompt(second));
            let score = row.label.as_ref().map(|cell| score_of(row, cell)).transpose()?;
            pairs.push(TextPair { first: texts.len() - 2, second: texts.len() - 1, score });
        }
        return Ok(EmbedData { texts, aim: EmbedAim::Pairs(pairs) });
    }
    let texts = rows.iter().map(|row| with_prompt(&row.text)).collect();
    let classes: Option<Vec<&String>> = rows.iter().map(|row| row.label.as_ref()).collect();
    let Some(classes) = classes else { return Ok(EmbedData { texts, aim: EmbedAim::None }) };
    let found: BTreeSet<String> = classes.iter().map(|&class| class.clone()).collect();
    let names = Labels::found_in(&found)?;
    let of_text = classes.iter().map(|class| names.id(class).unwrap_or(0)).collect();
    Ok(EmbedData { texts, aim: EmbedAim::Classes { of_text, names } })
}

fn score_of(row: &Row, cell: &str) -> Result<f64> {
    let value = cell.parse::<f64>().ok().filter(|value| value.is_finite());
    value.ok_or_else(|| Error::NotAValue { path: row.path.clone(), line: row.line, cell: cell.to_owned() })
}

fn read_file(path: &Path, options: &ReadOptions, rows: &mut Vec<Row>) -> Result<()> {
    match layout(path, options)? {
        Layout::Table => {
            let options = ReadOptions { require_labels: false, ..options.clone() };
            for (path, RawExample { example, label, line }) in classify::read_rows(Task::Embed, &[path], &options)? {
                rows.push(Row { path, line, text: example.text, text2: example.text2, label });
            }
            Ok(())
        }
        Layout::Lines => each_line(path, |line, text| {
            if !text.trim().is_empty() {
                rows.push(Row { path: path.to_owned(), line, text: text.to_owned(), text2: None, label: None });
            }
            Ok(())
        }),
        Layout::Scored { score, first } => each_line(path, |line, text| {
            let cells: Vec<&str> = text.split('\t').collect();
            let (Some(text), Some(text2), Some(score)) = (cells.get(first), cells.get(first + 1), cells.get(score))
            else {
                let (expected, found) = (first + 2, cells.len());
                return Err(Error::ColumnCount { path: path.to_owned(), line, expected, found, layout: SCORED });
            };
            // In the SemEval files, pairs without a score are not part of the test.
            if !score.trim().is_empty() {
                let (text, text2) = ((*text).to_owned(), Some((*text2).to_owned()));
                rows.push(Row { path: path.to_owned(), line, text, text2, label: Some(score.trim().to_owned()) });
            }
            Ok(())
        }),
    }
}

/// How a file of texts is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// With named columns.
    Table,
    /// One text per line.
    Lines,
    /// Tabs without a header: a score, and two texts from column `first` on.
    Scored { score: usize, first: usize },
}

/// Looks at the first line.
fn layout(path: &Path, options: &ReadOptions) -> Result<Layout> {
    let ending = path.extension().map(|ending| ending.to_string_lossy().to_lowercase());
    let is_json = options.format == Some(Format::Jsonl) || matches!(ending.as_deref(), Some("jsonl" | "ndjson"));
    if options.format.is_some() || is_json {
        return Ok(Layout::Table);
    }
    let mut lines = Lines::open(path)?;
    let Some((_, first)) = lines.next_line()? else { return Err(Error::Empty { path: path.to_owned() }) };
    let cells: Vec<&str> = first.split('\t').collect();
    let is_score = |cell: &&str| cell.trim().is_empty() || cell.trim().parse::<f64>().is_ok();
    Ok(match cells.len() {
        // SemEval's STS files.
        3 if is_score(&cells[0]) => Layout::Scored { score: 0, first: 1 },
        // STS Benchmark: genre, file, year, id, score, both texts, and in some lines where they come from.
        7.. if is_score(&cells[4]) => Layout::Scored { score: 4, first: 5 },
        // One dev file is scored and the training files have columns: the flags are for these.
        _ if options.columns.text.is_some() => Layout::Table,
        1 if !matches!(ending.as_deref(), Some("csv" | "tsv" | "tab")) => Layout::Lines,
        _ => Layout::Table,
    })
}

fn each_line(path: &Path, mut take: impl FnMut(usize, &str) -> Result<()>) -> Result<()> {
    let mut lines = Lines::open(path)?;
    while let Some((number, line)) = lines.next_line()? {
        take(number, line)?;
    }
    Ok(())
}

/// A directory in BEIR's layout, or one of its files of judgements.
fn is_search(path: &Path) -> bool {
    path.is_dir()
        || (path.extension().is_some_and(|ending| ending == "tsv") && root_of(path).join("corpus.jsonl").is_file())
}

/// The directory of a search, from itself or from `qrels/test.tsv` in it.
fn root_of(path: &Path) -> PathBuf {
    if path.is_dir() {
        return path.to_owned();
    }
    let parent = path.parent().unwrap_or(Path::new("."));
    if parent.file_name().is_some_and(|name| name == "qrels") { parent.join("..") } else { parent.to_owned() }
}

/// `corpus.jsonl`, `queries.jsonl` and `qrels/test.tsv`, or the file of judgements that was given.
fn read_search(path: &Path, options: &ReadOptions) -> Result<EmbedData> {
    let root = root_of(path);
    let judgements = if path.is_dir() { root.join("qrels").join("test.tsv") } else { path.to_owned() };
    let mut texts = Vec::new();
    let mut document_of: HashMap<String, usize> = HashMap::new();
    let mut documents = Vec::new();
    each_object(&root.join("corpus.jsonl"), |id, title, text| {
        let whole = format!("{title} {text}");
        document_of.insert(id, texts.len());
        documents.push(texts.len());
        texts.push(format!("{}{}", options.prompts.document, whole.trim()));
    })?;
    let queries_path = root.join("queries.jsonl");
    let mut text_of: HashMap<String, String> = HashMap::new();
    each_object(&queries_path, |id, _, text| {
        text_of.insert(id, text.to_owned());
    })?;
    let mut queries: Vec<Query> = Vec::new();
    let mut query_of: HashMap<String, usize> = HashMap::new();
    each_line(&judgements, |line, row| {
        let cells: Vec<&str> = row.split('\t').collect();
        let [query, document, grade] = cells[..] else {
            let (expected, found) = (3, cells.len());
            return Err(Error::ColumnCount { path: judgements.clone(), line, expected, found, layout: JUDGEMENTS });
        };
        let Ok(grade) = grade.trim().parse::<f64>() else {
            // The header.
            if line == 1 {
                return Ok(());
            }
            return Err(Error::NotAValue { path: judgements.clone(), line, cell: grade.to_owned() });
        };
        let unknown =
            |what: &'static str, id: &str| Error::UnknownId { path: judgements.clone(), line, what, id: id.to_owned() };
        let place = match query_of.get(query) {
            Some(&place) => place,
            None => {
                let text = text_of.get(query).ok_or_else(|| unknown("query", query))?;
                texts.push(format!("{}{}", options.prompts.query, text));
                let itself = document_of.get(query).copied();
                queries.push(Query { text: texts.len() - 1, itself, relevant: Vec::new() });
                query_of.insert(query.to_owned(), queries.len() - 1);
                queries.len() - 1
            }
        };
        if grade > 0.0 {
            let document = *document_of.get(document).ok_or_else(|| unknown("document", document))?;
            queries[place].relevant.push(Relevant { document, grade });
        }
        Ok(())
    })?;
    queries.retain(|query| !query.relevant.is_empty());
    if queries.is_empty() {
        return Err(Error::NoExamples { path: judgements, what: "no query with a relevant document" });
    }
    Ok(EmbedData { texts, aim: EmbedAim::Retrieval { queries, documents } })
}

fn each_object(path: &Path, mut take: impl FnMut(String, &str, &str)) -> Result<()> {
    let mut objects = Objects::open(path)?;
    while let Some(object) = objects.next_object()? {
        let id = match name_value(path, &object, "_id")? {
            Some(id) => id,
            None => text_value(path, &object, "_id")?.to_owned(),
        };
        let has_title = object.keys().any(|key| key == "title");
        let title = if has_title { text_value(path, &object, "title")? } else { "" };
        take(id, title, text_value(path, &object, "text")?);
    }
    Ok(())
}
