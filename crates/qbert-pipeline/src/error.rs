//! The pipeline's error: what went wrong, what to do about it, and who has to act.
//!
//! It is opaque on purpose: the crates below may change their error enums without breaking a program that uses this one.
//! Programs decide by [`Error::kind`]; people read the text and the hint.
//!
//! Where text and hint name a setting, they write its field in backticks, with the part of the job it belongs to:
//! `` `training.optimizer.learning_rate` ``, `` `plan.bits` ``. The command line turns such names into its flags.

use std::fmt;

/// Who has to act on an error; decides the exit code of the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The input is wrong: an argument, a file's content, a model that does not fit. Exit code 2.
    BadInput,
    /// The machine failed: disk, permissions, network, a missing program. Exit code 1.
    Environment,
    /// The user stopped it; what is done is kept. Exit code 130.
    Interrupted,
    /// Everything went well, but the result misses a limit that the user set. Exit code 3.
    MissedLimit,
}

/// Anything that can go wrong in qbert.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    hint: Option<String>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// An error of a program built on qbert, in the same form.
    pub fn new(kind: ErrorKind, message: impl Into<String>, hint: impl Into<Option<String>>) -> Self {
        Self { kind, message: message.into(), hint: hint.into(), source: None }
    }

    /// The machine failed: disk, permissions, network, a missing program.
    pub fn environment(message: impl Into<String>, hint: impl Into<Option<String>>) -> Self {
        Self::new(ErrorKind::Environment, message, hint)
    }

    /// The same error, about a setting of this name: a field in backticks, or a flag.
    #[must_use]
    pub fn about(mut self, setting: &str) -> Self {
        self.message = format!("{setting}: {}", self.message);
        self
    }

    /// The same error about one of a job's two trainings: `training.epochs` becomes `quantize.epochs`.
    #[must_use]
    pub(crate) fn of_training(mut self, part: &str) -> Self {
        let part = format!("`{part}.");
        self.message = self.message.replace("`training.", &part);
        self.hint = self.hint.map(|hint| hint.replace("`training.", &part));
        self
    }

    /// Who has to act.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source.as_ref() as _)
    }
}

impl From<qbert_model::Error> for Error {
    fn from(error: qbert_model::Error) -> Self {
        let kind = if error.is_environment() { ErrorKind::Environment } else { ErrorKind::BadInput };
        Self { kind, message: error.to_string(), hint: error.hint(), source: Some(Box::new(error)) }
    }
}

impl From<qbert_kernels::KernelError> for Error {
    fn from(error: qbert_kernels::KernelError) -> Self {
        Self::from(qbert_train::Error::from(error))
    }
}

impl From<qbert_quant::Error> for Error {
    fn from(error: qbert_quant::Error) -> Self {
        let (message, hint) = (error.to_string(), error.hint());
        Self { kind: ErrorKind::BadInput, message, hint, source: Some(Box::new(error)) }
    }
}

impl From<qbert_tasks::Error> for Error {
    fn from(error: qbert_tasks::Error) -> Self {
        let kind = if error.is_environment() { ErrorKind::Environment } else { ErrorKind::BadInput };
        Self { kind, message: error.to_string(), hint: error.hint(), source: Some(Box::new(error)) }
    }
}

impl From<qbert_documents::Error> for Error {
    fn from(error: qbert_documents::Error) -> Self {
        let kind = if error.is_environment() { ErrorKind::Environment } else { ErrorKind::BadInput };
        Self { kind, message: error.to_string(), hint: error.hint(), source: Some(Box::new(error)) }
    }
}

impl From<qbert_report::Error> for Error {
    fn from(error: qbert_report::Error) -> Self {
        let kind = if error.is_environment() { ErrorKind::Environment } else { ErrorKind::BadInput };
        Self { kind, message: error.to_string(), hint: error.hint(), source: Some(Box::new(error)) }
    }
}

impl From<qbert_runtime::Error> for Error {
    fn from(error: qbert_runtime::Error) -> Self {
        let kind = if error.is_environment() { ErrorKind::Environment } else { ErrorKind::BadInput };
        Self { kind, message: error.to_string(), hint: error.hint(), source: Some(Box::new(error)) }
    }
}

impl From<qbert_train::Error> for Error {
    fn from(error: qbert_train::Error) -> Self {
        let kind = match &error {
            qbert_train::Error::Stopped { .. } => ErrorKind::Interrupted,
            error if error.is_environment() => ErrorKind::Environment,
            _ => ErrorKind::BadInput,
        };
        Self { kind, message: error.to_string(), hint: error.hint(), source: Some(Box::new(error)) }
    }
}

/// The result of a qbert operation.
pub type Result<T> = std::result::Result<T, Error>;
