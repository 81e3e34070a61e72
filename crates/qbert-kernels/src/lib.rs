//! All SIMD and `unsafe` code of the workspace: f32 matrix products, vector math and integer kernels, each with a portable
//! reference; also threads and memory-mapped files.
//!
//! Three types give access to everything:
//!
//! - [`Kernels`]: an instruction set that this CPU has, with an integer multiplier; `Copy`. Its methods run on the
//!   calling thread, on slices and [`MatRef`]/[`MatMut`] views.
//! - [`Threads`]: a number of threads, and parallel loops that give the same bytes for any number of them.
//! - [`Compute`]: both together, with scratch memory. Its methods are the same operations on whole matrices over all
//!   threads.
//!
//! | operation | `Kernels` | `Compute` |
//! |---|---|---|
//! | products `A·Bᵀ`, `A·B`, `Aᵀ·B` with [`Start`] | [`gemm_nt`](Kernels::gemm_nt) `_nn` `_tn` (small) | [`gemm_nt`](Compute::gemm_nt) `_nn` `_tn` (large) |
//! | GELU | [`gelu`](Kernels::gelu), `gelu_and_slope`, `gelu_backward` (also forward tangent), `gelu_backward_tangent` | the same |
//! | an [`Activation`] | [`activate`](Kernels::activate), `activate_and_slope`, `activation_backward_tangent` | the same |
//! | softmax rows | [`softmax`](Kernels::softmax), `softmax_biased` with [`DistanceBias`], `softmax_backward` (also forward tangent), `softmax_backward_tangent`, `log_sum_exp` | – |
//! | softmax of a tile of local attention | [`softmax_windowed`](Kernels::softmax_windowed) with [`Window`] | – |
//! | rotary positions | – | [`rotate`](Compute::rotate) with [`Rotary`] |
//! | residual + LayerNorm | [`layer_norm_forward`](Kernels::layer_norm_forward), `_backward`, `_forward_tangent`, `_backward_tangent` | the same |
//! | AdamW | [`adamw`](Kernels::adamw) | the same |
//! | dropout without a mask | [`dropout`](Kernels::dropout) with [`DropoutKey`] | the same |
//! | sums | [`dot`](Kernels::dot), `sum_of_squares`, `squared_distance`, `divergence`, `sum`, `add_column_sums` | the same but `sum` |
//! | elementwise | `add_scaled`, `scale`, `add`, `add_product`, `tanh`, `tanh_backward` | `add_scaled`, `scale` |
//!
//! Integer inference is in its own module, [`int`].
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
//! **Determinism.** Every result has the same bytes on every instruction set and with any number of threads (a NaN is a
//! NaN, but its sign and payload are the CPU's own). Work is split by shape, never by thread count or vector length.
//! Every sum has a documented order, over sixteen lanes where there are lanes. `a·b + c` is rounded once where a kernel
//! says `mul_add`, and twice where it says `mul` and `add`; nothing is fused behind its back. No function comes from the
//! system's C library. One exception: products of bf16 ([`ProductPrecision::Bf16`]) have other last bits with the
//! multiplier `amx`.
//!
//! **Choice of kernels.** The best that the CPU supports, detected at run time. The environment variable
//! [`KERNELS_VARIABLE`] selects others for tests and comparisons: `QBERT_KERNELS=avx2`, or `avx2+portable` to choose the
//! integer multiplier as well; without `amx` there, products of bf16 do not use AMX either. Kernels that the CPU lacks are
//! an error, never an illegal instruction.
//!
//! **Adding an instruction set.** Write a file in `src/simd` with a type that implements the `Simd` trait and list it in
//! `src/simd/mod.rs`; for an integer kernel, a type that implements `Multiply`, listed in `src/int/multiplier/mod.rs`.
//! Dispatch, lookup by name and the tests follow the lists; `tests/dispatch.rs` states which names each CPU must have.
//!
//! **`unsafe`.** A kernel that holds addresses is made by an `unsafe` constructor that states what it needs; all others
//! take slices. Running a kernel is safe.
//!
//! **Misuse.** Shapes that do not match are programming errors: functions panic and name the shapes. Values are never
//! checked: NaN and infinity propagate as each function documents.

mod activation;
mod adamw;
mod amx;
mod compute;
mod cpu;
mod dropout;
mod elementwise;
mod error;
mod file_bytes;
mod fork;
mod gelu;
mod gemm;
mod implementations;
pub mod int;
mod layer_norm;
mod machine;
mod pool;
mod ranks;
mod reduce;
mod rotary;
mod scratch;
mod shared_matrix;
mod simd;
mod softmax;
#[cfg(test)]
mod tests;
mod threads;
mod token_pooling;
mod window;

pub use activation::{Activation, ActivationTangent};
pub use adamw::AdamW;
pub use compute::{CHUNK, Compute, ROW_CHUNK};
pub use cpu::{KERNEL_NAMES, KERNELS_VARIABLE, Kernels};
pub use dropout::DropoutKey;
pub use error::KernelError;
pub use file_bytes::FileBytes;
pub use gemm::{MatMut, MatRef, ProductPrecision, Start};
pub use layer_norm::{LayerNorm, LayerNormGradients, LayerNormTangents, Normalized, NormalizedMut};
pub use machine::Machine;
pub use ranks::{LocalRanks, Ranks};
pub use reduce::SUM_BLOCK;
pub use rotary::{Rotary, Turn};
pub use softmax::{BiasRows, DistanceBias, SoftmaxTangent};
pub use threads::{MAX_THREADS, Threads};
pub use token_pooling::{TokenPooling, unit_length};
pub use window::{Window, WindowTile};
