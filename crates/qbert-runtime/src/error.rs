//! What can go wrong with a packed model or with an input.

use std::path::PathBuf;

use qbert_model::Head;
use qbert_tasks::Task;

/// Why a model could not be opened or could not answer.
///
/// The message says what is wrong and where, [`Error::hint`] says what to do about it.
///
/// ```
/// use qbert_runtime::{Session, SessionOptions};
///
/// if let Err(error) = Session::open("no-such-file.qbert", SessionOptions::default()) {
///     eprintln!("error: {error}");
///     if let Some(hint) = error.hint() {
///         eprintln!("hint: {hint}");
///     }
/// }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file cannot be read, is not a packed model, or is damaged.
    #[error(transparent)]
    Model(#[from] qbert_model::Error),
    /// A text cannot be encoded, or the longest sequence is too short for it.
    #[error(transparent)]
    Task(#[from] qbert_tasks::Error),
    /// Kernels or threads could not be set up.
    #[error(transparent)]
    Kernel(#[from] qbert_kernels::KernelError),
    /// The tokenizer has more tokens than the model's vocabulary.
    #[error("{}: the tokenizer has {tokenizer} tokens, the model's vocabulary {model}", path.display())]
    Vocabulary {
        /// The model.
        path: PathBuf,
        /// The number of tokens in the tokenizer.
        tokenizer: usize,
        /// The number of rows of the word embedding.
        model: usize,
    },
    /// The file was accepted, but a part of the model is missing.
    #[error("{}: the model has no `{name}`", path.display())]
    MissingPart {
        /// The model.
        path: PathBuf,
        /// The missing tensor or site.
        name: String,
    },
    /// The input is not one that this kind of model answers.
    #[error("{asked} is not what {} is for: this model is {}", path.display(), describe(*head))]
    WrongTask {
        /// The model.
        path: PathBuf,
        /// What the model was given or asked for.
        asked: &'static str,
        /// The model's head.
        head: Head,
    },
    /// The input is a pair of texts, but the model was trained on single texts.
    #[error("a pair of texts, but {} is for single ones ({task})", path.display())]
    SingleTexts {
        /// The model.
        path: PathBuf,
        /// The task it was trained for.
        task: Task,
    },
    /// The file has no pooler, so there are no pooled outputs to use as embeddings.
    #[error("{}: the model has no pooler", path.display())]
    NoPooler {
        /// The model.
        path: PathBuf,
    },
    /// One of several inputs is at fault.
    #[error("input {index}: {source}")]
    Item {
        /// Its index, counted from 0.
        index: usize,
        /// What is wrong with it.
        source: Box<Error>,
    },
    /// The texts of an input are together longer than the session takes.
    #[error("an input of {bytes} bytes; at most {limit} are taken")]
    InputTooLong {
        /// The bytes of the input.
        bytes: usize,
        /// The most bytes ([`SessionOptions::max_input_bytes`](crate::SessionOptions::max_input_bytes)).
        limit: usize,
    },
    /// The longest sequence is 0, or longer than the model allows.
    #[error("sequences of up to {max_len} tokens; the model takes 1 to {positions}")]
    MaxLen {
        /// The longest sequence that was asked for.
        max_len: usize,
        /// The model's own limit.
        positions: usize,
    },
    /// Token ids, segments or offsets do not fit together or do not fit the model.
    #[error("{problem}")]
    Tokens {
        /// What does not fit.
        problem: String,
    },
    /// More numbers of a vector are asked for than it has, or none.
    #[error("vectors of {dimensions} numbers, but the model's have {width}")]
    Dimensions {
        /// The length asked for.
        dimensions: usize,
        /// The length there is.
        width: usize,
    },
    /// The model has no prompt of this name.
    #[error("the model has no prompt {name:?}")]
    Prompt {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: Vec<String>,
    },
}

/// What a model with this head is for, to complete "this model is …".
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
    ///
    /// ```
    /// # mod tiny { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/model.rs")); }
    /// use qbert_runtime::Input;
    ///
    /// # let session = tiny::classifier();
    /// let error = session.predict_one(Input::question("who ?", "the owl")).unwrap_err();
    /// assert_eq!(error.hint().as_deref(), Some("give it a text, or a pair of texts"));
    /// ```
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
            Self::SingleTexts { .. } => "give it single texts",
            Self::NoPooler { .. } => "use another pooling, such as the mean over all tokens",
            Self::Item { source, .. } => return source.hint(),
            Self::MaxLen { positions, .. } => {
                return Some(format!(
                    "ask for at most {positions}, or leave the length out for as long as the model takes"
                ));
            }
            Self::Dimensions { width, .. } => return Some(format!("ask for 1 to {width}")),
            Self::Prompt { known, .. } if known.is_empty() => "leave the prompt out: the model has none",
            Self::Prompt { known, .. } => return Some(format!("it has {}", known.join(", "))),
            Self::InputTooLong { .. } => "break the text into shorter ones, or set `session.max_input_bytes`",
            Self::Tokens { .. } => {
                "segments go with ids one to one, offsets ascend from 0 to the number of ids, and no sequence is longer than the model's positions"
            }
        };
        Some(hint.to_owned())
    }

    /// Whether the machine failed (disk, permissions, threads), as opposed to a wrong input. A server would answer with
    /// status 500 rather than 400.
    ///
    /// ```
    /// # mod tiny { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/model.rs")); }
    /// use qbert_runtime::Input;
    ///
    /// # let session = tiny::classifier();
    /// let error = session.predict_one(Input::question("who ?", "the owl")).unwrap_err();
    /// assert!(!error.is_environment());
    /// ```
    pub fn is_environment(&self) -> bool {
        match self {
            Self::Model(error) => error.is_environment(),
            Self::Task(error) => error.is_environment(),
            Self::Kernel(qbert_kernels::KernelError::ThreadStart { .. }) => true,
            Self::Item { source, .. } => source.is_environment(),
            _ => false,
        }
    }
}

/// The result of opening or asking a model.
pub type Result<T, E = Error> = std::result::Result<T, E>;
