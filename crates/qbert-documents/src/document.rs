//! Reading and writing any document: `format` and `version` first, then its content.

use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::{Error, Result};
use crate::field;

/// How a file names itself: the fields `format` and `version` at its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The kind of file, such as `qbert-sensitivity`.
    pub format: &'static str,
    /// The version that this crate reads and writes.
    pub version: u32,
}

/// The content of a JSON file.
pub trait Document: Serialize + DeserializeOwned {
    /// How the file names itself; `None` where it does not.
    const HEADER: Option<Header>;
}

/// Reads a document from a file.
///
/// # Errors
/// A file that cannot be read, is of another format or version, or has a wrong field; the error names file and field.
pub fn read<T: Document>(path: &Path) -> Result<T> {
    let bytes = std::fs::read(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    parse(&bytes, &path.display().to_string())
}

/// Reads a document from text; `file` names it in errors.
///
/// # Errors
/// As [`read`].
pub fn parse<T: Document>(text: impl AsRef<[u8]>, file: &str) -> Result<T> {
    let text = text.as_ref();
    if let Some(header) = T::HEADER {
        check(header, &from_slice(text, file)?, file)?;
    }
    // From the text again rather than from the value: then errors have a place.
    from_slice(text, file)
}

fn check(header: Header, value: &Value, file: &str) -> Result<()> {
    let file = || file.to_owned();
    let found = value.get("format");
    if found.and_then(Value::as_str) != Some(header.format) {
        return Err(Error::Format { file: file(), found: found.map(Value::to_string), expected: header.format });
    }
    let found = value.get("version");
    if found.and_then(Value::as_u64) != Some(u64::from(header.version)) {
        let (format, known) = (header.format, header.version);
        return Err(Error::Version { file: file(), format, found: found.map(Value::to_string), known });
    }
    Ok(())
}

/// JSON of any type, with errors that say where.
fn from_slice<T: DeserializeOwned>(text: &[u8], file: &str) -> Result<T> {
    serde_json::from_slice(text).map_err(|error| {
        let (file, line, column) = (file.to_owned(), error.line(), error.column());
        let said = error.to_string();
        // The place stands before the message already.
        let problem = said.rsplit_once(" at line ").map_or(said.as_str(), |(problem, _)| problem).to_owned();
        if error.is_data() {
            Error::Field { file, line, column, field: field::at(text, line, column), problem }
        } else {
            Error::Syntax { file, line, column, problem }
        }
    })
}

#[derive(Serialize)]
struct WithHeader<'a, T> {
    format: &'a str,
    version: u32,
    #[serde(flatten)]
    content: &'a T,
}

/// The text of a document's file, with a line break at its end.
///
/// # Panics
/// Never: documents are made of numbers, texts, lists and maps with text keys, and all of these can be written as JSON.
pub fn to_json<T: Document>(document: &T) -> String {
    let text = match T::HEADER {
        Some(Header { format, version }) => {
            serde_json::to_string_pretty(&WithHeader { format, version, content: document })
        }
        None => serde_json::to_string_pretty(document),
    };
    text.expect("a document can be written as JSON") + "\n"
}
