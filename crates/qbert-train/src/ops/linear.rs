//! A linear layer: `Y = X·Wᵀ + b`, in f32 or, with quantized weights and input, in integers.

use qbert_kernels::int::{LinearInput, LinearLayer, LinearOutput, WideWeights};
use qbert_kernels::{Compute, MatMut, MatRef, ProductPrecision, Start};

use super::Dual;

/// Weight `[outputs, inputs]` and bias `[outputs]`.
#[derive(Debug, Clone, Copy)]
pub struct Linear<'a> {
    /// `W`, one row per output.
    pub weight: &'a [f32],
    /// `b`; empty for a layer without a bias.
    pub bias: &'a [f32],
    /// Rows of `W`.
    pub outputs: usize,
}

impl<'a> Linear<'a> {
    fn inputs(&self) -> usize {
        self.weight.len() / self.outputs
    }

    /// What its products are added to.
    fn start(&self) -> Start<'a> {
        if self.bias.is_empty() { Start::ZERO } else { Start::Bias(self.bias) }
    }

    fn matrix(&self) -> MatRef<'a> {
        MatRef::new(self.weight, self.outputs, self.inputs())
    }

    /// The layer of some of the outputs.
    #[must_use]
    pub fn rows(&self, outputs: std::ops::Range<usize>) -> Self {
        let inputs = self.inputs();
        let weight = &self.weight[outputs.start * inputs..outputs.end * inputs];
        let bias = if self.bias.is_empty() { self.bias } else { &self.bias[outputs.clone()] };
        Self { weight, bias, outputs: outputs.len() }
    }
}

/// Outputs of a layer whose products are always in f32: those of a small head cost little, and the loss sees them as they are.
const FEW_OUTPUTS: usize = 16;

/// What computes the products of a layer with so many outputs. The layer alone decides, not the number of tokens, because ranks
/// that share a batch have fewer of them.
pub(crate) fn compute_for(compute: &Compute, outputs: usize) -> Compute {
    if outputs < FEW_OUTPUTS { compute.with_products(ProductPrecision::F32) } else { compute.clone() }
}

/// Where the gradients of weight and bias are added.
#[derive(Debug)]
pub struct LinearGradients<'a> {
    /// `+= dYᵀ·X`
    pub weight: &'a mut [f32],
    /// `+= Σ_t dY`; empty for a layer without a bias.
    pub bias: &'a mut [f32],
    /// Rows of the weight.
    pub outputs: usize,
}

impl<'a> LinearGradients<'a> {
    /// Those of some of the outputs.
    #[must_use]
    pub fn rows(self, outputs: std::ops::Range<usize>) -> Self {
        let Self { weight, bias, outputs: all } = self;
        let inputs = weight.len() / all;
        let bias = if bias.is_empty() { bias } else { &mut bias[outputs.clone()] };
        Self { weight: &mut weight[outputs.start * inputs..outputs.end * inputs], bias, outputs: outputs.len() }
    }
}

/// `y = x·Wᵀ + b`; `x` is `[T, inputs]`, `y` `[T, outputs]`.
pub fn forward(compute: &Compute, linear: Linear<'_>, x: &[f32], y: &mut [f32]) {
    let rows = x.len() / linear.inputs();
    forward_block(compute, linear, x, MatMut::new(y, rows, linear.outputs));
}

/// [`forward`] into columns of a wider matrix.
pub fn forward_block(compute: &Compute, linear: Linear<'_>, x: &[f32], y: MatMut<'_>) {
    let x = MatRef::new(x, y.rows(), linear.inputs());
    compute_for(compute, linear.outputs).gemm_nt(x, linear.matrix(), linear.start(), y);
}

/// [`forward`] from codes, with the kernel of the integer runtime: the sums are exact, and every rounding after them is
/// the runtime's. The derivatives below are taken at the values of the codes.
pub fn forward_codes(compute: &Compute, weights: &WideWeights, x: LinearInput<'_>, y: MatMut<'_>) {
    let layer = LinearLayer { weights: weights.weights(), params: weights.params(), output: LinearOutput::Float(y) };
    compute.linear(x, [layer]);
}

/// `dx = dy·W`, added to what is there with [`Start::ACCUMULATE`] (a residual's gradient).
pub fn backward_input(compute: &Compute, linear: Linear<'_>, dy: &[f32], start: Start<'_>, dx: &mut [f32]) {
    let rows = dy.len() / linear.outputs;
    let (dy, dx) = (MatRef::new(dy, rows, linear.outputs), MatMut::new(dx, rows, linear.inputs()));
    compute_for(compute, linear.outputs).gemm_nn(dy, linear.matrix(), start, dx);
}

/// Adds the gradients of weight and bias.
pub fn backward_parameters(compute: &Compute, x: &[f32], dy: &[f32], gradients: LinearGradients<'_>) {
    add_gradients(&compute_for(compute, gradients.outputs), x, dy, gradients);
}

/// The same for a part of a layer's outputs; `compute` is that of the whole layer ([`compute_for`]).
pub(crate) fn add_gradients(compute: &Compute, x: &[f32], dy: &[f32], gradients: LinearGradients<'_>) {
    let outputs = gradients.outputs;
    let (inputs, rows) = (gradients.weight.len() / outputs, dy.len() / outputs);
    let (x, dy) = (MatRef::new(x, rows, inputs), MatRef::new(dy, rows, outputs));
    compute.gemm_tn(dy, x, Start::ACCUMULATE, MatMut::new(gradients.weight, outputs, inputs));
    if !gradients.bias.is_empty() {
        compute.add_column_sums(dy, gradients.bias);
    }
}

/// `ẏ = ẋ·Wᵀ`, added to what is there with [`Start::ACCUMULATE`]: a residual's tangent, or, where the layer itself
/// moves, `x·Ẇᵀ + ḃ`, which is [`forward`] of `x` with the direction in the place of the layer.
pub fn forward_tangent(
    compute: &Compute,
    linear: Linear<'_>,
    x_tangent: &[f32],
    start: Start<'_>,
    y_tangent: &mut [f32],
) {
    let rows = x_tangent.len() / linear.inputs();
    let x_tangent = MatRef::new(x_tangent, rows, linear.inputs());
    let y_tangent = MatMut::new(y_tangent, rows, linear.outputs);
    compute_for(compute, linear.outputs).gemm_nt(x_tangent, linear.matrix(), start, y_tangent);
}

/// The tangent of [`backward_input`]: `dẏ·W`, and where the layer itself moves, `+ dy·Ẇ`.
pub fn backward_input_tangent(
    compute: &Compute,
    linear: Linear<'_>,
    direction: Option<Linear<'_>>,
    dy: Dual<'_>,
    start: Start<'_>,
    dx_tangent: &mut [f32],
) {
    backward_input(compute, linear, dy.tangent, start, dx_tangent);
    if let Some(direction) = direction {
        backward_input(compute, direction, dy.value, Start::ACCUMULATE, dx_tangent);
    }
}

/// Adds the tangents of the gradients of weight and bias: `dẏᵀ·x + dyᵀ·ẋ` and `Σ_t dẏ`.
pub fn backward_parameters_tangent(compute: &Compute, x: Dual<'_>, dy: Dual<'_>, gradients: LinearGradients<'_>) {
    let LinearGradients { weight, bias, outputs } = gradients;
    let (inputs, rows) = (weight.len() / outputs, dy.value.len() / outputs);
    backward_parameters(compute, x.value, dy.tangent, LinearGradients { weight: &mut *weight, bias, outputs });
    let (x_tangent, dy) = (MatRef::new(x.tangent, rows, inputs), MatRef::new(dy.value, rows, outputs));
    let compute = compute_for(compute, outputs);
    compute.gemm_tn(dy, x_tangent, Start::ACCUMULATE, MatMut::new(weight, outputs, inputs));
}
