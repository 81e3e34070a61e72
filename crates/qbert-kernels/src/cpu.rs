//! Which kernels run: the best this CPU supports, or the ones that the user names.
//!
//! [`Kernels`] is the handle every kernel hangs on. It is a few bytes, `Copy`, and its existence proves that the CPU has
//! the instructions: nothing is checked again later.

use std::fmt;

use crate::error::KernelError;
use crate::int::Multiplier;
use crate::simd::{Bf16Set, InstructionSet, Kernel, run_on};

/// The environment variable that selects the kernels: an instruction set such as `avx2`, optionally followed by `+` and
/// an integer multiplier such as `avx2+portable`.
pub const KERNELS_VARIABLE: &str = "QBERT_KERNELS";

/// The names of all instruction sets this crate supports on any CPU, best first.
pub const KERNEL_NAMES: &[&str] = InstructionSet::NAMES;

/// The kernels of one instruction set that this CPU has, and the integer multiplier that goes with them.
///
/// All instruction sets and multipliers give the same bytes, on every run and machine; only the sign and payload of a
/// NaN are the CPU's own. The one exception are products of bf16, whose last bits differ with the multiplier `amx`
/// ([`ProductPrecision::Bf16`](crate::ProductPrecision::Bf16)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernels {
    set: InstructionSet,
    multiplier: Multiplier,
    bf16: Bf16Set,
}

impl Kernels {
    /// Every instruction set this CPU has, best first, each with its best multiplier; `portable` is always the last.
    pub fn supported() -> Vec<Self> {
        let sets = InstructionSet::supported().into_iter();
        sets.map(|set| Self::new(set, Multiplier::best_for(set))).collect()
    }

    fn new(set: InstructionSet, multiplier: Multiplier) -> Self {
        Self { set, multiplier, bf16: Bf16Set::best_for(set, multiplier.has_tiles()) }
    }

    /// The kernels that the environment variable [`KERNELS_VARIABLE`] names, or the best ones.
    ///
    /// # Errors
    /// As [`Kernels::by_name`].
    pub fn detect() -> Result<Self, KernelError> {
        match std::env::var(KERNELS_VARIABLE) {
            Ok(name) if !name.is_empty() => Self::by_name(&name),
            Err(std::env::VarError::NotUnicode(name)) => Self::by_name(&name.to_string_lossy()),
            _ => Ok(Self::best()),
        }
    }

    /// The best kernels of this CPU, whatever the environment says.
    pub fn best() -> Self {
        Self::supported()[0]
    }

    /// The kernels of this name: `SET` for an instruction set with its best multiplier, or `SET+MULTIPLIER`.
    ///
    /// # Errors
    /// When there is no such instruction set or multiplier, or when this CPU lacks it.
    pub fn by_name(name: &str) -> Result<Self, KernelError> {
        let (set, multiplier) = match name.split_once('+') {
            Some((set, multiplier)) => (set, Some(multiplier)),
            None => (name, None),
        };
        let supported = Self::supported();
        let Some(kernels) = supported.iter().find(|kernels| kernels.name() == set) else {
            let supported = supported.iter().map(|kernels| kernels.name()).collect();
            return Err(KernelError::no_kernels("instruction set", set, KERNEL_NAMES, supported));
        };
        Ok(match multiplier {
            Some(name) => kernels.with_multiplier(Multiplier::by_name(name)?),
            None => *kernels,
        })
    }

    /// The same float kernels with another multiplier. Products of bf16 use AMX only with the multiplier `amx`: with any
    /// other one, they have the bits of CPUs without it.
    pub fn with_multiplier(self, multiplier: Multiplier) -> Self {
        Self::new(self.set, multiplier)
    }

    /// The name of the instruction set, one of [`KERNEL_NAMES`].
    pub fn name(self) -> &'static str {
        self.set.name()
    }

    /// What multiplies integer codes.
    pub fn multiplier(self) -> Multiplier {
        self.multiplier
    }

    /// Whether products of bf16 have an instruction, so that they are faster than those of f32.
    pub fn has_bf16(self) -> bool {
        self.bf16.is_native()
    }

    /// The same kernels with other products of bf16.
    #[cfg(test)]
    pub(crate) fn with_bf16(self, bf16: Bf16Set) -> Self {
        Self { bf16, ..self }
    }

    pub(crate) fn set(self) -> InstructionSet {
        self.set
    }

    pub(crate) fn bf16(self) -> Bf16Set {
        self.bf16
    }

    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        run_on(self.set, kernel)
    }
}

/// The name that [`Kernels::by_name`] takes, with the multiplier: `avx512+avx512-vnni`.
impl fmt::Display for Kernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.name(), self.multiplier.name())
    }
}
