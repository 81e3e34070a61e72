//! The only SIMD and unsafe code: f32 GEMM, vector math and integer kernels, each with a portable
//! reference.
//!
//! Three types carry everything:
//!
//! - [`Kernels`]: an instruction set this CPU has (`avx512`, `avx2` or `portable`), `Copy`. Its
//!   methods run on the calling thread, on slices and [`MatRef`]/[`MatMut`] views.
//! - [`Threads`]: how many threads, and loops over tasks that give the same bytes for any number.
//! - [`Compute`]: both together plus scratch memory. Its methods are the same operations on whole
//!   matrices over all threads.
//!
//! | operation | `Kernels` | `Compute` |
//! |---|---|---|
//! | products `A·Bᵀ`, `A·B`, `Aᵀ·B` with [`Start`] | [`gemm_nt`](Kernels::gemm_nt) `_nn` `_tn` (small) | [`gemm_nt`](Compute::gemm_nt) `_nn` `_tn` (large) |
//! | GELU | [`gelu`](Kernels::gelu), `gelu_and_slope`, `gelu_backward` (also forward tangent), `gelu_backward_tangent` | the same |
//! | softmax rows | [`softmax`](Kernels::softmax), `softmax_backward` (also forward tangent), `softmax_backward_tangent`, `log_sum_exp` | – |
//! | residual + LayerNorm | [`layer_norm_forward`](Kernels::layer_norm_forward), `_backward`, `_forward_tangent`, `_backward_tangent` | the same |
//! | AdamW | [`adamw`](Kernels::adamw) | the same |
//! | dropout without a mask | [`dropout`](Kernels::dropout) with [`DropoutKey`] | the same |
//! | sums | [`dot`](Kernels::dot), `sum_of_squares`, `sum`, `add_column_sums` | `dot`, `sum_of_squares`, `add_column_sums` |
//! | small ones | `add_scaled`, `scale`, `add`, `add_product`, `tanh`, `tanh_backward` | `add_scaled`, `scale` |
//!
//! Inference on integer codes is a module of its own, [`int`].
//!
//! A linear layer, forward and backward, and an attention-like loop over sequences:
//!
//! ```
//! use qbert_kernels::{Compute, MatMut, MatRef, Start};
//!
//! let compute = Compute::detect(2)?;
//! let (tokens, input, output) = (5, 4, 3);
//! let (x, w, bias) = (vec![1.0; tokens * input], vec![0.5; output * input], vec![1.0; output]);
//! let mut y = vec![0.0; tokens * output];
//! let (x, w) = (MatRef::new(&x, tokens, input), MatRef::new(&w, output, input));
//! compute.gemm_nt(x, w, Start::Bias(&bias), MatMut::new(&mut y, tokens, output));
//! assert_eq!(y[0], 3.0);
//!
//! let d_y = MatRef::new(&y, tokens, output);
//! let (mut d_x, mut d_w) = (vec![0.0; tokens * input], vec![0.0; output * input]);
//! compute.gemm_nn(d_y, w, Start::ZERO, MatMut::new(&mut d_x, tokens, input));
//! compute.gemm_tn(d_y, x, Start::ACCUMULATE, MatMut::new(&mut d_w, output, input));
//! let mut d_bias = vec![0.0; output];
//! compute.add_column_sums(d_y, &mut d_bias);
//! assert_eq!((d_x[0], d_w[0], d_bias[0]), (4.5, 15.0, 15.0));
//!
//! // Sequences of 2 and 3 tokens: one task each, with its own rows of the output.
//! let kernels = compute.kernels();
//! let (first, second) = d_x.split_at_mut(2 * input);
//! compute.threads().for_each_item(&mut [first, second], |_, rows| {
//!     kernels.softmax(rows, input, 0.25);
//! });
//! assert!((d_x[0] - 0.25).abs() < 1e-6);
//! # Ok::<(), qbert_kernels::KernelError>(())
//! ```
//!
//! **Determinism.** Work is split by shape, never by thread count, and every reduction has a stated
//! order: one instruction set gives the same bytes with any number of threads. Different
//! instruction sets may differ in the last bits of floats; dropout masks never differ.
//!
//! **Choice of instruction set.** At run time, the best the CPU has; the environment variable
//! [`KERNELS_VARIABLE`] (`QBERT_KERNELS=portable|avx2|avx512`) forces another for tests and
//! comparisons. A set the CPU lacks is an error, never an illegal instruction.
//!
//! **Misuse.** Shapes that do not fit together are programming errors: functions panic and name the
//! shapes. Numbers are never checked: NaN and infinity go through as each function documents.

mod adamw;
mod compute;
mod cpu;
mod dropout;
mod elementwise;
mod error;
mod gelu;
mod gemm;
mod implementations;
pub mod int;
mod layer_norm;
mod mapped_file;
mod pool;
mod reduce;
mod scratch;
mod shared_matrix;
mod simd;
mod softmax;
#[cfg(test)]
mod tests;
mod threads;

pub use adamw::AdamW;
pub use compute::{CHUNK, Compute, ROW_CHUNK};
pub use cpu::{KERNEL_NAMES, KERNELS_VARIABLE, Kernels};
pub use dropout::DropoutKey;
pub use error::KernelError;
pub use gemm::{MatMut, MatRef, Start};
pub use layer_norm::{LayerNorm, LayerNormGradients, LayerNormTangents, Normalized, NormalizedMut};
pub use mapped_file::MappedFile;
pub use reduce::SUM_BLOCK;
pub use softmax::SoftmaxTangent;
pub use threads::{MAX_THREADS, Threads};
