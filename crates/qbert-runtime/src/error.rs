//! What can be wrong with a packed model, or with what is asked of it.

use std::path::PathBuf;

use qbert_model::Head;

/// Why a model could not be opened, or did not answer.
///
/// `Display` says what is wrong and where; [`Error::hint`] says what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file cannot be read, is no packed model, or is damaged.
    #[error(transparent)]
    Model(#[from] qbert_model::Error),
    /// A text cannot be encoded, or a length makes no sense.
    #[error(transparent)]
    Task(#[from] qbert_tasks::Error),
    /// Kernels or threads could not be set up.
    #[error(transparent)]
    Kernel(#[from] qbert_kernels::KernelError),
    /// The tokenizer knows more tokens than the model.
    #[error("{}: the tokenizer has {tokenizer} tokens, the model's vocabulary {model}", path.display())]
    Vocabulary {
        /// The model.
        path: PathBuf,
        /// Tokens of the tokenizer.
        tokenizer: usize,
        /// Rows of the word embedding.
        model: usize,
    },
    /// A part of the model is not there, although the file was accepted.
    #[error("{}: the model has no `{name}`", path.display())]
    MissingPart {
        /// The model.
        path: PathBuf,
        /// The tensor or site.
        name: String,
    },
    /// The model is for something else than what it is asked.
    #[error("{asked} is not what {} is for: this model is {}", path.display(), describe(*head))]
    WrongTask {
        /// The model.
        path: PathBuf,
        /// What was asked for.
        asked: &'static str,
        /// The head the model has.
        head: Head,
    },
    /// A longest sequence that the model has no positions for.
    #[error("sequences of up to {max_len} tokens; the model takes 1 to {positions}")]
    MaxLen {
        /// What was asked for.
        max_len: usize,
        /// The positions of the model.
        positions: usize,
    },
    /// Token ids, segments or offsets that do not fit the model.
    #[error("{problem}")]
    Tokens {
        /// What does not fit.
        problem: String,
    },
}

/// What a head is for.
pub(crate) fn describe(head: Head) -> &'static str {
    match head {
        Head::None => "an encoder without a head",
        Head::SequenceClassification => "for labels of texts",
        Head::TokenClassification => "for entities",
        Head::QuestionAnswering => "for questions about a context",
    }
}

impl Error {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Model(error) => return error.hint(),
            Self::Task(error) => return error.hint(),
            Self::Kernel(error) => return error.hint(),
            Self::Vocabulary { .. } => "pack the model with the tokenizer it was trained with",
            Self::MissingPart { .. } => "pack the model again",
            Self::WrongTask { head: Head::None, .. } => "fine-tune the checkpoint for a task, then pack it",
            Self::WrongTask { head: Head::SequenceClassification, .. } => "give it a text, or a pair of texts",
            Self::WrongTask { head: Head::TokenClassification, .. } => "give it a text, or a list of words",
            Self::WrongTask { head: Head::QuestionAnswering, .. } => "give it a question and a context",
            Self::MaxLen { positions, .. } => {
                return Some(format!(
                    "ask for at most {positions}, or leave the length out for as long as the model takes"
                ));
            }
            Self::Tokens { .. } => {
                "segments go with ids one to one, offsets ascend from 0 to the number of ids, and no sequence is longer than the model's positions"
            }
        };
        Some(hint.to_owned())
    }

    /// Whether the machine failed (disk, permissions, threads) rather than the input being wrong.
    pub fn is_environment(&self) -> bool {
        match self {
            Self::Model(error) => error.is_environment(),
            Self::Task(error) => error.is_environment(),
            Self::Kernel(qbert_kernels::KernelError::ThreadStart { .. }) => true,
            _ => false,
        }
    }
}

/// The result of opening a model or asking it.
pub type Result<T, E = Error> = std::result::Result<T, E>;
