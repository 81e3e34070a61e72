//! Problems with the files a report is made from.

use std::path::PathBuf;

/// A file that cannot be read, or is not what it should be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or directory could not be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file that is not what its name says.
    #[error(transparent)]
    Document(#[from] qbert_documents::Error),
    /// A plan that cannot be read.
    #[error(transparent)]
    Plan(#[from] qbert_quant::Error),
    /// Files that belong to different models.
    #[error("{file}: made from model {found}, but {other} was made from model {expected}")]
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
    /// A directory with nothing to report.
    #[error("{}: nothing to report here", path.display())]
    Nothing {
        /// The directory.
        path: PathBuf,
    },
}

impl Error {
    /// Whether the machine failed (disk, permissions) rather than the input being wrong.
    pub fn is_environment(&self) -> bool {
        match self {
            Self::Read { source, .. } => source.kind() != std::io::ErrorKind::NotFound,
            Self::Document(error) => error.is_environment(),
            _ => false,
        }
    }

    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Read { .. } => None,
            Self::Document(error) => error.hint(),
            Self::Plan(error) => error.hint(),
            Self::Mixed { .. } => Some("keep the results of one model in one directory".to_owned()),
            Self::Nothing { .. } => Some(
                "give the directory of a run: it has train.jsonl, metrics.json, sensitivity.json, plan.toml, landscape.json, \
                 or subdirectories that have them"
                    .to_owned(),
            ),
        }
    }
}

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;
