//! What can go wrong at run time. Only what the user chose (environment, thread count) is an error; shapes that do not fit
//! together are programming errors and panic with both shapes named.

use crate::cpu::KERNELS_VARIABLE;

/// Why kernels or threads could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// No kernels of any CPU have this name.
    #[error("unknown {kind} {name:?}; this CPU supports {}", supported.join(", "))]
    UnknownKernels {
        /// What was asked for: an instruction set or an integer multiplier.
        kind: &'static str,
        /// The name asked for.
        name: String,
        /// The names this CPU supports.
        supported: Vec<&'static str>,
    },
    /// The name is known but the CPU lacks the instructions.
    #[error("this CPU does not support the {kind} {name}; it supports {}", supported.join(", "))]
    UnsupportedKernels {
        /// What was asked for: an instruction set or an integer multiplier.
        kind: &'static str,
        /// The name asked for.
        name: String,
        /// The names this CPU supports.
        supported: Vec<&'static str>,
    },
    /// Zero threads, or more than make sense.
    #[error("cannot run on {count} threads; the limits are 1 and {max}")]
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
    /// The error for a name that is not among the supported ones: unknown, or known but missing here.
    pub(crate) fn no_kernels(kind: &'static str, name: &str, known: &[&str], supported: Vec<&'static str>) -> Self {
        let (is_known, name) = (known.contains(&name), name.to_owned());
        if is_known {
            Self::UnsupportedKernels { kind, name, supported }
        } else {
            Self::UnknownKernels { kind, name, supported }
        }
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::UnknownKernels { kind, supported, .. } | Self::UnsupportedKernels { kind, supported, .. } => {
                Some(format!(
                    "use one of {} as the {kind} in {KERNELS_VARIABLE} (SET or SET+MULTIPLIER), or unset it to use the best",
                    supported.join(", ")
                ))
            }
            Self::ThreadCount { .. } => Some("use as many threads as the machine has cores".to_owned()),
            Self::ThreadStart { .. } => {
                Some("use fewer threads or raise the limit on processes (ulimit -u)".to_owned())
            }
        }
    }
}
