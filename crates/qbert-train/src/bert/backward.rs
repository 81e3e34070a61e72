//! The backward pass: the forward pass read from the end, one layer's gradients in memory at a time.

use qbert_kernels::{Compute, LayerNormGradients, Start};
use qbert_quant::ActivationParams;

use super::forward::linear_at;
use super::{Activations, BackwardBuffers, Bert, LinearSpan, Mode, NormSpan, Pass, Place, SoftTargets};
use crate::batch::Batch;
use crate::ops::linear::{self, Linear, LinearGradients};
use crate::ops::{activation, attention, distill, dropout, embedding, pooler, quantize, residual_norm};

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

/// Adds what a teacher's hidden state adds to the gradient of the student's.
fn add_hidden_gradient(
    compute: &Compute,
    teacher: Option<SoftTargets<'_>>,
    activations: &Activations,
    index: usize,
    d: &mut [f32],
) {
    if let Some(SoftTargets { teacher, hidden, .. }) = teacher {
        let factor = (2.0 * hidden / d.len() as f64) as f32;
        distill::add_difference(compute, factor, (&activations.hidden[index], &teacher.hidden[index]), d);
    }
}

/// What a linear layer reads that is a residual too: the values, and how their quantized copy was made.
struct Read<'a> {
    values: &'a [f32],
    params: Option<ActivationParams>,
}

impl Read<'_> {
    /// Adds the gradients of the linear layer, and that of the values to `d_values`, where the residual's is already.
    /// With quantization the layer has read the copy, which is made again, and the clamp stops gradients of this way
    /// only, not the residual's: two buffers of the values' size serve for that.
    fn backward(
        &self,
        compute: &Compute,
        (linear, gradients): (Linear<'_>, LinearGradients<'_>),
        dy: &[f32],
        (copy, d_copy): (&mut [f32], &mut [f32]),
        d_values: &mut [f32],
    ) {
        let Some(params) = self.params else {
            linear::backward_parameters(compute, self.values, dy, gradients);
            return linear::backward_input(compute, linear, dy, Start::ACCUMULATE, d_values);
        };
        quantize::forward(compute, params, self.values, copy);
        linear::backward_parameters(compute, copy, dy, gradients);
        linear::backward_input(compute, linear, dy, Start::ZERO, d_copy);
        quantize::backward(compute, params, self.values, d_copy);
        compute.add_scaled(1.0, d_copy, d_values);
    }
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
        targets: (&mut BackwardBuffers, &mut [f32]),
    ) {
        self.backward_with(Pass { compute, weights, batch, mode }, None, activations, targets);
    }

    /// The same with a teacher's terms in the loss. What they add to the gradient of the logits is in the buffers
    /// already, as the loss's own is.
    pub fn backward_with(
        &self,
        pass: Pass<'_>,
        teacher: Option<SoftTargets<'_>>,
        activations: &Activations,
        (buffers, gradients): (&mut BackwardBuffers, &mut [f32]),
    ) {
        let Pass { compute, weights, batch, mode } = pass;
        self.head_backward(compute, weights, batch, mode, activations, (buffers, gradients));
        for layer in (0..self.config.layers).rev() {
            add_hidden_gradient(compute, teacher, activations, layer + 1, &mut buffers.d_hidden);
            self.layer_backward((pass, teacher), layer, activations, (buffers, gradients));
        }
        add_hidden_gradient(compute, teacher, activations, 0, &mut buffers.d_hidden);
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
        match &self.spans.pooler {
            Some(span) if self.layout.head_class().pooled => {
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
        (pass, teacher): (Pass<'_>, Option<SoftTargets<'_>>),
        layer: usize,
        activations: &Activations,
        (buffers, gradients): (&mut BackwardBuffers, &mut [f32]),
    ) {
        let Pass { compute, weights, batch, mode } = pass;
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
        activation::backward(compute, &kept.slope, d_inner);
        let read = Read { values: &kept.middle, params: kept.quantized.as_ref().map(|notes| notes.middle) };
        let intermediate = (linear_at(weights, &spans.intermediate), linear_gradients(gradients, &spans.intermediate));
        read.backward(compute, intermediate, d_inner, (d_sum, d_dropped), d_middle);

        // middle = LayerNorm(dropout(W_o·context + b_o) + input)
        let norm = norm_gradients(gradients, &spans.attention_norm);
        residual_norm::backward(compute, gamma(&spans.attention_norm), &kept.attention, d_middle, d_hidden, norm);
        let mask = self.dropout(mode, Place::AttentionOutput(layer));
        let d_projected = dropout::backward(compute, mask, d_hidden, d_dropped);
        let projection = linear_gradients(gradients, &spans.attention_output);
        linear::backward_parameters(compute, &kept.context, d_projected, projection);
        linear::backward_input(compute, linear_at(weights, &spans.attention_output), d_projected, Start::ZERO, d_sum);

        // context = attention(W_qkv·input + b_qkv); d_sum holds the context's gradient.
        if let Some(notes) = &kept.quantized {
            quantize::backward_passed(compute, &notes.context_passed, d_sum);
        }
        let dropout = self.dropout(mode, Place::Probabilities(layer));
        let rows = (batch.tokens() * self.config.heads) as f64;
        let teacher = teacher.map(|t| (&t.teacher.layers[layer].probabilities[..], (t.attention / rows) as f32));
        let quantized = kept.quantized.as_ref().map(|notes| notes.attention);
        let treatment = attention::Treatment { dropout, quantized, teacher };
        let buffers = attention::BackwardBuffers { probabilities: &kept.probabilities, scratch, d_qkv };
        attention::backward_with(compute, self.heads(), batch, treatment, (&kept.qkv, d_sum), buffers);
        if let Some(notes) = &kept.quantized {
            quantize::backward_passed(compute, &notes.qkv_passed, d_qkv);
        }
        let read = Read { values: input, params: kept.quantized.as_ref().map(|notes| notes.input) };
        let span = &spans.attention_inputs;
        let inputs = (linear_at(weights, span), linear_gradients(gradients, span));
        read.backward(compute, inputs, d_qkv, (d_sum, d_dropped), d_hidden);
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
