//! A linear layer: `Y = X·Wᵀ + b`.

use qbert_kernels::{Compute, MatMut, MatRef, Start};

/// Weight `[outputs, inputs]` and bias `[outputs]`.
#[derive(Debug, Clone, Copy)]
pub struct Linear<'a> {
    /// `W`, one row per output.
    pub weight: &'a [f32],
    /// `b`
    pub bias: &'a [f32],
}

impl<'a> Linear<'a> {
    fn outputs(&self) -> usize {
        self.bias.len()
    }

    fn inputs(&self) -> usize {
        self.weight.len() / self.bias.len()
    }

    fn matrix(&self) -> MatRef<'a> {
        MatRef::new(self.weight, self.outputs(), self.inputs())
    }
}

/// Where the gradients of weight and bias are added.
#[derive(Debug)]
pub struct LinearGradients<'a> {
    /// `+= dYᵀ·X`
    pub weight: &'a mut [f32],
    /// `+= Σ_t dY`
    pub bias: &'a mut [f32],
}

/// `y = x·Wᵀ + b`; `x` is `[T, inputs]`, `y` `[T, outputs]`.
pub fn forward(compute: &Compute, linear: Linear<'_>, x: &[f32], y: &mut [f32]) {
    let rows = x.len() / linear.inputs();
    let (x, y) = (MatRef::new(x, rows, linear.inputs()), MatMut::new(y, rows, linear.outputs()));
    compute.gemm_nt(x, linear.matrix(), Start::Bias(linear.bias), y);
}

/// `dx = dy·W`, added to what is there with [`Start::ACCUMULATE`] (a residual's gradient).
pub fn backward_input(compute: &Compute, linear: Linear<'_>, dy: &[f32], start: Start<'_>, dx: &mut [f32]) {
    let rows = dy.len() / linear.outputs();
    let (dy, dx) = (MatRef::new(dy, rows, linear.outputs()), MatMut::new(dx, rows, linear.inputs()));
    compute.gemm_nn(dy, linear.matrix(), start, dx);
}

/// Adds the gradients of weight and bias.
pub fn backward_parameters(compute: &Compute, x: &[f32], dy: &[f32], gradients: LinearGradients<'_>) {
    let outputs = gradients.bias.len();
    let (inputs, rows) = (gradients.weight.len() / outputs, dy.len() / outputs);
    let (x, dy) = (MatRef::new(x, rows, inputs), MatRef::new(dy, rows, outputs));
    compute.gemm_tn(dy, x, Start::ACCUMULATE, MatMut::new(gradients.weight, outputs, inputs));
    compute.add_column_sums(dy, gradients.bias);
}
