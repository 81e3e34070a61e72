//! Which instruction set runs: detected once, or forced lower for tests and comparisons.
//!
//! [`Kernels`] is the handle every kernel hangs on. It is two machine words at most, `Copy`, and
//! its existence proves that the CPU has the instructions: nothing is checked again later.

use crate::error::KernelError;
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512};
use crate::simd::{Kernel, Portable, Simd};

/// The environment variable that forces an instruction set: `portable`, `avx2` or `avx512`.
pub const KERNELS_VARIABLE: &str = "QBERT_KERNELS";

/// The names of all instruction sets this crate was written for, best first.
pub const KERNEL_NAMES: [&str; 3] = ["avx512", "avx2", "portable"];

#[derive(Clone, Copy, Debug)]
enum Level {
    Portable(Portable),
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
}

/// An instruction set that this CPU has, and through it every single-threaded kernel.
///
/// Results of one `Kernels` are the same bytes on every run and machine; two different
/// instruction sets may differ in the last bits of floats (never in dropout masks).
#[derive(Clone, Copy, Debug)]
pub struct Kernels(Level);

impl Kernels {
    /// Every instruction set this CPU has, best first; `portable` is always the last.
    pub fn supported() -> Vec<Self> {
        let mut found = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            found.extend(Avx512::new().map(|proof| Self(Level::Avx512(proof))));
            found.extend(Avx2::new().map(|proof| Self(Level::Avx2(proof))));
        }
        found.push(Self(Level::Portable(Portable)));
        found
    }

    /// The set named by the environment variable [`KERNELS_VARIABLE`], or the best one.
    ///
    /// # Errors
    /// When the variable names no instruction set, or one that this CPU lacks.
    pub fn detect() -> Result<Self, KernelError> {
        match std::env::var(KERNELS_VARIABLE) {
            Ok(name) if !name.is_empty() => Self::by_name(&name),
            Err(std::env::VarError::NotUnicode(name)) => Self::by_name(&name.to_string_lossy()),
            _ => Ok(Self::best()),
        }
    }

    /// The best instruction set of this CPU, whatever the environment says.
    pub fn best() -> Self {
        Self::supported()[0]
    }

    /// The instruction set of this name.
    ///
    /// # Errors
    /// When there is no such set, or this CPU lacks it.
    pub fn by_name(name: &str) -> Result<Self, KernelError> {
        if !KERNEL_NAMES.contains(&name) {
            return Err(KernelError::UnknownKernels { name: name.to_owned() });
        }
        let supported = Self::supported();
        supported.iter().find(|kernels| kernels.name() == name).copied().ok_or_else(|| {
            KernelError::UnsupportedKernels {
                name: name.to_owned(),
                supported: supported.iter().map(|kernels| kernels.name()).collect(),
            }
        })
    }

    /// `avx512`, `avx2` or `portable`.
    pub fn name(self) -> &'static str {
        match self.0 {
            Level::Portable(_) => "portable",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512(_) => "avx512",
        }
    }

    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self.0 {
            Level::Portable(simd) => simd.vectorize(kernel),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2(simd) => simd.vectorize(kernel),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512(simd) => simd.vectorize(kernel),
        }
    }
}
