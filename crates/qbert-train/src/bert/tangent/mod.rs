//! Exact Hessian-vector products, layer by layer: what the paper's Alg. 1 (§3.2) multiplies with.
//!
//! The Hessian block of an encoder layer is the second derivative of the loss by all parameters of that layer:
//! matrices, biases, and γ and β of both norms. Its product with `v` is the directional derivative of the gradient along
//! `v`. It is computed directly, without a graph: [`HessianPass::prepare`] runs one ordinary forward and backward
//! pass and keeps what tangents need; then [`HessianPass::product`] carries a tangent from the layer up to the loss and
//! back down to it. Below the layer nothing moves, and above it only activations do, so that second-order parameter
//! gradients are formed at the layer alone; where several layers share the weights, at each of them. One preparation serves any number of products, in one set of buffers.
//!
//! In comments a dot is a tangent: `ẋ` is how `x` changes when the layer's parameters move along `v`.
//!
//! Not for training: there is no dropout, so the curvature is that of the loss in evaluation.

mod backward;
mod before;
mod buffers;
mod forward;
mod gradients;
mod head;

use qbert_kernels::Compute;

use super::spans::LayerSpans;
use super::{Activations, Bert, Mode};
use crate::batch::Batch;
use crate::ops::Dual;
use crate::ops::loss::Loss;
use buffers::{BackwardTangents, Head, LayerGradients, LayerTangents, OwnTangents};

/// Where a Hessian is taken: a model with its weights, and the batch whose loss is differentiated.
#[derive(Debug, Clone, Copy)]
pub struct Point<'a> {
    /// The model.
    pub bert: &'a Bert,
    /// Kernels and threads.
    pub compute: &'a Compute,
    /// All weights, in the model's layout.
    pub weights: &'a [f32],
    /// A batch with targets.
    pub batch: &'a Batch,
}

/// One product: the layer that moves, its direction, and where the result is added.
struct Moved<'a> {
    /// The computed layer. Where layers share weights, all that have these move, one after the other.
    layer: usize,
    /// How many of them come before it. The input of the first one is fixed.
    before: usize,
    /// Places within `direction` and `product`.
    spans: LayerSpans,
    direction: &'a [f32],
    product: &'a mut [f32],
}

/// The memory of Hessian-vector products: allocated once, reused for every batch, layer and vector.
#[derive(Debug)]
pub struct HessianPass {
    activations: Activations,
    gradients: Vec<LayerGradients>,
    tangents: Vec<LayerTangents>,
    /// The tangents of the moving layer that its parameters' second-order gradients need. More than one where layers
    /// share weights.
    own: Vec<OwnTangents>,
    /// The same of every layer above, one after the other.
    passing: OwnTangents,
    /// Tangent of the output of the layer just computed `[T, H]`.
    hidden: Vec<f32>,
    /// The same behind the norm after the last layer `[T, H]`.
    encoded: Vec<f32>,
    /// Gradient behind that norm `[T, H]`; empty without one.
    d_encoded: Vec<f32>,
    head: Head,
    backward: BackwardTangents,
    lowest: usize,
    scale: f64,
}

impl Default for HessianPass {
    fn default() -> Self {
        Self::new()
    }
}

impl HessianPass {
    /// Empty buffers; they grow to the largest batch seen.
    pub fn new() -> Self {
        Self {
            activations: Activations::for_curvature(),
            gradients: Vec::new(),
            tangents: Vec::new(),
            own: Vec::new(),
            passing: OwnTangents::default(),
            hidden: Vec::new(),
            encoded: Vec::new(),
            d_encoded: Vec::new(),
            head: Head::default(),
            backward: BackwardTangents::default(),
            lowest: 0,
            scale: 1.0,
        }
    }

    /// The ordinary passes over a batch, for products of the layers from `lowest` up, counted as in the layout. Everything that follows is of the
    /// batch's mean loss times `scale`, so that `1/batches` makes the sum over batches a mean.
    ///
    /// # Panics
    /// If the batch does not fit the model ([`Bert::check`] it first), or the model has no layer `lowest`.
    pub fn prepare(&mut self, point: Point<'_>, lowest: usize, scale: f64) -> Loss {
        let Point { bert, compute, weights, batch } = point;
        let layers = bert.config.distinct_layers();
        assert!(lowest < layers, "layer {lowest} of {layers}");
        bert.forward(compute, weights, batch, Mode::Evaluate, &mut self.activations);
        let computed = (0..bert.config.layers).find(|&layer| bert.config.weights_of(layer) >= lowest);
        self.lowest = computed.unwrap_or(0);
        self.scale = scale;
        self.resize(point);
        self.backpropagate(point)
    }

    /// Adds `H·direction` to `product`, with `H` the Hessian block of `layer` at `point`, which is the one of the last
    /// [`HessianPass::prepare`]. Both slices have the length and order of the layer's span in the layout.
    ///
    /// # Panics
    /// If the layer is not among those prepared, a slice is not as long as the layer, or the batch is another one.
    pub fn product(&mut self, point: Point<'_>, layer: usize, direction: &[f32], product: &mut [f32]) {
        let config = &point.bert.config;
        let computed: Vec<usize> = (0..config.layers).filter(|&own| config.weights_of(own) == layer).collect();
        let is_prepared = computed.first().is_some_and(|&first| first >= self.lowest);
        assert!(is_prepared, "layer {layer}, but computed layers from {} on were prepared", self.lowest);
        let span = &point.bert.layout.layers()[layer];
        let lengths = (span.len(), direction.len(), product.len());
        assert!(lengths.0 == lengths.1 && lengths.0 == lengths.2, "a layer, a vector and a product of {lengths:?}");
        let tokens = (point.batch.tokens(), self.hidden.len() / point.bert.config.hidden_size);
        assert!(tokens.0 == tokens.1, "a batch of {} tokens after one of {} was prepared", tokens.0, tokens.1);

        let spans = point.bert.spans.layers[computed[0]].counted_from(span.start);
        let mut moved = Moved { layer: 0, before: 0, spans, direction, product };
        self.resize_own(point, computed.len());
        for above in computed[0]..config.layers {
            match computed.binary_search(&above) {
                Ok(before) => {
                    (moved.layer, moved.before) = (above, before);
                    self.own_forward(point, &moved);
                }
                Err(_) => self.passing_forward(point, above),
            }
        }
        self.head_tangents(point);
        for above in (computed[0]..config.layers).rev() {
            match computed.binary_search(&above) {
                Ok(before) => {
                    (moved.layer, moved.before) = (above, before);
                    self.own_backward(point, &mut moved);
                }
                Err(_) => self.passing_backward(point, above),
            }
        }
    }
}

fn dual<'a>(value: &'a [f32], tangent: &'a [f32]) -> Dual<'a> {
    Dual { value, tangent }
}
