//! Tables of other libraries through Arrow's `PyCapsule` interface: pandas, polars, pyarrow, duckdb and the like hand over
//! their memory, and none of them is imported here.

use std::sync::{Mutex, PoisonError};

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type,
    UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{AnyDictionaryArray, Array, ArrayRef, RecordBatchReader};
use arrow_schema::DataType;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use pyo3_arrow::input::AnyRecordBatch;

use crate::errors::named;

/// The batches of a table, each a dict of columns.
#[pyclass(frozen, module = "qbert._qbert")]
pub(crate) struct ArrowBatches {
    reader: Mutex<Box<dyn RecordBatchReader + Send>>,
}

#[pymethods]
impl ArrowBatches {
    #[new]
    fn new(table: AnyRecordBatch) -> PyResult<Self> {
        Ok(Self { reader: Mutex::new(table.into_reader()?) })
    }

    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(batch) = reader.next() else { return Ok(None) };
        let batch = batch.map_err(|error| named(py, "InputError", &format!("an Arrow table: {error}"), None))?;
        let columns = PyDict::new(py);
        for (field, column) in batch.schema_ref().fields().iter().zip(batch.columns()) {
            let values = list(py, column).map_err(|error| about(py, field.name(), error))?;
            columns.set_item(field.name(), values)?;
        }
        Ok(Some(columns))
    }
}

/// The error of a column, with its name.
fn about(py: Python<'_>, column: &str, error: PyErr) -> PyErr {
    let hint = "give columns of text, numbers, or lists and structs of them, or convert the column to text";
    named(py, "InputError", &format!("column {column:?}: {}", error.value(py)), Some(hint))
}

/// The values of an array as Python has them.
fn list<'py>(py: Python<'py>, array: &ArrayRef) -> PyResult<Bound<'py, PyList>> {
    match array.data_type() {
        DataType::Null => PyList::new(py, vec![None::<bool>; array.len()]),
        DataType::Boolean => PyList::new(py, array.as_boolean().iter().collect::<Vec<_>>()),
        DataType::Utf8 => PyList::new(py, array.as_string::<i32>().iter().collect::<Vec<_>>()),
        DataType::LargeUtf8 => PyList::new(py, array.as_string::<i64>().iter().collect::<Vec<_>>()),
        DataType::Utf8View => PyList::new(py, array.as_string_view().iter().collect::<Vec<_>>()),
        DataType::Int8 => numbers::<Int8Type>(py, array),
        DataType::Int16 => numbers::<Int16Type>(py, array),
        DataType::Int32 => numbers::<Int32Type>(py, array),
        DataType::Int64 => numbers::<Int64Type>(py, array),
        DataType::UInt8 => numbers::<UInt8Type>(py, array),
        DataType::UInt16 => numbers::<UInt16Type>(py, array),
        DataType::UInt32 => numbers::<UInt32Type>(py, array),
        DataType::UInt64 => numbers::<UInt64Type>(py, array),
        DataType::Float16 => {
            let values = array.as_primitive::<Float16Type>().iter();
            PyList::new(py, values.map(|value| value.map(f32::from)).collect::<Vec<_>>())
        }
        DataType::Float32 => numbers::<Float32Type>(py, array),
        DataType::Float64 => numbers::<Float64Type>(py, array),
        DataType::List(_) => nested(py, array.as_list::<i32>().iter()),
        DataType::LargeList(_) => nested(py, array.as_list::<i64>().iter()),
        DataType::FixedSizeList(..) => nested(py, array.as_fixed_size_list().iter()),
        DataType::Struct(fields) => {
            let own = array.as_struct();
            let columns = own.columns().iter().map(|column| list(py, column)).collect::<PyResult<Vec<_>>>()?;
            let rows = PyList::empty(py);
            for row in 0..own.len() {
                if own.is_null(row) {
                    rows.append(py.None())?;
                    continue;
                }
                let dict = PyDict::new(py);
                for (field, column) in fields.iter().zip(&columns) {
                    dict.set_item(field.name(), column.get_item(row)?)?;
                }
                rows.append(dict)?;
            }
            Ok(rows)
        }
        DataType::Dictionary(..) => categories(py, array.as_any_dictionary()),
        other => Err(unknown(py, other)),
    }
}

fn unknown(py: Python<'_>, kind: &DataType) -> PyErr {
    named(py, "InputError", &format!("values of the type {kind} are not read"), None)
}

fn numbers<'py, T>(py: Python<'py>, array: &ArrayRef) -> PyResult<Bound<'py, PyList>>
where
    T: ArrowPrimitiveType<Native: IntoPyObject<'py>>,
{
    PyList::new(py, array.as_primitive::<T>().iter().collect::<Vec<_>>())
}

fn nested<'py>(py: Python<'py>, values: impl Iterator<Item = Option<ArrayRef>>) -> PyResult<Bound<'py, PyList>> {
    let rows = PyList::empty(py);
    for value in values {
        match value {
            Some(value) => rows.append(list(py, &value)?)?,
            None => rows.append(py.None())?,
        }
    }
    Ok(rows)
}

/// Categorical values, as pandas and polars have them.
fn categories<'py>(py: Python<'py>, array: &dyn AnyDictionaryArray) -> PyResult<Bound<'py, PyList>> {
    let values = list(py, array.values())?;
    // Without values there are no keys to look at: every row is null.
    let keys = if values.is_empty() { vec![0; array.len()] } else { array.normalized_keys() };
    let rows = PyList::empty(py);
    for (row, key) in keys.into_iter().enumerate() {
        if array.is_null(row) {
            rows.append(py.None())?;
        } else {
            rows.append(values.get_item(key)?)?;
        }
    }
    Ok(rows)
}
