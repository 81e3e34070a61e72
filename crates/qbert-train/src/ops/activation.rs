//! The activation between the two feed-forward products.
//!
//! In training the slope is computed together with the value, because both need the same exponential; the backward pass
//! is then one multiplication. Evaluation computes the value alone.

use qbert_kernels::{ActivationTangent, Compute};
use qbert_model::family::Activation;

use super::Dual;

/// `value = f(u)`, and `slope = f′(u)` where it is asked for.
pub fn forward(compute: &Compute, activation: Activation, u: &[f32], value: &mut [f32], slope: Option<&mut [f32]>) {
    match slope {
        Some(slope) => compute.activate_and_slope(activation, u, value, slope),
        None => compute.activate(activation, u, value),
    }
}

/// The gradient of the value becomes the gradient of `u`, in place: `d ← d ∘ slope`.
pub fn backward(compute: &Compute, slope: &[f32], d: &mut [f32]) {
    compute.multiply(slope, d);
}

/// The tangent of `u` becomes that of the value: `valuė = u̇ ∘ slope`.
pub fn forward_tangent(compute: &Compute, slope: &[f32], u_tangent: &[f32], value_tangent: &mut [f32]) {
    value_tangent.copy_from_slice(u_tangent);
    compute.multiply(slope, value_tangent);
}

/// The tangent of the gradient of `u`, from the gradient `d` of the value: `f″(u)·u̇·d + f′(u)·ḋ`.
pub fn backward_tangent(compute: &Compute, activation: Activation, u: Dual<'_>, d: Dual<'_>, d_u_tangent: &mut [f32]) {
    let given = ActivationTangent { x: u.value, x_tangent: u.tangent, d_out: d.value, d_out_tangent: d.tangent };
    compute.activation_backward_tangent(activation, given, d_u_tangent);
}
