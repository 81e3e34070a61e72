//! Integer inference: linear layers and attention on 8-bit activation codes and packed 1- to 8-bit weight codes (paper,
//! App. A: codes are multiplied as integers, and each sum is dequantized once).
//!
//! | operation | function | in → out |
//! |---|---|---|
//! | embedding lookup | [`Kernels::write_embedding`], [`Kernels::add_embedding`] | packed rows → f32 |
//! | LayerNorm | [`Compute::norm_to_codes`] | f32 in place, and codes |
//! | linear layers that share an input | [`Compute::linear`] | codes → codes, codes of GELU, f32, or exact integers |
//! | attention | [`Compute::attention`] | codes of query, key, value → codes of the context |
//! | to and from f32 | [`Compute::quantize`], [`Compute::dequantize`] | f32 → codes, codes → f32 |
//! | linear + residual + LayerNorm | [`Compute::linear_norm`] | codes → f32 in place, and codes |
//!
//! Training multiplies with the same kernels, on codes that change from step to step ([`WideWeights`]).
//!
//! This is a whole encoder: one f32 matrix for the residual stream, one [`Codes`] per activation tensor, no padding
//! between sequences, and no allocation once the buffers have grown (`examples/int_kernel_speed.rs` has the loop).
//!
//! **Guarantees.** Integer sums are exact and equal with every multiplier, whatever the codes. Everything else (linear
//! layers, GELU, softmax, LayerNorm, and the codes made from them) has the same bits on every instruction set and with
//! any number of threads, and the same bits as in training. NaN becomes code 0.
//!
//! **Choice of kernels.** [`Kernels`] brings the best [`Multiplier`] for its instruction set: `avx512` multiplies with
//! VNNI where the CPU has it, otherwise with AVX2; `neon` with matrix products (i8mm) or dot products where the CPU has
//! them. [`Kernels::with_multiplier`] and `QBERT_KERNELS=SET+MULTIPLIER` choose another.

#[cfg(doc)]
use crate::{Compute, Kernels};

mod attention;
mod codes;
mod convert;
mod embedding;
mod epilogue;
mod layout;
mod linear;
mod multiplier;
mod norm;
mod params;
mod softmax;
mod ternary;
mod tile;
mod wide;

pub use attention::AttentionInput;
pub use codes::{Codes, Quantizer};
pub use embedding::{EmbeddingRows, EmbeddingTable};
pub use layout::{BLOCK_INPUTS, Coding, LayoutError, MOST_INPUTS, PackedWeights, TILE_NEURONS, pack, packed_len};
pub use linear::{LinearInput, LinearLayer, LinearOutput};
pub use multiplier::Multiplier;
#[cfg(all(test, target_os = "linux", target_arch = "x86_64"))]
pub(crate) use multiplier::trap;
pub use norm::NormOutput;
pub use params::LinearParams;
pub use wide::{Neurons, WideWeights};
