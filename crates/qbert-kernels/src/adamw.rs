//! The AdamW update (decoupled weight decay), one pass over parameter, gradient and both moments.

use crate::cpu::Kernels;
use crate::simd::Simd;
use crate::simd::loops::{Elementwise, Map};

/// One step's constants. The bias corrections are passed in (`1 - beta^step`, computed by the
/// caller in f64), so that the kernel does not depend on the step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Learning rate of this step.
    pub learning_rate: f32,
    /// Decay of the gradient's moving average.
    pub beta1: f32,
    /// Decay of the squared gradient's moving average.
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub epsilon: f32,
    /// Decoupled weight decay; 0 for biases and LayerNorm.
    pub weight_decay: f32,
    /// `1 - beta1^step`
    pub correction1: f32,
    /// `1 - beta2^step`
    pub correction2: f32,
    /// Multiplies every gradient first: gradient clipping and the mean over accumulated batches.
    pub gradient_scale: f32,
}

impl Elementwise<1, 3> for AdamW {
    #[inline(always)]
    fn apply<S: Simd>(&self, s: S, [g]: [S::F32; 1], [p, m, v]: [S::F32; 3]) -> [S::F32; 3] {
        let gradient = s.mul(g, s.splat(self.gradient_scale));
        let m = s.mul_add(m, s.splat(self.beta1), s.mul(gradient, s.splat(1.0 - self.beta1)));
        let new_square = s.mul(s.mul(gradient, gradient), s.splat(1.0 - self.beta2));
        let v = s.mul_add(v, s.splat(self.beta2), new_square);
        let root = s.mul(s.sqrt(v), s.splat(1.0 / self.correction2.sqrt()));
        let step = s.div(m, s.add(root, s.splat(self.epsilon)));
        let kept = s.mul(p, s.splat(1.0 - self.learning_rate * self.weight_decay));
        let p = s.neg_mul_add(s.splat(self.learning_rate / self.correction1), step, kept);
        [p, m, v]
    }
}

impl Kernels {
    /// `m = β₁m + (1-β₁)g`, `v = β₂v + (1-β₂)g²`,
    /// `p = (1 - lr·decay)·p - lr · (m/c₁) / (√(v/c₂) + ε)`.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn adamw(self, step: &AdamW, p: &mut [f32], g: &[f32], m: &mut [f32], v: &mut [f32]) {
        self.run(Map { function: *step, inputs: [g], outputs: [p, m, v] });
    }
}
