//! What can go wrong at run time. Shapes that do not fit together are programming errors and
//! panic with both shapes named; only what the user chose (environment, thread count) is an error.

use crate::cpu::{KERNEL_NAMES, KERNELS_VARIABLE};

/// Why kernels or threads could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// The name is none of [`KERNEL_NAMES`].
    #[error("unknown instruction set {name:?}")]
    UnknownKernels {
        /// The name asked for.
        name: String,
    },
    /// The name is known but the CPU lacks the instructions.
    #[error("this CPU has no {name} (it has {})", supported.join(", "))]
    UnsupportedKernels {
        /// The name asked for.
        name: String,
        /// The names this CPU supports.
        supported: Vec<&'static str>,
    },
    /// Zero, or more threads than can be sensible.
    #[error("cannot work with {count} threads (1 to {max} are possible)")]
    ThreadCount {
        /// The count asked for.
        count: usize,
        /// The most that are accepted.
        max: usize,
    },
    /// The operating system refused to start the threads.
    #[error("cannot start {count} threads: {source}")]
    ThreadStart {
        /// The count asked for.
        count: usize,
        /// The system's reason.
        source: std::io::Error,
    },
}

impl KernelError {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::UnknownKernels { .. } => Some(format!(
                "set {KERNELS_VARIABLE} to one of {}, or unset it to use the best",
                KERNEL_NAMES.join(", ")
            )),
            Self::UnsupportedKernels { .. } => Some(format!("unset {KERNELS_VARIABLE} to use the best this CPU has")),
            Self::ThreadCount { .. } => Some("use as many threads as the machine has cores".to_owned()),
            Self::ThreadStart { .. } => {
                Some("use fewer threads or raise the limit on processes (ulimit -u)".to_owned())
            }
        }
    }
}
