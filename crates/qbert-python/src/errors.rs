//! Errors of the library as exceptions of `qbert._errors`, with their hints, in the words of a Python program.

use std::error::Error as _;
use std::io;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use qbert::ErrorKind;

/// The exception for an error. It says keyword arguments where the library says settings.
pub(crate) fn exception(py: Python<'_>, error: &qbert::Error) -> PyErr {
    let is_missing = is_missing(error);
    let class = match error.kind() {
        _ if is_missing => "MissingFileError",
        ErrorKind::BadInput => "InputError",
        ErrorKind::MissedLimit => "MissedLimitError",
        ErrorKind::Interrupted => "InterruptedJobError",
        _ => "MachineError",
    };
    let said = |text: &str| in_keywords(&qbert_cli::in_flags(text));
    let hint = error.hint().or(is_missing.then_some("check the path; it is looked for from the current directory"));
    named(py, class, &said(&error.to_string()), hint.map(said).as_deref())
}

/// An exception by the name of its class.
pub(crate) fn named(py: Python<'_>, class: &str, message: &str, hint: Option<&str>) -> PyErr {
    let made = py.import("qbert._errors").and_then(|module| module.getattr(class)?.call1((message, hint)));
    match made {
        Ok(value) => PyErr::from_value(value),
        Err(error) => error,
    }
}

/// The exception for a value of the wrong type.
pub(crate) fn wrong_type(py: Python<'_>, message: &str, hint: &str) -> PyErr {
    named(py, "InputTypeError", message, Some(hint))
}

/// The exception for what must not happen.
pub(crate) fn internal(message: &str) -> PyErr {
    PyRuntimeError::new_err(format!("{message}; please report this"))
}

/// Whether a file is not there.
fn is_missing(error: &qbert::Error) -> bool {
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return error.kind() == io::ErrorKind::NotFound;
        }
        cause = error.source();
    }
    false
}

/// The text with keyword arguments for flags: `--max-drop <POINTS>` becomes `max_drop`.
fn in_keywords(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(place) = rest.find("--") {
        let (before, flag) = rest.split_at(place);
        let name = &flag[2..];
        let length = name.find(|c: char| !c.is_ascii_alphanumeric() && c != '-').unwrap_or(name.len());
        let starts_word = before.chars().next_back().is_none_or(|c| !c.is_alphanumeric() && c != '-');
        if length == 0 || !starts_word || !name.starts_with(|c: char| c.is_ascii_lowercase()) {
            result.push_str(before);
            result.push_str("--");
            rest = name;
            continue;
        }
        let (name, mut after) = name.split_at(length);
        // clap quotes a flag together with the name of its value.
        let quoted = before.strip_suffix('\'').filter(|_| after.starts_with('\'') || after.starts_with(" <"));
        if let (Some(_), Some(end)) = (quoted, after.find('\'')) {
            after = &after[end + 1..];
        }
        result.push_str(quoted.unwrap_or(before));
        let keyword = name.replace('-', "_");
        result.push('`');
        result.push_str(if keyword == "max_len" { "max_length" } else { &keyword });
        result.push('`');
        rest = after;
    }
    result + rest
}
