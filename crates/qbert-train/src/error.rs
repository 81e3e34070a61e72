//! What can go wrong in training, with the step, file or parameter it is about.
//!
//! Settings are called by their field, in backticks: `` `training.batch` ``. The command line turns that into a flag.

use std::path::PathBuf;

/// Why training, evaluation or resuming stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The layout lacks a parameter that the architecture has.
    #[error("the model has no parameter `{name}`")]
    NoParameter {
        /// Its canonical name.
        name: String,
    },
    /// A batch does not fit the model.
    #[error("{problem}")]
    Batch {
        /// What does not fit.
        problem: String,
    },
    /// The loss or the gradient stopped being a number.
    #[error("step {step}: the {what} is {value}; training has diverged{}", last_good.as_ref().map(|p| format!(" (last good checkpoint: {})", p.display())).unwrap_or_default())]
    Diverged {
        /// The step, counted from 1.
        step: usize,
        /// Loss or gradient norm.
        what: &'static str,
        /// Its value.
        value: f64,
        /// Where training can be continued from.
        last_good: Option<PathBuf>,
    },
    /// A setting that makes no sense.
    #[error("{name} is {value}: {rule}")]
    Setting {
        /// The setting: its field in backticks.
        name: &'static str,
        /// What was given.
        value: String,
        /// What it must be.
        rule: &'static str,
    },
    /// Sequences longer than the model can take.
    #[error(
        "`data.max_len` is {max_len}: the model has {positions} positions (max_position_embeddings in config.json), so it can be at most {positions}"
    )]
    TooLong {
        /// What was asked for.
        max_len: usize,
        /// What the model has.
        positions: usize,
    },
    /// Data without a usable example.
    #[error("{}: nothing to {to}: no example is left", list(files))]
    NoExamples {
        /// The files.
        files: Vec<PathBuf>,
        /// What they were needed for.
        to: &'static str,
    },
    /// Data in which every example has the same label.
    #[error("{}: all examples have the same label, {label}: there is nothing to tell apart", list(files))]
    OneLabel {
        /// The files.
        files: Vec<PathBuf>,
        /// The label.
        label: String,
    },
    /// A run directory that does not fit the run to be resumed.
    #[error("{}: {problem}", path.display())]
    Resume {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        problem: String,
    },
    /// The state of an unfinished run, or a file that belongs to it, is damaged or gone.
    #[error("{}: {problem}", path.display())]
    State {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
        /// What has to be deleted to start again.
        delete: PathBuf,
    },
    /// Ranks that should do one job together have been given different ones.
    #[error("rank {rank} has another job than rank 0: {problem}")]
    Ranks {
        /// The rank that differs.
        rank: usize,
        /// In what.
        problem: String,
    },
    /// The observer asked to stop; everything done so far is kept.
    #[error("stopped as requested; {} keeps what is done", path.display())]
    Stopped {
        /// The state.
        path: PathBuf,
    },
    /// A sensitivity file, or part of one, cannot be used.
    #[error("{}: {problem}", path.display())]
    Sensitivity {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A file that another command wrote is not what it should be.
    #[error(transparent)]
    Document(#[from] qbert_documents::Error),
    /// A Hessian-vector product is not a number.
    #[error("run {run}, layer {layer}: the curvature of the loss is not a finite number")]
    Curvature {
        /// The run, counted from 0.
        run: usize,
        /// The layer, counted from 0.
        layer: usize,
    },
    /// A file operation failed.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was attempted.
        action: &'static str,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A plan does not fit, or a weight cannot be quantized.
    #[error(transparent)]
    Quant(#[from] qbert_quant::Error),
    /// A matrix cannot be multiplied in integers.
    #[error("{site}: {source}")]
    Integers {
        /// The matrix.
        site: qbert_quant::Site,
        /// Why not.
        source: qbert_kernels::int::LayoutError,
    },
    /// An activation that is not a finite number, so that no range can be learned from it.
    #[error("activation {name}: {source}")]
    Activation {
        /// Layer and tensor.
        name: String,
        /// What is wrong with its values.
        source: Box<qbert_quant::Error>,
    },
    /// A file of a quantized checkpoint is missing, damaged or of another model.
    #[error("{}: {problem}", path.display())]
    QuantizedFile {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// A checkpoint could not be read or written.
    #[error(transparent)]
    Model(#[from] qbert_model::Error),
    /// Data could not be read or encoded.
    #[error(transparent)]
    Task(#[from] qbert_tasks::Error),
    /// The machine cannot compute as asked.
    #[error(transparent)]
    Kernel(#[from] qbert_kernels::KernelError),
}

fn list(files: &[PathBuf]) -> String {
    files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(", ")
}

impl Error {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Diverged { .. } => {
                "lower `training.optimizer.learning_rate` (a tenth is a good next try), or check the data for broken examples"
            }
            Self::Resume { .. } => {
                "`job.resume` with the settings of the first run continues it; another `job.out` starts a new one"
            }
            Self::State { delete, .. } => {
                return Some(format!(
                    "put back a copy of it, or delete {} and start again: what was done so far is lost",
                    delete.display()
                ));
            }
            Self::NoExamples { .. } => {
                "`qbert data` shows what is in a file; questions without an answer are left out, and so is what `training.max_train` or `training.max_dev` cuts off"
            }
            Self::Ranks { .. } => {
                "all ranks need the same version, flags, model and data; with bf16 products also the same kind of CPU"
            }
            Self::Stopped { .. } => "`job.resume` continues from there",
            Self::Sensitivity { .. } => "make it with `qbert analyze`; parts must come from the same command",
            Self::Curvature { .. } => "the checkpoint's weights overflow: fine-tune it again at a lower rate",
            Self::Activation { .. } => {
                "the model computes infinity or NaN on this data: check the checkpoint, or lower `training.optimizer.learning_rate`"
            }
            Self::Integers { .. } => "leave the activations in f32: [activation] bits = 32 in the plan",
            Self::QuantizedFile { .. } => "write the checkpoint again with `qbert quantize`",
            Self::Document(error) => return error.hint(),
            Self::Quant(error) => return error.hint(),
            Self::Model(error) => return error.hint(),
            Self::Task(error) => return error.hint(),
            _ => return None,
        };
        Some(hint.to_owned())
    }

    /// Whether the machine failed (disk, permissions) rather than the input being wrong.
    pub fn is_environment(&self) -> bool {
        match self {
            Self::Io { source, .. } => !qbert_model::is_wrong_path(source),
            Self::Document(error) => error.is_environment(),
            Self::Model(error) => error.is_environment(),
            Self::Kernel(error) => matches!(error, qbert_kernels::KernelError::ThreadStart { .. }),
            _ => false,
        }
    }
}

/// The result of a training operation.
pub type Result<T> = std::result::Result<T, Error>;
