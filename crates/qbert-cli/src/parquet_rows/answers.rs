//! Rows with the model's answers: new columns with the names and values of `qbert predict --json`.

use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, StringArray};
use arrow_json::ReaderBuilder;
use arrow_schema::{DataType, Field, FieldRef, Fields, Schema};
use qbert_model::atomic;
use qbert_pipeline::{Error, Result};
use qbert_runtime::{Error as RuntimeError, Head, Input, Prediction, Problem, Session};
use serde::Serialize;

use super::inputs::Asked;
use super::sink::{Sink, joined};
use super::source::{Batch, Rows};
use super::{RowOptions, TOGETHER, unwritten};
use crate::progress::Progress;
use crate::stop;

/// What became of the rows.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Answered {
    pub(crate) rows: usize,
    pub(crate) cut: usize,
    pub(crate) failed: usize,
}

/// How rows are answered.
pub(crate) struct Answering<'a> {
    pub(crate) session: &'a Session,
    /// Whether a row that cannot be answered gets a null and its error instead of ending the run.
    pub(crate) keeps_going: bool,
    pub(crate) quiet: bool,
    /// The runtime's error about an input in the words of the command.
    pub(crate) refusal: &'a dyn Fn(RuntimeError) -> Error,
    /// Whether a part of the input was cut off.
    pub(crate) was_cut: &'a dyn Fn(&Prediction) -> bool,
}

/// Writes the rows with their answers.
pub(crate) fn answer_rows(options: &RowOptions, out: &Path, answering: &Answering<'_>) -> Result<Answered> {
    let rows = Rows::open(&options.data)?;
    let asked = Asked::find(options, &rows, answering.session)?;
    let kept = options.kept(rows.schema(), rows.file())?;
    let answers = answer_fields(answering.session);
    let mut new = answers.to_vec();
    if answering.keeps_going {
        new.push(field("error", DataType::Utf8));
    }
    let schema = joined(rows.schema(), &kept, &new, &options.prefix)?;
    let answers = Arc::new(Schema::new(answers));
    let mut progress = Progress::new("predict", answering.quiet);
    atomic::write_seekable(out, |file| {
        let (mut sink, mut tally) = (Sink::new(out, file, schema)?, Answered::default());
        // Strict: a field of a prediction that has no column is an error, not a loss.
        let decoder = ReaderBuilder::new(answers).with_batch_size(TOGETHER).with_strict_mode(true).build_decoder();
        let mut decoder = decoder.map_err(|error| unwritten(out, error))?;
        for batch in rows.batches() {
            let batch = batch?;
            let _item = stop::Item::begin();
            let found = answering.answer(&batch, asked.of(&batch)?, &mut tally)?;
            let values: Vec<Row<'_>> = found.iter().map(|answer| Row(answer.as_ref().ok())).collect();
            decoder.serialize(&values).map_err(|error| unwritten(out, error))?;
            let mut columns: Vec<ArrayRef> = kept.iter().map(|&place| batch.rows.column(place).clone()).collect();
            if let Some(decoded) = decoder.flush().map_err(|error| unwritten(out, error))? {
                columns.extend(decoded.columns().iter().cloned());
                if answering.keeps_going {
                    let errors = found.iter().map(|answer| answer.as_ref().err().map(ToString::to_string));
                    columns.push(Arc::new(StringArray::from_iter(errors)));
                }
                sink.rows(columns)?;
            }
            tally.rows += batch.rows.num_rows();
            progress.at(tally.rows, rows.total, "");
        }
        sink.finish()?;
        Ok(tally)
    })
}

impl Answering<'_> {
    /// The answers to a batch, in order, up to the first row that has none unless failures are kept.
    fn answer(
        &self,
        batch: &Batch,
        inputs: Vec<Result<Input>>,
        tally: &mut Answered,
    ) -> Result<Vec<Result<Prediction>>> {
        let good: Vec<&Input> = inputs.iter().filter_map(|input| input.as_ref().ok()).collect();
        let mut results = self.session.predict_each(good).into_iter();
        let mut answers = Vec::with_capacity(inputs.len());
        for (row, input) in inputs.into_iter().enumerate() {
            let answer = match input {
                Ok(_) => results.next().map(|result| result.map_err(self.refusal)),
                Err(error) => Some(Err(error)),
            };
            match answer {
                Some(Err(error)) if !self.keeps_going => {
                    return Err(error.about(&batch.place(row)));
                }
                Some(answer) => {
                    tally.cut += usize::from(answer.as_ref().is_ok_and(self.was_cut));
                    tally.failed += usize::from(answer.is_err());
                    answers.push(answer);
                }
                None => {}
            }
        }
        Ok(answers)
    }
}

/// An answer, or an object without any field where there is none.
struct Row<'a>(Option<&'a Prediction>);

impl Serialize for Row<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match self.0 {
            Some(answer) => answer.serialize(serializer),
            None => serde::ser::SerializeMap::end(serializer.serialize_map(Some(0))?),
        }
    }
}

fn field(name: &str, kind: DataType) -> FieldRef {
    Arc::new(Field::new(name, kind, true))
}

fn list(kind: DataType) -> DataType {
    DataType::List(field("item", kind))
}

fn object<const N: usize>(fields: [(&str, DataType); N]) -> DataType {
    DataType::Struct(fields.map(|(name, kind)| field(name, kind)).into_iter().collect())
}

/// The columns of a model's answers: the fields of its predictions.
fn answer_fields(session: &Session) -> Fields {
    use DataType::{Float32, Float64, Int64, Utf8};
    let span = || object([("start", Int64), ("end", Int64)]);
    let scores = || list(object([("label", Utf8), ("probability", Float64), ("logit", Float32)]));
    let own = match (session.head(), session.problem()) {
        (Head::TokenClassification, _) => {
            let entity = object([
                ("kind", Utf8),
                ("text", Utf8),
                ("words", span()),
                ("characters", span()),
                ("probability", Float64),
            ]);
            vec![
                ("entities", list(entity)),
                ("words", list(Utf8)),
                ("tags", list(Utf8)),
                ("probabilities", list(Float64)),
            ]
        }
        (Head::QuestionAnswering, _) => {
            let answer = object([
                ("text", Utf8),
                ("characters", span()),
                ("bytes", span()),
                ("score", Float64),
                ("probability", Float64),
            ]);
            vec![("answers", list(answer))]
        }
        (_, Problem::SingleLabel) => vec![("label", Utf8), ("probability", Float64), ("scores", scores())],
        (_, Problem::MultiLabel) => vec![("labels", list(Utf8)), ("scores", scores())],
        (_, Problem::Regression) => vec![("score", Float32)],
    };
    let own = own.into_iter().chain([("removed", Int64)]);
    own.map(|(name, kind)| field(name, kind)).collect()
}
