//! Rows of a jsonl file: one JSON object per line, with its keys as columns.
//!
//! The first object's keys are the columns; later objects may have more, but must have those that are used. Texts
//! are strings; labels and ids may be strings, whole numbers or booleans.

use std::collections::HashMap;
use std::path::Path;

use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::lines::Lines;
use crate::error::shortened;
use crate::{Error, Result};

const LAYOUT: &str =
    "every line is one JSON object, with a string for each text and a string or whole number for the label";

/// One object.
pub(crate) struct Object {
    /// Its line, from 1.
    pub(crate) line: usize,
    fields: Map<String, Value>,
    /// Whole numbers beyond 64 bits, which `fields` has rounded, as they are written.
    large: HashMap<String, String>,
}

impl Object {
    pub(crate) fn keys(&self) -> impl Iterator<Item = &String> {
        self.fields.keys()
    }

    fn new(line: usize, text: &str, fields: Map<String, Value>) -> serde_json::Result<Self> {
        let is_float = |value: &Value| matches!(value, Value::Number(number) if number.is_f64());
        let mut large = HashMap::new();
        if fields.values().any(is_float) {
            let raw: HashMap<String, &RawValue> = serde_json::from_str(text)?;
            let is_whole =
                |text: &str| text.strip_prefix('-').unwrap_or(text).bytes().all(|byte| byte.is_ascii_digit());
            let whole = raw.into_iter().filter(|(_, value)| is_whole(value.get()));
            large = whole.map(|(key, value)| (key, value.get().to_owned())).collect();
        }
        Ok(Self { line, fields, large })
    }
}

/// A jsonl file, read object by object.
pub(crate) struct Objects {
    lines: Lines,
}

impl Objects {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        Ok(Self { lines: Lines::open(path)? })
    }

    /// The next object; blank lines are skipped.
    pub(crate) fn next_object(&mut self) -> Result<Option<Object>> {
        loop {
            let path = self.lines.path().to_owned();
            let Some((number, line)) = self.lines.next_line()? else { return Ok(None) };
            if line.trim().is_empty() {
                continue;
            }
            let invalid = |error| Error::Json { path: path.clone(), line: number, problem: without_position(&error) };
            return match serde_json::from_str(line).map_err(invalid)? {
                Value::Object(fields) => Object::new(number, line, fields).map(Some).map_err(invalid),
                other => Err(layout(&path, number, format!("{} where an object was expected", describe(&other)))),
            };
        }
    }
}

/// The parser's message with the column, but without its line number, which is always 1 in jsonl.
fn without_position(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let message = text.split(" at line ").next().unwrap_or(&text);
    format!("{message} at column {}", error.column())
}

/// A text field: a string.
pub(crate) fn text_value<'a>(path: &Path, object: &'a Object, key: &str) -> Result<&'a str> {
    let line = object.line;
    match object.fields.get(key) {
        Some(Value::String(text)) => Ok(text),
        Some(other) => Err(layout(path, line, format!("{key:?} is {}, not a string", describe(other)))),
        None => Err(layout(path, line, format!("the key {key:?} is missing"))),
    }
}

/// A label or id: a string, whole number or boolean; `None` where it is missing, null or empty.
pub(crate) fn name_value(path: &Path, object: &Object, key: &str) -> Result<Option<String>> {
    let line = object.line;
    if let Some(number) = object.large.get(key) {
        return Ok(Some(number.clone()));
    }
    match object.fields.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone()).filter(|text| !text.is_empty())),
        Some(Value::Bool(flag)) => Ok(Some(flag.to_string())),
        Some(Value::Number(number)) if number.is_i64() || number.is_u64() => Ok(Some(number.to_string())),
        Some(other) => Err(layout(path, line, format!("{key:?} is {}, not a string or whole number", describe(other)))),
    }
}

/// A list of labels, or one: strings or whole numbers; `None` where it is missing or null.
pub(crate) fn list_value(path: &Path, object: &Object, key: &str) -> Result<Option<String>> {
    let Some(Value::Array(list)) = object.fields.get(key) else { return name_value(path, object, key) };
    let mut names = Vec::with_capacity(list.len());
    for value in list {
        names.push(match value {
            Value::String(name) => name.clone(),
            Value::Number(number) if number.is_i64() || number.is_u64() => number.to_string(),
            other => {
                let problem = format!("{key:?} contains {}, not a string or whole number", describe(other));
                return Err(layout(path, object.line, problem));
            }
        });
    }
    Ok(Some(names.join(&crate::classify::LIST_SEPARATOR.to_string())))
}

/// A value, as a number or a string; `None` where it is missing, null or empty.
pub(crate) fn number_value(path: &Path, object: &Object, key: &str) -> Result<Option<String>> {
    match object.fields.get(key) {
        Some(Value::Number(number)) => Ok(Some(number.to_string())),
        _ => name_value(path, object, key),
    }
}

fn layout(path: &Path, line: usize, problem: String) -> Error {
    Error::JsonLayout { path: path.to_owned(), at: format!("line {line}"), problem, layout: LAYOUT }
}

/// A JSON value for a message: its kind, and the value itself where it is short.
pub(crate) fn describe(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => format!("the number {number}"),
        Value::String(text) => format!("the string {:?}", shortened(text, 40)),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}
