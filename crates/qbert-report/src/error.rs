//! What can be wrong with the files a report is made from.

use std::path::PathBuf;

/// A file that cannot be read, or is not what it should be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The machine would not give the file.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Not the JSON it should be.
    #[error("{file}: {source}")]
    Json {
        /// The file.
        file: String,
        /// What is wrong, and where.
        source: serde_json::Error,
    },
    /// A line of a log is not the JSON it should be.
    #[error("{file}:{line}: {source}")]
    Line {
        /// The file.
        file: String,
        /// The line, counted from 1.
        line: usize,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// A file of another kind.
    #[error("{file}: it says format {found:?}, expected {expected:?}")]
    Format {
        /// The file.
        file: String,
        /// What it says.
        found: String,
        /// What would be right.
        expected: &'static str,
    },
    /// A file of a later version.
    #[error("{file}: version {found} of {format}, this program reads version 1")]
    Version {
        /// The file.
        file: String,
        /// Its format.
        format: &'static str,
        /// Its version.
        found: u64,
    },
    /// A plan that cannot be read.
    #[error(transparent)]
    Plan(#[from] qbert_quant::Error),
    /// Files that belong to different models.
    #[error("{file}: made from model {found}, but {other} from model {expected}")]
    Mixed {
        /// The file.
        file: String,
        /// The hash of its model.
        found: String,
        /// The other file.
        other: String,
        /// The hash of the other's model.
        expected: String,
    },
    /// A directory without anything to report.
    #[error("{}: nothing to report here", path.display())]
    Nothing {
        /// The directory.
        path: PathBuf,
    },
}

impl Error {
    /// Whether the machine failed (disk, permissions) rather than the input being wrong.
    pub fn is_environment(&self) -> bool {
        matches!(self, Self::Read { source, .. } if source.kind() != std::io::ErrorKind::NotFound)
    }

    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Read { .. } => None,
            Self::Json { .. } => Some("the file is damaged or was edited: make it again".to_owned()),
            Self::Line { .. } => {
                Some("an interrupted run may leave half a line: resume the run, or delete the line".to_owned())
            }
            Self::Format { expected, .. } => Some(format!("files of format {expected} are written by this program only")),
            Self::Version { .. } => Some("update the program".to_owned()),
            Self::Plan(error) => error.hint(),
            Self::Mixed { .. } => Some("keep the results of one model in one directory".to_owned()),
            Self::Nothing { .. } => Some(
                "give the directory of a run: one with train.jsonl, metrics.json, sensitivity.json, plan.toml, landscape.json, \
                 or with subdirectories that have them"
                    .to_owned(),
            ),
        }
    }
}

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;
