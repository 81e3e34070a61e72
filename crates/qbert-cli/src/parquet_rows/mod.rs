//! Parquet in and out: rows are read, answered and written a batch at a time, so memory does not grow with their number.

mod answers;
mod inputs;
mod sink;
mod source;

pub(crate) use answers::{Answering, answer_rows};
pub(crate) use inputs::{texts, vectors_of_rows};
pub(crate) use sink::TextVectors;

use std::path::{Path, PathBuf};

use arrow_schema::Schema;
use clap::Args;
use qbert_pipeline::{Error, ErrorKind, Result};

/// Rows of one batch: enough to fill the batches of tokens, few enough to forget.
const TOGETHER: usize = 1024;

/// Where rows come from and what becomes of their columns.
#[derive(Debug, Args)]
#[command(next_help_heading = "Parquet")]
pub(crate) struct RowOptions {
    /// Read rows from Parquet files instead; a directory stands for the .parquet files in it, in the order of their names.
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["text"])]
    pub(crate) data: Vec<PathBuf>,
    /// Take an input from another column than the one of its name: text, text2, words, question or context.
    #[arg(long, value_name = "INPUT=COLUMN", requires = "data", value_parser = renaming)]
    column: Vec<(String, String)>,
    /// Copy only these columns of the rows to the output [default: all].
    #[arg(long, value_name = "COLUMN,…", value_delimiter = ',', requires = "data")]
    keep: Option<Vec<String>>,
    /// Begin the names of new columns with this, where the rows have columns of the same names.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true, requires = "data")]
    prefix: String,
}

/// The formats of files with rows.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(crate) enum RowFormat {
    /// Apache Parquet.
    Parquet,
}

fn renaming(text: &str) -> std::result::Result<(String, String), String> {
    const INPUTS: [&str; 5] = ["text", "text2", "words", "question", "context"];
    match text.split_once('=') {
        Some((input, column)) if INPUTS.contains(&input) => Ok((input.to_owned(), column.to_owned())),
        _ => Err(format!("give INPUT=COLUMN, where INPUT is {}", INPUTS.join(", "))),
    }
}

impl RowOptions {
    /// Refuses what is about columns of the output, for outputs without columns.
    pub(crate) fn check_no_columns(&self) -> Result<()> {
        let flag = match (&self.keep, self.prefix.as_str()) {
            (Some(_), _) => "--keep",
            (None, "") => return Ok(()),
            (None, _) => "--prefix",
        };
        let message = format!("{flag} is about the columns of a Parquet file, and this output has none");
        Err(Error::new(
            ErrorKind::BadInput,
            message,
            "write to a file that ends in .parquet, or leave it out".to_owned(),
        ))
    }

    /// The name of the column for an input, and whether it was given.
    fn column(&self, input: &str) -> (String, bool) {
        let given = self.column.iter().rev().find(|(own, _)| own == input);
        given.map_or_else(|| (input.to_owned(), false), |(_, column)| (column.clone(), true))
    }

    /// The places of the columns to copy, in the order of the rows.
    fn kept(&self, schema: &Schema, file: &Path) -> Result<Vec<usize>> {
        let Some(names) = &self.keep else { return Ok((0..schema.fields().len()).collect()) };
        let places = names.iter().map(|name| place_of(schema, name, file).map_err(|error| error.about("--keep")));
        let mut places = places.collect::<Result<Vec<_>>>()?;
        places.sort_unstable();
        places.dedup();
        Ok(places)
    }
}

fn place_of(schema: &Schema, name: &str, file: &Path) -> Result<usize> {
    schema.index_of(name).map_err(|_| {
        let all: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
        let message = format!("{} has no column `{name}`", file.display());
        Error::new(ErrorKind::BadInput, message, format!("its columns are {}", all.join(", ")))
    })
}

/// Whether a path names a Parquet file.
pub(crate) fn is_parquet(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("parquet"))
}

/// An error of the Parquet or Arrow library about reading a file.
fn unreadable(file: &Path, error: impl std::fmt::Display) -> Error {
    let hint = "write it as Parquet, uncompressed or with snappy, zstd, lz4 or gzip";
    Error::new(ErrorKind::BadInput, format!("{}: cannot read it as Parquet: {error}", file.display()), hint.to_owned())
}

/// An error of the Parquet or Arrow library about writing a file.
fn unwritten(file: &Path, error: impl std::fmt::Display) -> Error {
    Error::environment(format!("{}: cannot write: {error}", file.display()), None)
}
