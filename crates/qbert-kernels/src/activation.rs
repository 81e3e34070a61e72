//! The activations between the two products of a feed-forward network, with first and second derivative.
//!
//! GELU in its exact form has a file of its own, `gelu.rs`. Accuracy of the others against f64, for every instruction set
//! and finite x (tested): value within `3e-7 · max(1, |x|)`, first derivative within 6e-7, second within 1e-6. ReLU is exact; its
//! derivative at 0 is 0, and its second derivative is 0 everywhere.

use crate::compute::{CHUNK, Compute, check_lengths, part};
use crate::cpu::Kernels;
use crate::simd::Simd;
use crate::simd::loops::{Elementwise, Map};
use crate::simd::math::{Cubic, Gate, Linear, gated, gated_of_each, relu_of_each};

/// The function between the two feed-forward matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// GELU in its exact form, with the error function.
    Gelu,
    /// GELU approximated with the hyperbolic tangent.
    GeluTanh,
    /// `max(x, 0)`
    Relu,
    /// `x·σ(x)` with the logistic function, also called swish.
    Silu,
}

impl Activation {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Gelu, Self::GeluTanh, Self::Relu, Self::Silu];
}

/// `value`
struct Value<G>(G);
/// `value` and `slope`
struct ValueAndSlope<G>(G);
/// `f''(x)·ẋ·d + f'(x)·ḋ`
struct BackwardTangent<G>(G);
struct ReluValue;
struct ReluSlope;
struct ReluBackwardTangent;

impl<G: Gate> Elementwise<1, 1> for Value<G> {
    #[inline(always)]
    fn apply<S: Simd>(&self, simd: S, x: [S::F32; 1], _: [S::F32; 1]) -> [S::F32; 1] {
        gated_of_each::<S, G, 1>(simd, x)
    }
}

impl<G: Gate> Elementwise<1, 2> for ValueAndSlope<G> {
    #[inline(always)]
    fn apply<S: Simd>(&self, simd: S, [x]: [S::F32; 1], _: [S::F32; 2]) -> [S::F32; 2] {
        let gated = gated::<S, G>(simd, x);
        [gated.value, gated.slope]
    }
}

impl<G: Gate> Elementwise<4, 1> for BackwardTangent<G> {
    #[inline(always)]
    fn apply<S: Simd>(&self, simd: S, inputs: [S::F32; 4], _: [S::F32; 1]) -> [S::F32; 1] {
        let [x, x_tangent, d_out, d_out_tangent] = inputs;
        let gated = gated::<S, G>(simd, x);
        let bent = simd.mul(simd.mul(gated.curvature, x_tangent), d_out);
        [simd.mul_add(d_out_tangent, gated.slope, bent)]
    }
}

impl Elementwise<1, 1> for ReluValue {
    #[inline(always)]
    fn apply<S: Simd>(&self, simd: S, x: [S::F32; 1], _: [S::F32; 1]) -> [S::F32; 1] {
        relu_of_each(simd, x)
    }
}

impl Elementwise<1, 2> for ReluSlope {
    #[inline(always)]
    fn apply<S: Simd>(&self, simd: S, x: [S::F32; 1], _: [S::F32; 2]) -> [S::F32; 2] {
        let [value] = relu_of_each(simd, x);
        [value, simd.select_less(simd.splat(0.0), x[0], simd.splat(1.0), simd.splat(0.0))]
    }
}

impl Elementwise<2, 1> for ReluBackwardTangent {
    #[inline(always)]
    fn apply<S: Simd>(&self, simd: S, [x, d_out_tangent]: [S::F32; 2], _: [S::F32; 1]) -> [S::F32; 1] {
        [simd.select_less(simd.splat(0.0), x, d_out_tangent, simd.splat(0.0))]
    }
}

/// What the tangent of an activation's backward pass reads, all of one length.
#[derive(Debug, Clone, Copy)]
pub struct ActivationTangent<'a> {
    /// The activation's input.
    pub x: &'a [f32],
    /// Its tangent.
    pub x_tangent: &'a [f32],
    /// Gradient of the activation's value.
    pub d_out: &'a [f32],
    /// Its tangent.
    pub d_out_tangent: &'a [f32],
}

impl ActivationTangent<'_> {
    /// The part of all four that belongs to a chunk of this length.
    fn chunk(&self, chunk: usize, length: usize) -> Self {
        let [x, x_tangent, d_out, d_out_tangent] =
            [self.x, self.x_tangent, self.d_out, self.d_out_tangent].map(|input| part(input, chunk, length));
        Self { x, x_tangent, d_out, d_out_tangent }
    }
}

impl Kernels {
    /// `out = f(x)`.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn activate(self, activation: Activation, x: &[f32], out: &mut [f32]) {
        match activation {
            Activation::Gelu => self.gelu(x, out),
            Activation::GeluTanh => self.run(Map { function: Value(Cubic), inputs: [x], outputs: [out] }),
            Activation::Relu => self.run(Map { function: ReluValue, inputs: [x], outputs: [out] }),
            Activation::Silu => self.run(Map { function: Value(Linear), inputs: [x], outputs: [out] }),
        }
    }

    /// `out = f(x)` and `slope = f'(x)` in one pass.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn activate_and_slope(self, activation: Activation, x: &[f32], out: &mut [f32], slope: &mut [f32]) {
        let (inputs, outputs) = ([x], [out, slope]);
        match activation {
            Activation::Gelu => {
                let [out, slope] = outputs;
                self.gelu_and_slope(x, out, slope);
            }
            Activation::GeluTanh => self.run(Map { function: ValueAndSlope(Cubic), inputs, outputs }),
            Activation::Relu => self.run(Map { function: ReluSlope, inputs, outputs }),
            Activation::Silu => self.run(Map { function: ValueAndSlope(Linear), inputs, outputs }),
        }
    }

    /// `out = f''(x)·x_tangent·d_out + f'(x)·d_out_tangent`: the tangent of the backward pass.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn activation_backward_tangent(self, activation: Activation, given: ActivationTangent<'_>, out: &mut [f32]) {
        let ActivationTangent { x, x_tangent, d_out, d_out_tangent } = given;
        let (inputs, outputs) = ([x, x_tangent, d_out, d_out_tangent], [out]);
        match activation {
            Activation::Gelu => {
                let [out] = outputs;
                self.gelu_backward_tangent(x, x_tangent, d_out, d_out_tangent, out);
            }
            Activation::GeluTanh => self.run(Map { function: BackwardTangent(Cubic), inputs, outputs }),
            Activation::Relu => {
                self.run(Map { function: ReluBackwardTangent, inputs: [x, d_out_tangent], outputs });
            }
            Activation::Silu => self.run(Map { function: BackwardTangent(Linear), inputs, outputs }),
        }
    }
}

impl Compute {
    /// [`Kernels::activate`] over all threads.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn activate(&self, activation: Activation, x: &[f32], out: &mut [f32]) {
        check_lengths(&[x.len(), out.len()]);
        self.threads().for_each_chunk([out], [CHUNK], |chunk, [out]| {
            self.kernels().activate(activation, part(x, chunk, out.len()), out);
        });
    }

    /// [`Kernels::activate_and_slope`] over all threads.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn activate_and_slope(&self, activation: Activation, x: &[f32], out: &mut [f32], slope: &mut [f32]) {
        check_lengths(&[x.len(), out.len(), slope.len()]);
        self.threads().for_each_chunk([out, slope], [CHUNK; 2], |chunk, [out, slope]| {
            self.kernels().activate_and_slope(activation, part(x, chunk, out.len()), out, slope);
        });
    }

    /// [`Kernels::activation_backward_tangent`] over all threads.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn activation_backward_tangent(&self, activation: Activation, given: ActivationTangent<'_>, out: &mut [f32]) {
        let ActivationTangent { x, x_tangent, d_out, d_out_tangent } = given;
        check_lengths(&[x.len(), x_tangent.len(), d_out.len(), d_out_tangent.len(), out.len()]);
        self.threads().for_each_chunk([out], [CHUNK], |chunk, [out]| {
            self.kernels().activation_backward_tangent(activation, given.chunk(chunk, out.len()), out);
        });
    }
}
