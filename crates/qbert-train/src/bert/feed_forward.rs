//! What lies between the two feed-forward products, plain or gated.

use qbert_kernels::Compute;
use qbert_model::family::FeedForward;

use super::Bert;
use crate::ops::{Dual, activation, gated};

impl Bert {
    /// The activation, and its slopes where they are asked for.
    pub(super) fn activate(&self, compute: &Compute, u: &[f32], inner: &mut [f32], slope: Option<&mut [f32]>) {
        let (function, width) = (self.config.activation, self.config.intermediate_size);
        match self.config.family.feed_forward {
            FeedForward::Plain => activation::forward(compute, function, u, inner, slope),
            FeedForward::Gated => gated::forward(compute, function, width, u, inner, slope),
        }
    }

    /// From the gradient of the activation's output in `d_inner` to that of its input, which is returned.
    pub(super) fn activation_backward<'a>(
        &self,
        compute: &Compute,
        slope: &[f32],
        d_inner: &'a mut [f32],
        d_gated: &'a mut [f32],
    ) -> &'a [f32] {
        match self.config.family.feed_forward {
            FeedForward::Plain => {
                activation::backward(compute, slope, d_inner);
                d_inner
            }
            FeedForward::Gated => {
                gated::backward(compute, self.config.intermediate_size, slope, d_inner, d_gated);
                d_gated
            }
        }
    }

    /// The tangent of the activation's input becomes that of its output.
    pub(super) fn activation_forward_tangent(&self, compute: &Compute, slope: &[f32], u: &[f32], inner: &mut [f32]) {
        match self.config.family.feed_forward {
            FeedForward::Plain => activation::forward_tangent(compute, slope, u, inner),
            FeedForward::Gated => {
                gated::forward_tangent(compute, self.config.intermediate_size, slope, u, inner);
            }
        }
    }

    /// The tangent of the gradient of the activation's input, from its output's.
    pub(super) fn activation_backward_tangent(
        &self,
        compute: &Compute,
        u: Dual<'_>,
        d: Dual<'_>,
        d_u_tangent: &mut [f32],
    ) {
        let (function, width) = (self.config.activation, self.config.intermediate_size);
        match self.config.family.feed_forward {
            FeedForward::Plain => activation::backward_tangent(compute, function, u, d, d_u_tangent),
            FeedForward::Gated => gated::backward_tangent(compute, function, width, u, d, d_u_tangent),
        }
    }
}
