//! A gated activation between the two feed-forward products: `f(a) ∘ g`.
//!
//! `a` and `g` lie side by side in one `[T, 2I]` matrix. In training both slopes are kept beside each other too, `f′(a) ∘ g`
//! and `f(a)`; the backward pass multiplies with them.

use qbert_kernels::{ActivationTangent, Compute, ROW_CHUNK};
use qbert_model::family::Activation;

use super::Dual;

/// `value = f(a) ∘ g` `[T, I]` from `u = (a, g)` `[T, 2I]`, and the slopes by both `[T, 2I]` where they are asked for.
pub fn forward(
    compute: &Compute,
    activation: Activation,
    width: usize,
    u: &[f32],
    value: &mut [f32],
    slopes: Option<&mut [f32]>,
) {
    let kernels = compute.kernels();
    let first = |chunk: usize, row: usize| (chunk * ROW_CHUNK + row) * 2 * width;
    let Some(slopes) = slopes else {
        return compute.threads().for_each_chunk([value], [ROW_CHUNK * width], |chunk, [value]| {
            for (row, value) in value.chunks_exact_mut(width).enumerate() {
                let (a, gate) = u[first(chunk, row)..][..2 * width].split_at(width);
                kernels.activate(activation, a, value);
                kernels.multiply(gate, value);
            }
        });
    };
    let lengths = [ROW_CHUNK * width, 2 * ROW_CHUNK * width];
    compute.threads().for_each_chunk([value, slopes], lengths, |chunk, [value, slopes]| {
        let rows = value.chunks_exact_mut(width).zip(slopes.chunks_exact_mut(2 * width));
        for (row, (value, slopes)) in rows.enumerate() {
            let (a, gate) = u[first(chunk, row)..][..2 * width].split_at(width);
            let (by_a, by_gate) = slopes.split_at_mut(width);
            kernels.activate_and_slope(activation, a, value, by_a);
            by_gate.copy_from_slice(value);
            kernels.multiply(gate, value);
            kernels.multiply(gate, by_a);
        }
    });
}

/// From the gradient `d` of the value `[T, I]` to that of `u` `[T, 2I]`.
pub fn backward(compute: &Compute, width: usize, slopes: &[f32], d: &[f32], d_u: &mut [f32]) {
    let kernels = compute.kernels();
    compute.threads().for_each_chunk([d_u], [2 * ROW_CHUNK * width], |chunk, [d_u]| {
        let slopes = &slopes[2 * chunk * ROW_CHUNK * width..][..d_u.len()];
        let d = &d[chunk * ROW_CHUNK * width..][..d_u.len() / 2];
        d_u.copy_from_slice(slopes);
        for (d_u, d) in d_u.chunks_exact_mut(2 * width).zip(d.chunks_exact(width)) {
            d_u.chunks_exact_mut(width).for_each(|half| kernels.multiply(d, half));
        }
    });
}

/// The tangent of `u` becomes that of the value: `ȧ ∘ f′(a)∘g + ġ ∘ f(a)`.
pub fn forward_tangent(compute: &Compute, width: usize, slopes: &[f32], u_tangent: &[f32], value_tangent: &mut [f32]) {
    let kernels = compute.kernels();
    compute.threads().for_each_chunk([value_tangent], [ROW_CHUNK * width], |chunk, [value]| {
        for (row, value) in value.chunks_exact_mut(width).enumerate() {
            let own = (chunk * ROW_CHUNK + row) * 2 * width;
            let (by_a, by_gate) = slopes[own..own + 2 * width].split_at(width);
            let (a, gate) = u_tangent[own..own + 2 * width].split_at(width);
            value.copy_from_slice(a);
            kernels.multiply(by_a, value);
            kernels.add_product(by_gate, gate, value);
        }
    });
}

/// The tangent of [`backward`]: with `d` the gradient of the value, that of `a` is `f′(a)∘(g∘d)` and that of `g` is
/// `f(a)∘d`. So their tangents are `f″(a)∘ȧ∘(g∘d) + f′(a)∘(g∘d)˙` and `f(a)∘ḋ + f′(a)∘ȧ∘d`.
pub fn backward_tangent(
    compute: &Compute,
    activation: Activation,
    width: usize,
    u: Dual<'_>,
    d: Dual<'_>,
    d_u_tangent: &mut [f32],
) {
    let kernels = compute.kernels();
    compute.threads().for_each_chunk([d_u_tangent], [2 * ROW_CHUNK * width], |chunk, [out]| {
        let mut room = vec![0.0; 4 * width];
        for (row, out) in out.chunks_exact_mut(2 * width).enumerate() {
            let token = chunk * ROW_CHUNK + row;
            let wide = 2 * token * width..2 * (token + 1) * width;
            let narrow = token * width..(token + 1) * width;
            let (a, gate) = u.value[wide.clone()].split_at(width);
            let (a_tangent, gate_tangent) = u.tangent[wide].split_at(width);
            let (d, d_tangent) = (&d.value[narrow.clone()], &d.tangent[narrow]);
            let (of_a, of_gate) = out.split_at_mut(width);
            let (gated, rest) = room.split_at_mut(width);
            let (gated_tangent, rest) = rest.split_at_mut(width);
            let (value, slope) = rest.split_at_mut(width);
            gated.copy_from_slice(d);
            kernels.multiply(gate, gated);
            gated_tangent.copy_from_slice(d_tangent);
            kernels.multiply(gate, gated_tangent);
            kernels.add_product(gate_tangent, d, gated_tangent);
            let given = ActivationTangent { x: a, x_tangent: a_tangent, d_out: gated, d_out_tangent: gated_tangent };
            kernels.activation_backward_tangent(activation, given, of_a);
            kernels.activate_and_slope(activation, a, value, slope);
            of_gate.copy_from_slice(d_tangent);
            kernels.multiply(value, of_gate);
            kernels.multiply(a_tangent, slope);
            kernels.add_product(slope, d, of_gate);
        }
    });
}
