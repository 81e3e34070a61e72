//! The CPU and the kernels of a measurement, for people and in JSON.

use std::fmt;

use qbert_kernels::{Kernels, Machine};
use qbert_pipeline::Result;

use super::kernel_error;

/// What computes: fields of a JSON object, or text.
#[derive(Debug, Clone, serde::Serialize)]
pub(crate) struct Computer {
    /// The CPU's name.
    cpu: String,
    /// Those of its features that matter for speed.
    cpu_features: Vec<&'static str>,
    /// Instruction set and integer multiplier, as `QBERT_KERNELS` takes them.
    kernels: String,
    #[serde(skip)]
    machine: Machine,
}

impl Computer {
    /// This CPU with the kernels that computed.
    pub(crate) fn with(kernels: Kernels) -> Self {
        let machine = Machine::here();
        Self {
            cpu: machine.name().to_owned(),
            cpu_features: machine.features().to_vec(),
            kernels: kernels.to_string(),
            machine,
        }
    }

    /// This CPU with the kernels that it would compute with: the best, or those that `QBERT_KERNELS` names.
    pub(crate) fn here() -> Result<Self> {
        Ok(Self::with(Kernels::detect().map_err(kernel_error)?))
    }

    /// Kernels and CPU, a line each, as `qbert inspect` shows facts.
    pub(crate) fn lines(&self) -> String {
        format!("  kernels     {}\n  CPU         {}\n", self.kernels, self.machine)
    }
}

/// `kernels avx2+avx2 on AMD EPYC (family 25, model 1): avx2, fma`
impl fmt::Display for Computer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kernels {} on {}", self.kernels, self.machine)
    }
}
