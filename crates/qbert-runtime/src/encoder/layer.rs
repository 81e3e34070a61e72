//! An encoder layer with quantized activations.

use qbert_kernels::int::{
    AttentionInput, Codes, LinearInput, LinearLayer, LinearOutput, NormOutput, PackedWeights, Quantizer,
};
use qbert_kernels::{MatMut, Rotary, Turn};
use qbert_model::family::FeedForward;
use qbert_model::packed::PackedSite;
use qbert_quant::Site;

use super::Encoder;
use super::floats::{keep_rows, rotary_of};
use crate::state::{CodeBuffers, FloatBuffers, State, room};
use crate::weights::{Floats, Layer, LayerWeights, Linear, Quantizers};

/// Codes to be written, and how they are made.
pub(super) struct CodesOutput<'a> {
    pub(super) codes: &'a mut Codes,
    pub(super) quantizer: Quantizer,
}

impl Encoder {
    /// Computes one layer from the hidden state and its codes. Codes of the result are made with `next`, the quantizer
    /// of the next layer's input, if there is one.
    pub(super) fn layer_in_codes(
        &self,
        layer: &Layer,
        own: &Quantizers,
        next: Option<Quantizer>,
        only_first: bool,
        state: &mut State,
    ) {
        let config = self.model.config();
        let (rows, width) = (state.shape.rows, state.shape.width);
        let State { hidden, codes, floats, offsets, shape, positions, rotary, .. } = state;
        let rotary = rotary_of(rotary, layer);
        self.attention_in_codes(layer, own, rows, (rotary, positions), offsets, codes, floats);
        let CodeBuffers { input, context, middle, inner, .. } = codes;
        let layer = &layer.weights;
        if only_first {
            let starts = &offsets[..offsets.len() - 1];
            context.keep_rows(starts);
            keep_rows(hidden, width, starts);
            shape.rows = starts.len();
        }
        let rows = shape.rows;
        middle.resize(rows);
        inner.resize(rows);
        let hidden = &mut hidden[..rows * width];
        if let Some(norm) = &layer.attention_norm {
            let (norm, codes) = (norm.with(config.layer_norm_eps), Some((&mut *middle, own.middle)));
            let read = LinearInput { codes: context, quantizer: own.context };
            self.add_and_norm(&layer.attention_output, read, NormOutput { norm, hidden: &mut *hidden, codes }, floats);
        }
        let read = LinearInput { codes: middle, quantizer: own.middle };
        let target = CodesOutput { codes: inner, quantizer: own.inner };
        self.to_activation(&layer.intermediate, read, target, floats);
        let norm = layer.output_norm.with(config.layer_norm_eps);
        let codes = next.map(|next| {
            input.resize(rows);
            (&mut *input, next)
        });
        let read = LinearInput { codes: inner, quantizer: own.inner };
        self.add_and_norm(&layer.output, read, NormOutput { norm, hidden, codes }, floats);
    }

    /// From the codes of what the attention reads to those of its context.
    #[allow(clippy::too_many_arguments, reason = "parts of one state, taken apart by the caller")]
    pub(super) fn attention_in_codes(
        &self,
        layer: &Layer,
        own: &Quantizers,
        rows: usize,
        turned: (Option<&Rotary>, &[u32]),
        offsets: &[usize],
        codes: &mut CodeBuffers,
        floats: &mut FloatBuffers,
    ) {
        let CodeBuffers { input, query, key, value, context, .. } = codes;
        for codes in [&mut *query, &mut *key, &mut *value, &mut *context] {
            codes.resize(rows);
        }
        let targets = [&mut *query, &mut *key, &mut *value];
        match turned {
            (None, _) => self.attention_inputs(&layer.weights, own, input, targets, floats),
            (Some(rotary), positions) => {
                self.turned_attention_inputs(&layer.weights, own, input, (rotary, positions), targets, floats);
            }
        }
        let [query_by, key_by, value_by] = own.attention;
        let attention = AttentionInput {
            query: (query, query_by),
            key: (key, key_by),
            value: (value, value_by),
            heads: self.model.config().heads,
            starts: offsets,
            bias: self.weights.bias.as_ref(),
            window: layer.window(),
        };
        self.compute.attention(&attention, context, own.context);
    }

    /// Query, key and value where queries and keys are turned by their positions before they are quantized.
    fn turned_attention_inputs(
        &self,
        layer: &LayerWeights,
        own: &Quantizers,
        input: &Codes,
        (rotary, positions): (&Rotary, &[u32]),
        targets: [&mut Codes; 3],
        floats: &mut FloatBuffers,
    ) {
        let source = LinearInput { codes: input, quantizer: own.input };
        for (index, ((linear, target), by)) in layer.attention.iter().zip(targets).zip(own.attention).enumerate() {
            let (rows, width) = (target.rows(), target.cols());
            let is_value = index == 2;
            match self.packed(linear) {
                Some((weights, params)) if is_value => {
                    let output = LinearOutput::Codes(target, by);
                    self.compute.linear(source, [LinearLayer { weights, params, output }]);
                    continue;
                }
                Some((weights, params)) => {
                    let result = room(&mut floats.result, rows * width);
                    let output = LinearOutput::Float(MatMut::new(result, rows, width));
                    self.compute.linear(source, [LinearLayer { weights, params, output }]);
                }
                None => self.multiply_values(linear, source, floats),
            }
            let values = &mut floats.result[..rows * width];
            if !is_value {
                self.compute.rotate(rotary, Turn::Forward, positions, values, (width, width));
            }
            self.compute.quantize(values, target, by);
        }
    }

    /// `hidden += linear(input)`
    pub(super) fn add(&self, linear: &Linear, input: LinearInput<'_>, hidden: &mut [f32], floats: &mut FloatBuffers) {
        match self.packed(linear) {
            Some((weights, params)) => {
                let rows = input.codes.rows();
                let width = hidden.len() / rows.max(1);
                let target = MatMut::new(hidden, rows, width);
                let layer = LinearLayer { weights, params, output: LinearOutput::Add(target) };
                self.compute.linear(input, [layer]);
            }
            None => {
                self.multiply_values(linear, input, floats);
                self.compute.add_scaled(1.0, &floats.result[..hidden.len()], hidden);
            }
        }
    }

    /// Query, key and value: in one go where all three are codes.
    fn attention_inputs(
        &self,
        layer: &LayerWeights,
        own: &Quantizers,
        input: &Codes,
        targets: [&mut Codes; 3],
        floats: &mut FloatBuffers,
    ) {
        let source = LinearInput { codes: input, quantizer: own.input };
        let [query, key, value] = &layer.attention;
        let packed = [query, key, value].map(|linear| self.packed(linear));
        if let [Some(query), Some(key), Some(value)] = packed {
            let mut outputs = targets.into_iter().zip(own.attention).map(|(codes, by)| LinearOutput::Codes(codes, by));
            let mut job = |(weights, params)| outputs.next().map(|output| LinearLayer { weights, params, output });
            if let (Some(query), Some(key), Some(value)) = (job(query), job(key), job(value)) {
                self.compute.linear(source, [query, key, value]);
            }
            return;
        }
        for ((linear, target), by) in layer.attention.iter().zip(targets).zip(own.attention) {
            match self.packed(linear) {
                Some((weights, params)) => {
                    let output = LinearOutput::Codes(target, by);
                    self.compute.linear(source, [LinearLayer { weights, params, output }]);
                }
                None => {
                    self.multiply_values(linear, source, floats);
                    let length = target.rows() * target.cols();
                    self.compute.quantize(&floats.result[..length], target, by);
                }
            }
        }
    }

    /// `hidden = LayerNorm(hidden + linear(input))`, and its codes where they are needed.
    fn add_and_norm(&self, linear: &Linear, input: LinearInput<'_>, output: NormOutput<'_>, floats: &mut FloatBuffers) {
        match self.packed(linear) {
            Some((weights, params)) => self.compute.linear_norm(input, weights, params, output),
            None => {
                self.multiply_values(linear, input, floats);
                self.compute.add_scaled(1.0, &floats.result[..output.hidden.len()], output.hidden);
                self.compute.norm_to_codes(output);
            }
        }
    }

    /// `target = activation(linear(input))`, quantized.
    pub(super) fn to_activation(
        &self,
        linear: &Linear,
        input: LinearInput<'_>,
        target: CodesOutput<'_>,
        floats: &mut FloatBuffers,
    ) {
        let CodesOutput { codes, quantizer } = target;
        let activation = self.model.config().activation;
        if self.model.config().family.feed_forward == FeedForward::Gated {
            let outputs = codes.rows() * 2 * codes.cols();
            match self.packed(linear) {
                Some((weights, params)) => {
                    let result = room(&mut floats.result, outputs);
                    let output = LinearOutput::Float(MatMut::new(result, codes.rows(), 2 * codes.cols()));
                    self.compute.linear(input, [LinearLayer { weights, params, output }]);
                }
                None => self.multiply_values(linear, input, floats),
            }
            return self.compute.gate_to_codes(activation, &floats.result[..outputs], codes, quantizer);
        }
        match self.packed(linear) {
            Some((weights, params)) => {
                let output = LinearOutput::Activated(activation, codes, quantizer);
                self.compute.linear(input, [LinearLayer { weights, params, output }]);
            }
            None => {
                self.multiply_values(linear, input, floats);
                let length = codes.rows() * codes.cols();
                let values = room(&mut floats.read, length);
                self.activate(&floats.result[..length], values);
                self.compute.quantize(values, codes, quantizer);
            }
        }
    }

    /// The codes of a layer in integers; `None` for one in f32.
    fn packed<'a>(&'a self, linear: &'a Linear) -> Option<(PackedWeights<'a>, &'a qbert_kernels::int::LinearParams)> {
        let Linear::Codes { site, params } = linear else { return None };
        self.packed_site(*site).map(|weights| (weights, params))
    }

    fn packed_site(&self, site: Site) -> Option<PackedWeights<'_>> {
        match self.model.site(site) {
            Some(PackedSite::Matrix(weights, _)) => Some(weights),
            _ => None,
        }
    }

    /// An f32 layer on the values of codes; writes the result to `floats.result`.
    fn multiply_values(&self, linear: &Linear, input: LinearInput<'_>, floats: &mut FloatBuffers) {
        let Linear::Floats { values, bias, neurons } = linear else { return };
        let FloatBuffers { read, result, .. } = floats;
        let LinearInput { codes, quantizer } = input;
        let read = room(read, codes.rows() * codes.cols());
        self.compute.dequantize(codes, quantizer, read);
        self.multiply(values, bias, *neurons, read, room(result, codes.rows() * neurons));
    }

    /// `out = read · Wᵀ + b`.
    pub(super) fn multiply(&self, values: &Floats, bias: &[f32], neurons: usize, read: &[f32], out: &mut [f32]) {
        super::floats::multiply(&self.compute, &values.get(&self.model), bias, neurons, read, out);
    }
}
