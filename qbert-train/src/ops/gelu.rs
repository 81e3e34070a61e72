//! GELU, exact (erf) form, between the two feed-forward products.
//!
//! In training the slope is computed together with the value, because both need the same exponential; the backward pass
//! is then one multiplication. Evaluation computes the value alone.

use qbert_kernels::Compute;

/// `value = gelu(u)`, and `slope = gelu′(u)` where it is asked for.
pub fn forward(compute: &Compute, u: &[f32], value: &mut [f32], slope: Option<&mut [f32]>) {
    match slope {
        Some(slope) => compute.gelu_and_slope(u, value, slope),
        None => compute.gelu(u, value),
    }
}

/// The gradient of the value becomes the gradient of `u`, in place: `d ← d ∘ slope`.
pub fn backward(compute: &Compute, slope: &[f32], d: &mut [f32]) {
    compute.multiply(slope, d);
}
