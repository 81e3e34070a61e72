//! The backward pass: the forward pass read from the end, one layer's gradients in memory at a time.

use qbert_kernels::{Compute, LayerNormGradients, Start, Turn};
use qbert_model::family::NormPlacement;
use qbert_quant::ActivationParams;

use super::forward::linear_at;
use super::{
    Activations, BackwardBuffers, Bert, LayerActivations, LinearSpan, Mode, NormSpan, Pass, Place, SoftTargets,
};
use crate::batch::Batch;
use crate::ops::linear::{self, Linear, LinearGradients};
use crate::ops::{attention, distill, dropout, embedding, pooler, quantize};
use crate::team::{self, Rows, Team};

/// The gradients of a linear layer in the flat array.
pub(super) fn linear_gradients<'a>(gradients: &'a mut [f32], span: &LinearSpan) -> LinearGradients<'a> {
    let (weight, bias) = pair(gradients, &span.weight, &span.bias);
    LinearGradients { weight, bias, outputs: span.outputs }
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

/// What every stage of a backward pass reads.
#[derive(Clone, Copy)]
pub(super) struct Given<'a> {
    pub(super) pass: Pass<'a>,
    pub(super) teacher: Option<SoftTargets<'a>>,
    pub(super) activations: &'a Activations,
}

/// Adds the gradient of the teacher's term for a hidden state.
fn add_hidden_gradient(given: Given<'_>, index: usize, d: &mut [f32]) {
    let Given { pass: Pass { compute, batch, .. }, teacher, activations } = given;
    if let Some(SoftTargets { teacher, hidden, .. }) = teacher {
        let elements = d.len() / batch.tokens() * batch.whole().tokens();
        let factor = (2.0 * hidden / elements as f64) as f32;
        distill::add_difference(compute, factor, &activations.hidden[index], &teacher.hidden[index], d);
    }
}

/// The input of a linear layer that is a residual as well.
struct ResidualInput<'a> {
    values: &'a [f32],
    /// How the copy that the layer read was quantized; `None` where it read the values themselves.
    params: Option<ActivationParams>,
    /// Two buffers of the values' size: for that copy, and for its gradient.
    copy: &'a mut [f32],
    d_copy: &'a mut [f32],
}

impl ResidualInput<'_> {
    /// Adds the gradients of the linear layer, and that of the values to `d_values`, which already holds the residual's.
    /// With quantization the layer has read the copy, which is made again, and the clamp stops only the gradients that
    /// come through the layer, not the residual's.
    fn backward(
        self,
        (compute, batch): (&Compute, &Batch),
        linear: Linear<'_>,
        gradients: LinearGradients<'_>,
        dy: &[f32],
        d_values: &mut [f32],
    ) {
        let Self { values, params, copy, d_copy } = self;
        let Some(params) = params else {
            team::add_linear(compute, batch, Rows::Tokens, (values, dy), gradients);
            return linear::backward_input(compute, linear, dy, Start::ACCUMULATE, d_values);
        };
        quantize::forward(compute, params, values, copy);
        team::add_linear(compute, batch, Rows::Tokens, (copy, dy), gradients);
        linear::backward_input(compute, linear, dy, Start::ZERO, d_copy);
        quantize::backward(compute, params, values, d_copy);
        compute.add_scaled(1.0, d_copy, d_values);
    }
}

impl Bert {
    /// Adds the gradient of the loss to `gradients`, which has the layout of the weights. [`Bert::forward`] with the same
    /// arguments and [`Bert::loss`] must have been called before.
    pub fn backward(
        &self,
        pass: Pass<'_>,
        activations: &Activations,
        buffers: &mut BackwardBuffers,
        gradients: &mut [f32],
    ) {
        self.backward_with(pass, None, activations, buffers, gradients);
    }

    /// [`Bert::backward`] with a teacher's terms in the loss. The gradient of the logits in `buffers` must include those
    /// terms already.
    pub fn backward_with(
        &self,
        pass: Pass<'_>,
        teacher: Option<SoftTargets<'_>>,
        activations: &Activations,
        buffers: &mut BackwardBuffers,
        gradients: &mut [f32],
    ) {
        let given = Given { pass, teacher, activations };
        self.head_backward(given, buffers, gradients);
        for layer in (0..self.config.layers).rev() {
            add_hidden_gradient(given, layer + 1, &mut buffers.d_hidden);
            self.layer_backward(given, layer, buffers, gradients);
        }
        add_hidden_gradient(given, 0, &mut buffers.d_hidden);
        self.embedding_backward(given, buffers, gradients);
    }

    /// Gives every rank the gradients of the matrices, once the passes over the parts of the batches are done.
    pub fn share_gradients(&self, compute: &Compute, gradients: &mut [f32]) {
        let Some(ranks) = compute.ranks() else { return };
        let place = |span: &LinearSpan| (span.weight.clone(), span.bias.clone(), span.outputs);
        team::share_gradients(ranks, &self.spans.linears().map(place).collect::<Vec<_>>(), gradients);
    }

    /// Adds the gradient of one layer's weights, where the loss is the mean square of what its output differs from `target` by.
    /// [`Bert::layer_output`] with the same arguments must have been called before, with buffers for training.
    pub fn fit_backward(
        &self,
        pass: Pass<'_>,
        layer: usize,
        target: &[f32],
        activations: &Activations,
        buffers: &mut BackwardBuffers,
        gradients: &mut [f32],
    ) {
        buffers.resize(&self.config, pass.batch, activations);
        let given = Given { pass: Pass { mode: Mode::Evaluate, ..pass }, teacher: None, activations };
        buffers.d_hidden.fill(0.0);
        let factor = (2.0 / target.len().max(1) as f64) as f32;
        distill::add_difference(pass.compute, factor, &activations.hidden[layer + 1], target, &mut buffers.d_hidden);
        self.layer_backward(given, layer, buffers, gradients);
    }

    /// From the gradient of a layer's output in `d_hidden` to that of its input, in the same place.
    fn layer_backward(&self, given: Given<'_>, layer: usize, buffers: &mut BackwardBuffers, gradients: &mut [f32]) {
        match self.config.family.norm_placement {
            NormPlacement::AfterResidual => {
                self.feed_forward_backward(given, layer, buffers, gradients);
                self.attention_backward(given, layer, buffers, gradients);
            }
            NormPlacement::BeforeSublayer => self.norm_before_backward(given, layer, buffers, gradients),
        }
    }

    /// From the gradient of the logits to that of the encoder's output.
    fn head_backward(&self, given: Given<'_>, buffers: &mut BackwardBuffers, gradients: &mut [f32]) {
        let Given { pass: Pass { compute, weights, batch, mode }, activations, .. } = given;
        let BackwardBuffers { d_hidden, d_sum, d_logits, d_head_input, d_pooled, .. } = buffers;
        match (&self.spans.head, self.sentence_vector(batch)) {
            (Some(head), _) => {
                let own = linear_gradients(gradients, head);
                let rows = if self.layout.head_class().reads_every_token() { Rows::Tokens } else { Rows::Sequences };
                team::add_linear(compute, batch, rows, (&activations.head_input, d_logits), own);
                linear::backward_input(compute, linear_at(weights, head), d_logits, Start::ZERO, d_head_input);
                if let Some(dropout) = self.dropout(batch, mode, Place::Head) {
                    dropout.apply(compute, d_head_input);
                }
                let pooler = self.pooler(compute, weights, batch, mode).zip(self.spans.pooler.as_ref());
                match pooler {
                    Some((pooler, span)) if self.layout.head_class().reads_pooler() => {
                        let saved = pooler::Saved::of(activations);
                        if let Some(span) = &self.spans.pooler_norm {
                            pooler.norm_backward(saved, norm_gradients(gradients, span), d_head_input, d_pooled);
                        }
                        pooler.backward(saved, d_head_input, d_pooled, linear_gradients(gradients, span), d_hidden);
                    }
                    _ => d_hidden.copy_from_slice(d_head_input),
                }
            }
            (None, Some(vectors)) => vectors.backward(activations.last_hidden(&self.config), d_logits, d_hidden),
            (None, None) => d_hidden.fill(0.0),
        }
        if let Some(span) = &self.spans.final_norm {
            let (norm, gamma) = (norm_gradients(gradients, span), &weights[span.gamma.clone()]);
            team::norm_backward(
                compute,
                batch,
                Rows::Tokens,
                (gamma, &activations.final_norm),
                (d_hidden, d_sum),
                norm,
            );
            d_hidden.copy_from_slice(d_sum);
        }
    }

    /// The second half of a layer: from the gradient of its output in `d_hidden` to that of its middle in `d_middle`.
    fn feed_forward_backward(
        &self,
        given: Given<'_>,
        layer: usize,
        buffers: &mut BackwardBuffers,
        gradients: &mut [f32],
    ) {
        let Given { pass: Pass { compute, weights, batch, mode }, activations, .. } = given;
        let (spans, kept) = (&self.spans.layers[layer], &activations.layers[layer]);
        let BackwardBuffers { d_hidden, d_sum, d_dropped, d_middle, d_inner, d_gated, .. } = buffers;

        // y = LayerNorm(dropout(W₂·inner + b₂) + middle)
        let norm = norm_gradients(gradients, &spans.output_norm);
        let gamma = &weights[spans.output_norm.gamma.clone()];
        team::norm_backward(compute, batch, Rows::Tokens, (gamma, &kept.output), (d_hidden, d_middle), norm);
        let mask = self.dropout(batch, mode, Place::Output(layer));
        let d_output = dropout::backward(compute, mask, d_middle, d_dropped);
        team::add_linear(
            compute,
            batch,
            Rows::Tokens,
            (&kept.inner, d_output),
            linear_gradients(gradients, &spans.output),
        );
        linear::backward_input(compute, linear_at(weights, &spans.output), d_output, Start::ZERO, d_inner);

        // inner = activation(W₁·middle + b₁)
        if let Some(dropout) = self.dropout(batch, mode, Place::Inner(layer)) {
            dropout.apply(compute, d_inner);
        }
        let d_u = self.activation_backward(compute, &kept.slope, d_inner, d_gated);
        let params = kept.quantized.as_ref().map(|notes| notes.middle);
        let input = ResidualInput { values: &kept.middle, params, copy: d_sum, d_copy: d_dropped };
        let span = &spans.intermediate;
        input.backward((compute, batch), linear_at(weights, span), linear_gradients(gradients, span), d_u, d_middle);
    }

    /// The first half of a layer: from the gradient of its middle in `d_middle` to that of its input in `d_hidden`.
    fn attention_backward(&self, given: Given<'_>, layer: usize, buffers: &mut BackwardBuffers, gradients: &mut [f32]) {
        let Given { pass: Pass { compute, weights, batch, mode }, activations, .. } = given;
        let (spans, kept) = (&self.spans.layers[layer], &activations.layers[layer]);
        let BackwardBuffers { d_hidden, d_sum, d_dropped, d_middle, d_qkv, scratch, .. } = buffers;

        // middle = LayerNorm(dropout(W_o·context + b_o) + input)
        if let Some(span) = &spans.attention_norm {
            let (norm, gamma) = (norm_gradients(gradients, span), &weights[span.gamma.clone()]);
            team::norm_backward(compute, batch, Rows::Tokens, (gamma, &kept.attention), (d_middle, d_hidden), norm);
        }
        let mask = self.dropout(batch, mode, Place::AttentionOutput(layer));
        let d_projected = dropout::backward(compute, mask, d_hidden, d_dropped);
        let projection = linear_gradients(gradients, &spans.attention_output);
        team::add_linear(compute, batch, Rows::Tokens, (&kept.context, d_projected), projection);
        linear::backward_input(compute, linear_at(weights, &spans.attention_output), d_projected, Start::ZERO, d_sum);

        // context = attention(W_qkv·input + b_qkv); d_sum holds the context's gradient.
        self.attention_core_backward(given, layer, batch, d_sum, scratch, d_qkv, gradients);
        let params = kept.quantized.as_ref().map(|notes| notes.input);
        let input = ResidualInput { values: &activations.hidden[layer], params, copy: d_sum, d_copy: d_dropped };
        let span = &spans.attention_inputs;
        input.backward((compute, batch), linear_at(weights, span), linear_gradients(gradients, span), d_qkv, d_hidden);
    }

    /// From the gradient of the context in `d_context` to that of the product of query, key and value.
    #[allow(clippy::too_many_arguments, reason = "three buffers of one backward pass, taken apart by the caller")]
    pub(super) fn attention_core_backward(
        &self,
        given: Given<'_>,
        layer: usize,
        batch: &Batch,
        d_context: &mut [f32],
        scratch: &mut [f32],
        d_qkv: &mut [f32],
        gradients: &mut [f32],
    ) {
        let Given { pass: Pass { compute, mode, .. }, teacher, activations } = given;
        let kept = &activations.layers[layer];
        if let Some(notes) = &kept.quantized {
            quantize::backward_passed(compute, &notes.context_passed, d_context);
        }
        let rows = (batch.whole().tokens() * self.config.heads) as f64;
        let treatment = attention::Treatment {
            dropout: self.dropout(batch, mode, Place::Probabilities(layer)),
            quantized: kept.quantized.as_ref().map(|notes| notes.attention),
            teacher: teacher.map(|soft| {
                let LayerActivations { qkv, probabilities, .. } = &soft.teacher.layers[layer];
                attention::Teacher { qkv, probabilities, weight: (soft.attention / rows) as f32 }
            }),
            bias: activations.bias.as_ref(),
        };
        let (qkv, probabilities) = (&kept.qkv, &kept.probabilities);
        let d_bias = self.spans.relative_bias.clone().map(|span| attention::BiasGradient {
            bias: self.config.family.relative_bias,
            table: &mut gradients[span],
        });
        let core = attention::BackwardBuffers { qkv, probabilities, d_context, scratch, d_qkv: &mut *d_qkv, d_bias };
        attention::backward_with(compute, self.heads(layer), batch, treatment, core);
        if let Some(notes) = &kept.quantized {
            quantize::backward_passed(compute, &notes.qkv_passed, d_qkv);
        }
        let rotary = self.rotary_of(&activations.rotary, layer);
        self.rotate(compute, rotary, Turn::Back, &activations.position_rows, d_qkv);
    }

    /// From the gradient of the first layer's input to those of the embedding tables.
    fn embedding_backward(&self, given: Given<'_>, buffers: &mut BackwardBuffers, gradients: &mut [f32]) {
        let Given { pass: Pass { compute, weights, batch, mode }, activations, .. } = given;
        let BackwardBuffers { d_hidden, d_sum, d_embedded: [d_embedded, d_embedded_sum], .. } = buffers;
        let (d_out, d_sum) = match &self.spans.projection {
            None => (d_hidden, d_sum),
            Some(span) => {
                let projection = linear_gradients(gradients, span);
                team::add_linear(compute, batch, Rows::Tokens, (&activations.embedded, d_hidden), projection);
                linear::backward_input(compute, linear_at(weights, span), d_hidden, Start::ZERO, d_embedded);
                (d_embedded, d_embedded_sum)
            }
        };
        if let Some(dropout) = self.dropout(batch, mode, Place::Embedding) {
            dropout.apply(compute, d_out);
        }
        let span = &self.spans.embedding_norm;
        let gamma = &weights[span.gamma.clone()];
        let norm = norm_gradients(gradients, span);
        team::norm_backward(compute, batch, Rows::Tokens, (gamma, &activations.embedding), (d_out, d_sum), norm);
        let [word, position, token_type] = self.spans.embeddings.clone();
        // The tables are the first parameters, next to each other.
        let end = token_type.end.max(position.end).max(word.end);
        let (word, rest) = gradients[word.start..end].split_at_mut(word.len());
        let (position, token_type) = rest.split_at_mut(position.len());
        let mut tables = embedding::TableGradients { word, position, token_type };
        match Team::of(compute, batch) {
            None => embedding::backward(compute, batch, &activations.position_rows, d_sum, &mut tables),
            Some(team) => {
                let (whole, d_sum) = (batch.whole(), team.rows(Rows::Tokens, d_sum));
                let positions: Vec<u32> = self.position_rows(whole).collect();
                embedding::backward(compute, whole, &positions, &d_sum, &mut tables);
            }
        }
    }
}
