//! The forward pass.

use std::ops::Range;

use qbert_kernels::{Compute, LayerNorm, Rotary, Turn};
use qbert_model::family::NormPlacement;

use super::integers::LayerIntegers;
use super::{Activations, Bert, Integers, LayerActivations, LinearSpan, Mode, NormSpan, Pass, Place};
use crate::batch::Batch;
use crate::ops::linear::{self, Linear};
use crate::ops::{attention, embedding, residual_norm};

/// The weights of a linear layer in the flat array.
pub(super) fn linear_at<'a>(weights: &'a [f32], span: &LinearSpan) -> Linear<'a> {
    Linear { weight: &weights[span.weight.clone()], bias: &weights[span.bias.clone()], outputs: span.outputs }
}

impl Bert {
    pub(super) fn norm_at<'a>(&'a self, weights: &'a [f32], span: &NormSpan) -> LayerNorm<'a> {
        let gamma = &weights[span.gamma.clone()];
        let beta = if span.beta.is_empty() { &self.zeros[..gamma.len()] } else { &weights[span.beta.clone()] };
        LayerNorm { gamma, beta, epsilon: self.config.layer_norm_eps }
    }

    /// The row of the position table of each token.
    pub(super) fn position_rows<'a>(&'a self, batch: &'a Batch) -> impl Iterator<Item = u32> + 'a {
        let of_sequence = |range: Range<usize>| self.config.position_rows_of(&batch.input_ids[range]);
        batch.ranges().flat_map(of_sequence).map(|row| row as u32)
    }

    /// Resizes the buffers for a batch, and computes what all layers share.
    fn prepare(&self, pass: Pass<'_>, activations: &mut Activations) {
        let Pass { weights, batch, .. } = pass;
        let pooler = self.spans.pooler.is_some();
        activations.resize(&self.config, self.layout.head(), self.outputs, pooler, batch);
        activations.position_rows.clear();
        activations.position_rows.extend(self.position_rows(batch));
        let longest = batch.ranges().map(|range| range.len()).max().unwrap_or(0);
        activations.bias =
            self.spans.relative_bias.clone().map(|span| self.config.distance_bias(&weights[span], longest));
        for theta in (0..self.config.layers).filter_map(|layer| self.config.attention_of(layer).theta) {
            if activations.rotary.iter().all(|rotary| rotary.theta() != theta) {
                activations.rotary.push(Rotary::new(theta, self.config.head_size()));
            }
        }
        activations.rotary.iter_mut().for_each(|rotary| rotary.extend(longest));
    }

    /// Computes hidden states and logits of a batch into `activations`.
    ///
    /// # Panics
    /// If the batch does not fit the model: [`Bert::check`] it first.
    pub fn forward(
        &self,
        compute: &Compute,
        weights: &[f32],
        batch: &Batch,
        mode: Mode,
        activations: &mut Activations,
    ) {
        self.forward_with(Pass { compute, weights, batch, mode }, None, activations);
    }

    /// [`Bert::forward`] with quantized activations where `integers` are given; [`Bert::backward`] then takes that into
    /// account.
    ///
    /// # Panics
    /// As [`Bert::forward`].
    pub fn forward_with(&self, pass: Pass<'_>, integers: Option<Integers<'_>>, activations: &mut Activations) {
        let Pass { compute, weights, batch, mode } = pass;
        self.prepare(pass, activations);
        activations.resize_quantized(integers.is_some(), batch.tokens(), &self.config);
        self.embed(compute, weights, batch, mode, activations);
        let mut integers = integers;
        for layer in 0..self.config.layers {
            let integers =
                integers.as_mut().map(|own| Integers { activations: &mut *own.activations, weights: own.weights });
            self.layer_forward(pass, layer, integers, activations);
        }
        self.head_forward(compute, weights, batch, mode, activations);
    }

    /// The hidden state that enters the first layer, without dropout.
    ///
    /// # Panics
    /// As [`Bert::forward`].
    pub fn embedded(&self, pass: Pass<'_>, activations: &mut Activations) -> Vec<f32> {
        self.prepare(pass, activations);
        self.embed(pass.compute, pass.weights, pass.batch, Mode::Evaluate, activations);
        activations.hidden[0].clone()
    }

    /// The hidden state after `layers`, from the one before them, in full precision and without dropout.
    ///
    /// # Panics
    /// If the batch does not fit the model or the input is not its hidden state.
    pub fn layers_forward<'a>(
        &self,
        pass: Pass<'_>,
        layers: Range<usize>,
        input: &[f32],
        activations: &'a mut Activations,
    ) -> &'a [f32] {
        self.prepare(pass, activations);
        activations.resize_quantized(false, pass.batch.tokens(), &self.config);
        let (from, to) = (activations.hidden_index(layers.start), activations.hidden_index(layers.end));
        activations.hidden[from].copy_from_slice(input);
        for layer in layers {
            self.layer_forward(pass, layer, None, activations);
        }
        &activations.hidden[to]
    }

    /// The hidden state after one layer, from the one before it, without dropout; with quantized activations where `integers`
    /// are given.
    ///
    /// # Panics
    /// As [`Bert::layers_forward`].
    pub fn layer_output<'a>(
        &self,
        pass: Pass<'_>,
        layer: usize,
        input: &[f32],
        integers: Option<Integers<'_>>,
        activations: &'a mut Activations,
    ) -> &'a [f32] {
        let pass = Pass { mode: Mode::Evaluate, ..pass };
        self.prepare(pass, activations);
        activations.resize_quantized(integers.is_some(), pass.batch.tokens(), &self.config);
        let (from, to) = (activations.hidden_index(layer), activations.hidden_index(layer + 1));
        activations.hidden[from].copy_from_slice(input);
        self.layer_forward(pass, layer, integers, activations);
        &activations.hidden[to]
    }

    /// The logits from the hidden state before `layer`, in full precision and without dropout.
    ///
    /// # Panics
    /// As [`Bert::layers_forward`].
    pub fn forward_from(&self, pass: Pass<'_>, layer: usize, input: &[f32], activations: &mut Activations) {
        let pass = Pass { mode: Mode::Evaluate, ..pass };
        self.layers_forward(pass, layer..self.config.layers, input, activations);
        self.head_forward(pass.compute, pass.weights, pass.batch, pass.mode, activations);
    }

    /// `hidden[0] = dropout(LayerNorm(word + position + type))`, through the projection where there is one.
    fn embed(&self, compute: &Compute, weights: &[f32], batch: &Batch, mode: Mode, activations: &mut Activations) {
        let [word, position, token_type] = self.spans.embeddings.clone().map(|span| &weights[span]);
        let tables = embedding::Tables { word, position, token_type };
        let Activations { embedding: saved, embedded, hidden, position_rows, .. } = activations;
        embedding::forward(compute, tables, batch, position_rows, &mut saved.sum);
        let norm = self.norm_at(weights, &self.spans.embedding_norm);
        let out = if self.spans.projection.is_some() { &mut *embedded } else { &mut hidden[0] };
        residual_norm::forward(compute, norm, None, None, saved, out);
        if let Some(dropout) = self.dropout(batch, mode, Place::Embedding) {
            dropout.apply(compute, out);
        }
        if let Some(span) = &self.spans.projection {
            linear::forward(compute, linear_at(weights, span), embedded, &mut hidden[0]);
        }
    }

    fn layer_forward(
        &self,
        pass: Pass<'_>,
        layer: usize,
        integers: Option<Integers<'_>>,
        activations: &mut Activations,
    ) {
        match self.config.family.norm_placement {
            NormPlacement::AfterResidual => self.norm_after_forward(pass, layer, integers, activations),
            NormPlacement::BeforeSublayer => self.norm_before_forward(pass, layer, integers, activations),
        }
    }

    /// How a layer turns its queries and keys; `None` where positions are not rotary.
    pub(super) fn rotary_of<'a>(&self, activations: &'a [Rotary], layer: usize) -> Option<&'a Rotary> {
        let theta = self.config.attention_of(layer).theta?;
        activations.iter().find(|rotary| rotary.theta() == theta)
    }

    /// Turns queries and keys in `[T, 3H]`, or their gradients back.
    pub(super) fn rotate(
        &self,
        compute: &Compute,
        rotary: Option<&Rotary>,
        turn: Turn,
        positions: &[u32],
        qkv: &mut [f32],
    ) {
        if let Some(rotary) = rotary {
            let hidden = self.config.hidden_size;
            compute.rotate(rotary, turn, positions, qkv, (3 * hidden, 2 * hidden));
        }
    }

    /// A layer whose sublayers end in a norm.
    fn norm_after_forward(
        &self,
        pass: Pass<'_>,
        layer: usize,
        integers: Option<Integers<'_>>,
        activations: &mut Activations,
    ) {
        let Pass { compute, weights, batch, mode } = pass;
        let spans = &self.spans.layers[layer];
        let (from, to) = (activations.hidden_index(layer), activations.hidden_index(layer + 1));
        let kept = activations.layer_index(layer);
        let Activations {
            hidden,
            layers,
            pre_activation,
            scratch,
            keep,
            curvature,
            quantized: buffers,
            bias,
            rotary,
            position_rows,
            ..
        } = activations;
        let rotary = self.rotary_of(rotary, layer);
        let rotate = |qkv: &mut [f32]| self.rotate(compute, rotary, Turn::Forward, position_rows, qkv);
        // The input is read and the output written: two different buffers of one list.
        let mut output = std::mem::take(&mut hidden[to]);
        let input = &hidden[from];
        let layer_activations = &mut layers[kept];
        let LayerActivations { qkv, probabilities, context, attention, middle, inner, slope, .. } = layer_activations;
        let saved_output = &mut layer_activations.output;
        let pre_activation = if *curvature { &mut layer_activations.pre_activation } else { pre_activation };
        let mut integers = integers.map(|Integers { activations: source, weights }| {
            let notes = layer_activations.quantized.get_or_insert_default();
            let stored = self.config.weights_of(layer);
            LayerIntegers { source, weights, buffers, notes, compute, layer, stored, tokens: batch.tokens() }
        });

        let linear = linear_at(weights, &spans.attention_inputs);
        let quantized = match &mut integers {
            Some(integers) => Some(integers.attention_inputs(input, linear, rotate, qkv)),
            None => {
                linear::forward(compute, linear, input, qkv);
                rotate(qkv);
                None
            }
        };
        let dropout = self.dropout(batch, mode, Place::Probabilities(layer));
        let treatment = attention::Treatment { dropout, quantized, teacher: None, bias: bias.as_ref() };
        let buffers = attention::ForwardBuffers { probabilities, scratch, context };
        attention::forward_with(compute, self.heads(layer), batch, treatment, qkv, buffers);

        let linear = linear_at(weights, &spans.attention_output);
        match &mut integers {
            Some(integers) => integers.attention_output(qkv, context, linear, &mut attention.sum),
            None => linear::forward(compute, linear, context, &mut attention.sum),
        }
        // Every layer of this kind has the norm.
        if let Some(span) = &spans.attention_norm {
            let (norm, dropout) =
                (self.norm_at(weights, span), self.dropout(batch, mode, Place::AttentionOutput(layer)));
            residual_norm::forward(compute, norm, dropout, Some(input), attention, middle);
        }

        let linear = linear_at(weights, &spans.intermediate);
        match &mut integers {
            Some(integers) => integers.intermediate(middle, linear, pre_activation),
            None => linear::forward(compute, linear, middle, pre_activation),
        }
        let slope_target = keep.then_some(&mut slope[..]);
        self.activate(compute, pre_activation, inner, slope_target);
        if let Some(dropout) = self.dropout(batch, mode, Place::Inner(layer)) {
            dropout.apply(compute, inner);
        }
        let linear = linear_at(weights, &spans.output);
        match &mut integers {
            Some(integers) => {
                integers.output(inner, slope, self.config.family.feed_forward, linear, &mut saved_output.sum);
            }
            None => linear::forward(compute, linear, inner, &mut saved_output.sum),
        }
        let norm = self.norm_at(weights, &spans.output_norm);
        let dropout = self.dropout(batch, mode, Place::Output(layer));
        residual_norm::forward(compute, norm, dropout, Some(middle), saved_output, &mut output);
        hidden[to] = output;
    }

    /// The norm after the last layer, pooler (hidden states → linear → activation), dropout, head; without a head, the
    /// vectors of texts.
    fn head_forward(
        &self,
        compute: &Compute,
        weights: &[f32],
        batch: &Batch,
        mode: Mode,
        activations: &mut Activations,
    ) {
        let last = activations.hidden_index(self.config.layers);
        let Activations {
            hidden,
            final_norm,
            encoded,
            first_tokens,
            pooled,
            pooler_activation,
            pooler_norm,
            head_input,
            logits,
            ..
        } = activations;
        let encoded = match &self.spans.final_norm {
            None => &hidden[last],
            Some(span) => {
                final_norm.sum.copy_from_slice(&hidden[last]);
                residual_norm::forward(compute, self.norm_at(weights, span), None, None, final_norm, encoded);
                &*encoded
            }
        };
        if let Some(pooler) = self.pooler(compute, weights, batch, mode) {
            pooler.forward(encoded, first_tokens, pooler_activation, pooler_norm, pooled);
        }
        if let Some(vectors) = self.sentence_vector(batch) {
            vectors.forward(encoded, logits);
        }
        let Some(head) = &self.spans.head else { return };
        let source = if self.layout.head_class().reads_pooler() { &pooled[..] } else { &encoded[..] };
        head_input.copy_from_slice(source);
        if let Some(dropout) = self.dropout(batch, mode, Place::Head) {
            dropout.apply(compute, head_input);
        }
        linear::forward(compute, linear_at(weights, head), head_input, logits);
    }
}
