//! Rows of Parquet files, batch by batch.

use std::fs::File;
use std::path::{Path, PathBuf};

use arrow_array::RecordBatch;
use arrow_schema::{Schema, SchemaRef};
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};
use qbert_pipeline::{Error, ErrorKind, Result};

use super::{TOGETHER, is_parquet, unreadable};

/// Files with the same columns, one after the other.
pub(super) struct Rows {
    files: Vec<PathBuf>,
    schema: SchemaRef,
    /// The rows of all files, as their footers say.
    pub(super) total: usize,
}

/// Rows that were read together.
pub(super) struct Batch {
    pub(super) rows: RecordBatch,
    file: PathBuf,
    first: usize,
}

impl Batch {
    /// Where a row stands, for messages. Rows are counted from 1.
    pub(super) fn place(&self, row: usize) -> String {
        format!("{}, row {}", self.file.display(), self.first + row + 1)
    }
}

impl Rows {
    /// Looks at the files without reading rows.
    pub(super) fn open(paths: &[PathBuf]) -> Result<Self> {
        let mut files = Vec::new();
        for path in paths {
            if path.is_dir() {
                files.extend(parts(path)?);
            } else {
                files.push(path.clone());
            }
        }
        let mut rows: Option<Self> = None;
        for file in &files {
            let reader = reader(file)?;
            let count = usize::try_from(reader.metadata().file_metadata().num_rows()).unwrap_or(0);
            match &mut rows {
                None => rows = Some(Self { files: files.clone(), schema: reader.schema().clone(), total: count }),
                Some(rows) => {
                    check_same(&rows.schema, reader.schema(), &files[0], file)?;
                    rows.total += count;
                }
            }
        }
        rows.ok_or_else(|| {
            let message = "--data: no Parquet files".to_owned();
            Error::new(ErrorKind::BadInput, message, "name files, or a directory with .parquet files".to_owned())
        })
    }

    pub(super) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The first file, which messages about columns name.
    pub(super) fn file(&self) -> &Path {
        &self.files[0]
    }

    /// The batches of all files, in order.
    pub(super) fn batches(&self) -> impl Iterator<Item = Result<Batch>> + '_ {
        self.files.iter().flat_map(|file| match reader(file).and_then(|reader| built(file, reader)) {
            Ok(reader) => Batches::Of { file, reader, read: 0 },
            Err(error) => Batches::Failed(Some(error)),
        })
    }
}

/// The batches of one file, or why there are none.
enum Batches<'a> {
    Of { file: &'a Path, reader: ParquetRecordBatchReader, read: usize },
    Failed(Option<Error>),
}

impl Iterator for Batches<'_> {
    type Item = Result<Batch>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::Failed(error) => error.take().map(Err),
            Self::Of { file, reader, read } => {
                let rows = reader.next()?.map_err(|error| unreadable(file, error));
                Some(rows.map(|rows| {
                    let first = *read;
                    *read += rows.num_rows();
                    Batch { rows, file: file.to_path_buf(), first }
                }))
            }
        }
    }
}

fn reader(file: &Path) -> Result<ParquetRecordBatchReaderBuilder<File>> {
    let open = File::open(file);
    let open = open.map_err(|error| Error::environment(format!("{}: cannot open: {error}", file.display()), None))?;
    ParquetRecordBatchReaderBuilder::try_new(open).map_err(|error| unreadable(file, error))
}

fn built(file: &Path, reader: ParquetRecordBatchReaderBuilder<File>) -> Result<ParquetRecordBatchReader> {
    reader.with_batch_size(TOGETHER).build().map_err(|error| unreadable(file, error))
}

/// The Parquet files of a directory by name. Names with a dot or an underscore in front are not data (Spark's `_SUCCESS`).
fn parts(directory: &Path) -> Result<Vec<PathBuf>> {
    let unlisted = |error| Error::environment(format!("{}: cannot list: {error}", directory.display()), None);
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(unlisted)? {
        let path = entry.map_err(unlisted)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if is_parquet(&path) && !name.starts_with(['.', '_']) {
            found.push(path);
        }
    }
    found.sort();
    if found.is_empty() {
        let message = format!("{}: no .parquet files in this directory", directory.display());
        return Err(Error::new(ErrorKind::BadInput, message, None));
    }
    Ok(found)
}

fn check_same(first: &Schema, other: &Schema, first_file: &Path, file: &Path) -> Result<()> {
    if first.fields() == other.fields() {
        return Ok(());
    }
    let message = format!("{}: its columns are not those of {}", file.display(), first_file.display());
    Err(Error::new(ErrorKind::BadInput, message, "answer them one by one".to_owned()))
}
