//! Columns as what a model is asked, and rows with their vectors.

use std::path::Path;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, ListArray, StringArray};
use arrow_schema::{DataType, Field};
use qbert_model::atomic;
use qbert_pipeline::{Error, ErrorKind, Result};
use qbert_runtime::{Head, Input, Session, Vectors};

use super::sink::{Sink, joined, vector_column, vector_field};
use super::source::{Batch, Rows};
use super::{RowOptions, place_of};
use crate::progress::Progress;
use crate::{note, stop};

/// The places of the columns that make an input.
#[derive(Debug, Clone, Copy)]
pub(super) enum Asked {
    Text(usize),
    Pair(usize, usize),
    Words(usize),
    Question(usize, usize),
}

impl Asked {
    /// The columns that suit the model, of those that the rows have.
    pub(super) fn find(options: &RowOptions, rows: &Rows, session: &Session) -> Result<Self> {
        let find = |input: &str| {
            let (name, _) = options.column(input);
            let hint = "name the column with --column INPUT=COLUMN";
            place_of(rows.schema(), &name, rows.file()).map_err(|error| {
                let known = error.hint().map(|own| format!("{own}; {hint}"));
                Error::new(error.kind(), error.to_string(), known)
            })
        };
        let is_given = |input: &str| options.column(input).1;
        let has = |input: &str| is_given(input) || rows.schema().index_of(&options.column(input).0).is_ok();
        match session.head() {
            Head::QuestionAnswering => Ok(Self::Question(find("question")?, find("context")?)),
            Head::TokenClassification if has("words") && !is_given("text") => Ok(Self::Words(find("words")?)),
            Head::TokenClassification => Ok(Self::Text(find("text")?)),
            _ => {
                // A model of single texts leaves a second column alone, unless it was asked to take it.
                let takes_pairs = session.check(&Input::pair("", "")).is_ok();
                if is_given("text2") || (takes_pairs && has("text2")) {
                    return Ok(Self::Pair(find("text")?, find("text2")?));
                }
                let text = Self::Text(find("text")?);
                if let Ok(Some(warning)) = session.check(&Input::text("")) {
                    note(&format!("warning: {}: {warning}: name it with --column text2=COLUMN", rows.file().display()));
                }
                Ok(text)
            }
        }
    }

    /// The input of every row, or why a row has none.
    pub(super) fn of(self, batch: &Batch) -> Result<Vec<Result<Input>>> {
        let strings = |place| strings(batch, place);
        let all = |make: &dyn Fn(usize) -> Option<Input>, column: usize| {
            let name = batch.rows.schema_ref().field(column).name().clone();
            let of_row = |row| make(row).ok_or_else(|| nothing(&name));
            (0..batch.rows.num_rows()).map(of_row).collect()
        };
        Ok(match self {
            Self::Text(text) => {
                let texts = strings(text)?;
                all(&|row| Some(Input::text(value(&texts, row)?)), text)
            }
            Self::Pair(first, second) => {
                let (texts, others) = (strings(first)?, strings(second)?);
                all(&|row| Some(Input::pair(value(&texts, row)?, value(&others, row)?)), first)
            }
            Self::Question(question, context) => {
                let (questions, contexts) = (strings(question)?, strings(context)?);
                all(&|row| Some(Input::question(value(&questions, row)?, value(&contexts, row)?)), question)
            }
            Self::Words(words) => {
                let lists = lists(batch, words)?;
                let of_row = |row: usize| {
                    let own = lists.is_valid(row).then(|| lists.value(row))?;
                    let own = own.as_string::<i32>();
                    (own.null_count() == 0).then(|| Input::words(own.iter().flatten()))
                };
                all(&of_row, words)
            }
        })
    }
}

fn nothing(column: &str) -> Error {
    let hint = "fill it in, or answer the other rows with --keep-going";
    Error::new(ErrorKind::BadInput, format!("`{column}` is null"), hint.to_owned())
}

fn value(texts: &StringArray, row: usize) -> Option<&str> {
    texts.is_valid(row).then(|| texts.value(row))
}

/// A column of texts. Arrow has several types for them.
fn strings(batch: &Batch, place: usize) -> Result<StringArray> {
    let column = batch.rows.column(place);
    let is_text = |kind: &DataType| matches!(kind, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
    let fits = match column.data_type() {
        DataType::Dictionary(_, values) => is_text(values),
        kind => is_text(kind) || *kind == DataType::Null,
    };
    Ok(converted(batch, place, fits, &DataType::Utf8)?.as_string::<i32>().clone())
}

/// A column of lists of words.
fn lists(batch: &Batch, place: usize) -> Result<ListArray> {
    let kind = batch.rows.column(place).data_type();
    let fits = matches!(kind, DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..));
    let wanted = DataType::List(std::sync::Arc::new(Field::new("item", DataType::Utf8, true)));
    Ok(converted(batch, place, fits, &wanted)?.as_list::<i32>().clone())
}

fn converted(batch: &Batch, place: usize, fits: bool, wanted: &DataType) -> Result<ArrayRef> {
    let column = batch.rows.column(place);
    let wrong = || {
        let field = batch.rows.schema_ref().field(place).clone();
        let expected = if *wanted == DataType::Utf8 { "text" } else { "lists of words" };
        let message = format!("the column `{}` has {}, not {expected}", field.name(), column.data_type());
        Error::new(ErrorKind::BadInput, message, "name another column with --column INPUT=COLUMN".to_owned())
    };
    if !fits {
        return Err(wrong());
    }
    arrow_cast::cast(column, wanted).map_err(|_| wrong())
}

/// The texts of a column, batch by batch.
pub(crate) fn texts(options: &RowOptions, mut take: impl FnMut(Vec<String>) -> Result<()>) -> Result<()> {
    let rows = Rows::open(&options.data)?;
    let place = text_column(options, &rows)?;
    rows.batches().try_for_each(|batch| take(texts_of(&batch?, place)?))
}

fn text_column(options: &RowOptions, rows: &Rows) -> Result<usize> {
    place_of(rows.schema(), &options.column("text").0, rows.file()).map_err(|error| error.about("--column text=COLUMN"))
}

fn texts_of(batch: &Batch, place: usize) -> Result<Vec<String>> {
    let texts = strings(batch, place)?;
    if let Some(row) = (0..texts.len()).find(|&row| texts.is_null(row)) {
        let message = format!("{}: the text is null", batch.place(row));
        return Err(Error::new(ErrorKind::BadInput, message, "leave the row out, or fill it in".to_owned()));
    }
    Ok(texts.iter().flatten().map(str::to_owned).collect())
}

/// Writes the rows with the vector of each one's text; returns their number. `width` is that of a vector.
pub(crate) fn vectors_of_rows(
    (options, out): (&RowOptions, &Path),
    quiet: bool,
    width: usize,
    mut embed: impl FnMut(&[String]) -> Result<Vectors>,
) -> Result<usize> {
    let rows = Rows::open(&options.data)?;
    let place = text_column(options, &rows)?;
    let kept = options.kept(rows.schema(), rows.file())?;
    let schema = joined(rows.schema(), &kept, &[vector_field(width)?], &options.prefix)?;
    let mut progress = Progress::new("embed", quiet);
    atomic::write_seekable(out, |file| {
        let (mut sink, mut done) = (Sink::new(out, file, schema)?, 0);
        for batch in rows.batches() {
            let batch = batch?;
            let _item = stop::Item::begin();
            let vectors = embed(&texts_of(&batch, place)?)?;
            let mut columns: Vec<ArrayRef> = kept.iter().map(|&place| batch.rows.column(place).clone()).collect();
            columns.push(vector_column(vectors.as_slice(), width)?);
            sink.rows(columns)?;
            done += batch.rows.num_rows();
            progress.at(done, rows.total, "");
        }
        sink.finish()?;
        Ok(done)
    })
}
