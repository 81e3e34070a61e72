//! The backward pass: the forward pass read from the end, one layer's gradients in memory at a time.

use qbert_kernels::{Compute, LayerNormGradients, Start};
use qbert_model::Head;

use super::forward::linear_at;
use super::{Activations, BackwardBuffers, Bert, LinearSpan, Mode, NormSpan, Place};
use crate::batch::Batch;
use crate::ops::linear::{self, LinearGradients};
use crate::ops::{attention, dropout, embedding, gelu, pooler, residual_norm};

/// The gradients of a linear layer in the flat array.
pub(super) fn linear_gradients<'a>(gradients: &'a mut [f32], span: &LinearSpan) -> LinearGradients<'a> {
    let (weight, bias) = pair(gradients, &span.weight, &span.bias);
    LinearGradients { weight, bias }
}

/// The gradients of a LayerNorm in the flat array.
pub(super) fn norm_gradients<'a>(gradients: &'a mut [f32], span: &NormSpan) -> LayerNormGradients<'a> {
    let (gamma, beta) = pair(gradients, &span.gamma, &span.beta);
    LayerNormGradients { gamma, beta }
}

/// Two spans of one array, the first before the second.
fn pair<'a>(
    values: &'a mut [f32],
    first: &std::ops::Range<usize>,
    second: &std::ops::Range<usize>,
) -> (&'a mut [f32], &'a mut [f32]) {
    let (before, after) = values.split_at_mut(second.start);
    (&mut before[first.clone()], &mut after[..second.len()])
}

impl Bert {
    /// Adds the gradient of the loss to `gradients` (the layout of the weights). [`Bert::forward`] with the same
    /// arguments and [`Bert::loss`] go before.
    pub fn backward(
        &self,
        compute: &Compute,
        weights: &[f32],
        batch: &Batch,
        mode: Mode,
        activations: &Activations,
        (buffers, gradients): (&mut BackwardBuffers, &mut [f32]),
    ) {
        self.head_backward(compute, weights, batch, mode, activations, (buffers, gradients));
        for layer in (0..self.config.layers).rev() {
            self.layer_backward(compute, (weights, batch, mode), layer, activations, (buffers, gradients));
        }
        self.embedding_backward(compute, weights, batch, mode, activations, (buffers, gradients));
    }

    /// From the gradient of the logits to that of the encoder's output.
    fn head_backward(
        &self,
        compute: &Compute,
        weights: &[f32],
        batch: &Batch,
        mode: Mode,
        activations: &Activations,
        (buffers, gradients): (&mut BackwardBuffers, &mut [f32]),
    ) {
        let BackwardBuffers { d_hidden, d_logits, d_head_input, d_pooled, .. } = buffers;
        let Some(head) = &self.spans.head else {
            d_hidden.fill(0.0);
            return;
        };
        linear::backward_parameters(compute, &activations.head_input, d_logits, linear_gradients(gradients, head));
        linear::backward_input(compute, linear_at(weights, head), d_logits, Start::ZERO, d_head_input);
        if let Some(dropout) = self.dropout(mode, Place::Head) {
            dropout.apply(compute, d_head_input);
        }
        match (&self.spans.pooler, self.layout.head()) {
            (Some(span), Head::SequenceClassification) => {
                let saved = pooler::Saved { first: &activations.first_tokens, pooled: &activations.pooled };
                let targets = (linear_gradients(gradients, span), &mut d_hidden[..]);
                let linear = linear_at(weights, span);
                pooler::backward(compute, linear, batch, saved, (d_head_input, d_pooled), targets);
            }
            _ => d_hidden.copy_from_slice(d_head_input),
        }
    }

    /// From the gradient of a layer's output in `d_hidden` to that of its input, in the same place.
    fn layer_backward(
        &self,
        compute: &Compute,
        (weights, batch, mode): (&[f32], &Batch, Mode),
        layer: usize,
        activations: &Activations,
        (buffers, gradients): (&mut BackwardBuffers, &mut [f32]),
    ) {
        let spans = &self.spans.layers[layer];
        let kept = &activations.layers[layer];
        let input = &activations.hidden[layer];
        let BackwardBuffers { d_hidden, d_sum, d_dropped, d_middle, d_inner, d_qkv, scratch, .. } = buffers;
        let gamma = |span: &NormSpan| &weights[span.gamma.clone()];

        // y = LayerNorm(dropout(W₂·inner + b₂) + middle)
        let norm = norm_gradients(gradients, &spans.output_norm);
        residual_norm::backward(compute, gamma(&spans.output_norm), &kept.output, d_hidden, d_middle, norm);
        let mask = self.dropout(mode, Place::Output(layer));
        let d_output = dropout::backward(compute, mask, d_middle, d_dropped);
        linear::backward_parameters(compute, &kept.inner, d_output, linear_gradients(gradients, &spans.output));
        linear::backward_input(compute, linear_at(weights, &spans.output), d_output, Start::ZERO, d_inner);

        // inner = gelu(W₁·middle + b₁)
        gelu::backward(compute, &kept.slope, d_inner);
        linear::backward_parameters(compute, &kept.middle, d_inner, linear_gradients(gradients, &spans.intermediate));
        linear::backward_input(compute, linear_at(weights, &spans.intermediate), d_inner, Start::ACCUMULATE, d_middle);

        // middle = LayerNorm(dropout(W_o·context + b_o) + input)
        let norm = norm_gradients(gradients, &spans.attention_norm);
        residual_norm::backward(compute, gamma(&spans.attention_norm), &kept.attention, d_middle, d_hidden, norm);
        let mask = self.dropout(mode, Place::AttentionOutput(layer));
        let d_projected = dropout::backward(compute, mask, d_hidden, d_dropped);
        let projection = linear_gradients(gradients, &spans.attention_output);
        linear::backward_parameters(compute, &kept.context, d_projected, projection);
        linear::backward_input(compute, linear_at(weights, &spans.attention_output), d_projected, Start::ZERO, d_sum);

        // context = attention(W_qkv·input + b_qkv); d_sum holds the context's gradient.
        let dropout = self.dropout(mode, Place::Probabilities(layer));
        let buffers = attention::BackwardBuffers { probabilities: &kept.probabilities, scratch, d_qkv };
        attention::backward(compute, self.heads(), batch, dropout, (&kept.qkv, d_sum), buffers);
        linear::backward_parameters(compute, input, d_qkv, linear_gradients(gradients, &spans.attention_inputs));
        linear::backward_input(
            compute,
            linear_at(weights, &spans.attention_inputs),
            d_qkv,
            Start::ACCUMULATE,
            d_hidden,
        );
    }

    /// From the gradient of the first layer's input to those of the embedding tables.
    fn embedding_backward(
        &self,
        compute: &Compute,
        weights: &[f32],
        batch: &Batch,
        mode: Mode,
        activations: &Activations,
        (buffers, gradients): (&mut BackwardBuffers, &mut [f32]),
    ) {
        let BackwardBuffers { d_hidden, d_sum, .. } = buffers;
        if let Some(dropout) = self.dropout(mode, Place::Embedding) {
            dropout.apply(compute, d_hidden);
        }
        let span = &self.spans.embedding_norm;
        let gamma = &weights[span.gamma.clone()];
        residual_norm::backward(
            compute,
            gamma,
            &activations.embedding,
            d_hidden,
            d_sum,
            norm_gradients(gradients, span),
        );
        let [word, position, token_type] = self.spans.embeddings.clone();
        // The tables are the first three parameters, next to each other.
        let (word, rest) = gradients[word.start..token_type.end].split_at_mut(word.len());
        let (position, token_type) = rest.split_at_mut(position.len());
        let mut tables = embedding::TableGradients { word, position, token_type };
        embedding::backward(compute, batch, self.config.hidden_size, d_sum, &mut tables);
    }
}
