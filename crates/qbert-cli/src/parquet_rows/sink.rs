//! Rows on their way into a Parquet file.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, FixedSizeListArray, Float32Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, FieldRef, Schema, SchemaRef};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use parquet::schema::types::ColumnPath;
use qbert_pipeline::{Error, ErrorKind, Result};

use super::unwritten;

/// Rows are kept in memory until so many bytes of them are together.
const GROUP_BYTES: usize = 32 << 20;

/// A Parquet file, compressed as Spark and pandas do it.
pub(super) struct Sink<'a> {
    path: &'a Path,
    writer: ArrowWriter<&'a mut File>,
    schema: SchemaRef,
}

impl<'a> Sink<'a> {
    pub(super) fn new(path: &'a Path, file: &'a mut File, schema: SchemaRef) -> Result<Self> {
        let mut settings = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_created_by(format!("qbert {}", env!("CARGO_PKG_VERSION")))
            .set_max_row_group_bytes(Some(GROUP_BYTES));
        // No two vectors share a number, so a dictionary of them costs time and saves nothing.
        for field in schema.fields().iter().filter(|field| matches!(field.data_type(), DataType::FixedSizeList(..))) {
            let column = [field.name(), "list", "item"].map(str::to_owned).to_vec();
            settings = settings.set_column_dictionary_enabled(ColumnPath::new(column), false);
        }
        let writer = ArrowWriter::try_new(file, schema.clone(), Some(settings.build()));
        Ok(Self { path, writer: writer.map_err(|error| unwritten(path, error))?, schema })
    }

    pub(super) fn rows(&mut self, columns: Vec<ArrayRef>) -> Result<()> {
        let rows = RecordBatch::try_new(self.schema.clone(), columns).map_err(|error| unwritten(self.path, error))?;
        self.writer.write(&rows).map_err(|error| unwritten(self.path, error))
    }

    pub(super) fn finish(self) -> Result<()> {
        let path = self.path;
        self.writer.close().map(|_| ()).map_err(|error| unwritten(path, error))
    }
}

/// The columns that rows keep, and the new ones.
pub(super) fn joined(schema: &Schema, kept: &[usize], new: &[FieldRef], prefix: &str) -> Result<SchemaRef> {
    let mut fields: Vec<FieldRef> = kept.iter().map(|&place| schema.fields()[place].clone()).collect();
    for field in new {
        let name = format!("{prefix}{}", field.name());
        if fields.iter().any(|own| *own.name() == name) {
            let message = format!("the rows have a column `{name}` of their own");
            let hint = "name the new columns otherwise with --prefix, such as --prefix answer_, or drop it with --keep";
            return Err(Error::new(ErrorKind::BadInput, message, hint.to_owned()));
        }
        fields.push(Arc::new(field.as_ref().clone().with_name(name)));
    }
    Ok(Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone())))
}

/// The column of vectors.
pub(super) fn vector_field(width: usize) -> Result<FieldRef> {
    let width = i32::try_from(width).map_err(|_| Error::environment("vectors are too wide".to_owned(), None))?;
    Ok(Arc::new(Field::new("vector", DataType::FixedSizeList(number_field(), width), true)))
}

fn number_field() -> FieldRef {
    Arc::new(Field::new("item", DataType::Float32, false))
}

/// Vectors, one after the other, as a column of lists.
pub(super) fn vector_column(values: &[f32], width: usize) -> Result<ArrayRef> {
    let wide = |_| Error::environment("vectors are too wide".to_owned(), None);
    let numbers = Arc::new(Float32Array::from(values.to_vec()));
    let list = FixedSizeListArray::try_new(number_field(), i32::try_from(width).map_err(wide)?, numbers, None);
    list.map(|list| Arc::new(list) as ArrayRef).map_err(|error| Error::environment(error.to_string(), None))
}

/// A Parquet file of texts with their vectors. The columns are known with the first vector.
pub(crate) struct TextVectors<'a> {
    path: &'a Path,
    file: Option<&'a mut File>,
    sink: Option<Sink<'a>>,
}

impl<'a> TextVectors<'a> {
    pub(crate) fn new(path: &'a Path, file: &'a mut File) -> Self {
        Self { path, file: Some(file), sink: None }
    }

    pub(crate) fn rows(&mut self, texts: &[String], width: usize, values: &[f32]) -> Result<()> {
        if let Some(file) = self.file.take() {
            let fields = vec![Arc::new(Field::new("text", DataType::Utf8, false)), vector_field(width)?];
            self.sink = Some(Sink::new(self.path, file, Arc::new(Schema::new(fields)))?);
        }
        let columns = vec![Arc::new(StringArray::from_iter_values(texts)) as ArrayRef, vector_column(values, width)?];
        self.sink.as_mut().map_or(Ok(()), |sink| sink.rows(columns))
    }

    pub(crate) fn finish(mut self) -> Result<()> {
        if self.file.is_some() {
            self.rows(&[], 0, &[])?;
        }
        self.sink.map_or(Ok(()), Sink::finish)
    }
}
