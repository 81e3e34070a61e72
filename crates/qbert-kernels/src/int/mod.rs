//! Integer inference: BERT's linear layers and attention on 8-bit activation codes and packed 1- to 8-bit weight codes
//! (paper, App. A: products of codes in integers, then one gathered dequantization).
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
//! That is a whole encoder: one f32 matrix for the residual stream, one [`Codes`] per activation tensor, no padding
//! between sequences, no memory taken once the buffers have grown (`examples/int_kernel_speed.rs` has the loop).
//!
//! **What is guaranteed.** Integer sums are exact and equal on every instruction set, whatever the codes. Everything up
//! to a linear layer's result, and codes made of it, has the same bits on every instruction set. GELU, softmax and
//! LayerNorm are the training kernels': the same bits for one instruction set and any number of threads, the last bits
//! of floats (and so, rarely, a code that was half-way) may differ between instruction sets. NaN becomes code 0.
//!
//! **Choice of instruction set**: [`Kernels`], and so `QBERT_KERNELS`, as for the float kernels. `avx512` multiplies with
//! VNNI where the CPU has it, else with AVX2.

#[cfg(doc)]
use crate::{Compute, Kernels};

mod attention;
#[cfg(target_arch = "x86_64")]
mod avx2;
mod codes;
mod convert;
mod embedding;
mod epilogue;
mod layout;
mod linear;
mod multiplier;
mod norm;
mod params;
mod portable;
#[cfg(test)]
mod rearranged;
mod softmax;
mod tile;
#[cfg(target_arch = "x86_64")]
mod vnni;
mod wide;

pub use attention::AttentionInput;
pub use codes::{Codes, Quantizer};
pub use embedding::{EmbeddingRows, EmbeddingTable};
pub use layout::{BLOCK_INPUTS, LayoutError, MOST_INPUTS, PackedWeights, TILE_NEURONS, pack, packed_len};
pub use linear::{LinearInput, LinearLayer, LinearOutput};
pub use multiplier::Multiplier;
pub use norm::NormOutput;
pub use params::LinearParams;
pub use wide::{Neurons, WideWeights};
