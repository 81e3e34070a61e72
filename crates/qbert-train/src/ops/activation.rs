//! The activation between the two feed-forward products.
//!
//! In training the slope is computed together with the value, because both need the same exponential; the backward pass
//! is then one multiplication. Evaluation computes the value alone.

use qbert_kernels::Compute;
use qbert_model::family::Activation;

use super::Dual;

/// `value = f(u)`, and `slope = f′(u)` where it is asked for.
pub fn forward(compute: &Compute, activation: Activation, u: &[f32], value: &mut [f32], slope: Option<&mut [f32]>) {
    match (activation, slope) {
        (Activation::Gelu, Some(slope)) => compute.gelu_and_slope(u, value, slope),
        (Activation::Gelu, None) => compute.gelu(u, value),
    }
}

/// The gradient of the value becomes the gradient of `u`, in place: `d ← d ∘ slope`.
pub fn backward(compute: &Compute, slope: &[f32], d: &mut [f32]) {
    compute.multiply(slope, d);
}

/// The tangent of `u` becomes that of the value: `valuė = u̇ ∘ slope`.
pub fn forward_tangent(compute: &Compute, slope: &[f32], u_tangent: &[f32], value_tangent: &mut [f32]) {
    value_tangent.copy_from_slice(u_tangent);
    compute.multiply(slope, value_tangent);
}

/// The tangent of the gradient of `u`, from the gradient `d` of the value: `f″(u)·u̇·d + f′(u)·ḋ`.
pub fn backward_tangent(compute: &Compute, activation: Activation, u: Dual<'_>, d: Dual<'_>, d_u_tangent: &mut [f32]) {
    match activation {
        Activation::Gelu => compute.gelu_backward_tangent(u.value, u.tangent, d.value, d.tangent, d_u_tangent),
    }
}
