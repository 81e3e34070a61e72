//! What can be wrong with a document.

use std::path::PathBuf;

/// A file that cannot be read, or is not what it should be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file could not be read.
    #[error("{}: cannot read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The text is not JSON.
    #[error("{file}:{line}:{column}: not valid JSON: {problem}")]
    Syntax {
        /// The file.
        file: String,
        /// The line, counted from 1.
        line: usize,
        /// The column in bytes.
        column: usize,
        /// What the parser says.
        problem: String,
    },
    /// A field is absent or has the wrong type.
    #[error("{file}:{line}:{column}: {}{problem}", if field.is_empty() { String::new() } else { format!("{field}: ") })]
    Field {
        /// The file.
        file: String,
        /// The line, counted from 1.
        line: usize,
        /// The column in bytes.
        column: usize,
        /// The field, such as `layers[2].mean`; empty for the document itself.
        field: String,
        /// What the parser says.
        problem: String,
    },
    /// A line of a log is not what it should be.
    #[error("{file}:{line}: {problem}")]
    Line {
        /// The file.
        file: String,
        /// The line, counted from 1.
        line: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// The file is of another kind.
    #[error("{file}: not a {expected} file: {}", found.as_ref().map_or("it names no format".to_owned(), |found| format!("its format is {found}")))]
    Format {
        /// The file.
        file: String,
        /// The format it names, as JSON.
        found: Option<String>,
        /// The right one.
        expected: &'static str,
    },
    /// The file is of a version that this program does not know.
    #[error("{file}: {} of {format}; this program reads version {known}", found.as_ref().map_or("no version".to_owned(), |found| format!("version {found}")))]
    Version {
        /// The file.
        file: String,
        /// Its format.
        format: &'static str,
        /// The version it names, as JSON.
        found: Option<String>,
        /// The version that can be read.
        known: u32,
    },
}

impl Error {
    /// Whether the machine failed (disk, permissions) rather than the input being wrong.
    pub fn is_environment(&self) -> bool {
        use std::io::ErrorKind::{IsADirectory, NotADirectory, NotFound};
        matches!(self, Self::Read { source, .. } if !matches!(source.kind(), NotFound | IsADirectory | NotADirectory))
    }

    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Read { .. } => None,
            Self::Syntax { .. } | Self::Field { .. } => {
                Some("the file is damaged or was edited: create it again".to_owned())
            }
            Self::Line { .. } => {
                Some("an interrupted run can leave half a line: resume the run, or delete the line".to_owned())
            }
            Self::Format { expected, .. } => Some(format!("only qbert writes {expected} files")),
            Self::Version { .. } => Some("update qbert".to_owned()),
        }
    }
}

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;
