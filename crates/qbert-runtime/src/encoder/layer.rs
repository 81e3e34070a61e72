//! An encoder layer with quantized activations.

use qbert_kernels::LayerNorm;
use qbert_kernels::int::{
    AttentionInput, Codes, LinearInput, LinearLayer, LinearOutput, NormOutput, PackedWeights, Quantizer,
};
use qbert_model::family::Activation;
use qbert_model::packed::PackedSite;
use qbert_quant::Site;

use super::Encoder;
use super::floats::keep_rows;
use crate::state::{CodeBuffers, FloatBuffers, State, room};
use crate::weights::{Floats, Layer, Linear, Quantizers};

/// The f32 side of a layer that has codes.
struct Rest<'a> {
    hidden: &'a mut [f32],
    floats: &'a mut FloatBuffers,
}

impl Encoder {
    /// One layer; `input` codes and hidden state are there. `quantizers` are this layer's and the next one's.
    pub(super) fn layer_in_codes(
        &self,
        layer: &Layer,
        (own, next): (&Quantizers, Option<Quantizers>),
        only_first: bool,
        state: &mut State,
    ) {
        let config = self.model.config();
        let (rows, width) = (state.shape.rows, state.shape.width);
        let State { hidden, codes, floats, offsets, shape, .. } = state;
        let CodeBuffers { input, query, key, value, context, middle, inner } = codes;
        for codes in [&mut *query, &mut *key, &mut *value, &mut *context] {
            codes.resize(rows);
        }
        self.attention_inputs(layer, (input, own), [&mut *query, &mut *key, &mut *value], floats);
        let [query_by, key_by, value_by] = own.attention;
        let attention = AttentionInput {
            query: (query, query_by),
            key: (key, key_by),
            value: (value, value_by),
            heads: config.heads,
            starts: offsets,
        };
        self.compute.attention(&attention, context, own.context);
        if only_first {
            let starts = &offsets[..offsets.len() - 1];
            context.keep_rows(starts);
            keep_rows(hidden, width, starts);
            shape.rows = starts.len();
        }
        let rows = shape.rows;
        middle.resize(rows);
        inner.resize(rows);
        let mut rest = Rest { hidden: &mut hidden[..rows * width], floats };
        let norm = layer.attention_norm.with(config.layer_norm_eps);
        let target = Some((&mut *middle, own.middle));
        self.add_and_norm(&layer.attention_output, (context, own.context), (norm, target), &mut rest);
        self.to_activation(&layer.intermediate, (middle, own.middle), (inner, own.inner), rest.floats);
        let norm = layer.output_norm.with(config.layer_norm_eps);
        let target = next.map(|next| {
            input.resize(rows);
            (&mut *input, next.input)
        });
        self.add_and_norm(&layer.output, (inner, own.inner), (norm, target), &mut rest);
    }

    /// Query, key and value: in one go where all three are codes.
    fn attention_inputs(
        &self,
        layer: &Layer,
        (input, own): (&Codes, &Quantizers),
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
                    self.multiply_values(linear, (input, own.input), floats);
                    let length = target.rows() * target.cols();
                    self.compute.quantize(&floats.result[..length], target, by);
                }
            }
        }
    }

    /// `hidden = LayerNorm(hidden + linear(input))`, and its codes if anybody reads them.
    fn add_and_norm(
        &self,
        linear: &Linear,
        (input, by): (&Codes, Quantizer),
        (norm, codes): (LayerNorm<'_>, Option<(&mut Codes, Quantizer)>),
        rest: &mut Rest<'_>,
    ) {
        let Rest { hidden, floats } = rest;
        match self.packed(linear) {
            Some((weights, params)) => {
                let source = LinearInput { codes: input, quantizer: by };
                self.compute.linear_norm(source, weights, params, NormOutput { norm, hidden, codes });
            }
            None => {
                self.multiply_values(linear, (input, by), floats);
                self.compute.add_scaled(1.0, &floats.result[..hidden.len()], hidden);
                self.compute.norm_to_codes(NormOutput { norm, hidden, codes });
            }
        }
    }

    /// `target = activation(linear(input))`, quantized.
    fn to_activation(
        &self,
        linear: &Linear,
        (input, by): (&Codes, Quantizer),
        (target, target_by): (&mut Codes, Quantizer),
        floats: &mut FloatBuffers,
    ) {
        match self.packed(linear) {
            Some((weights, params)) => {
                let source = LinearInput { codes: input, quantizer: by };
                let output = match self.model.config().activation {
                    Activation::Gelu => LinearOutput::Gelu(target, target_by),
                };
                self.compute.linear(source, [LinearLayer { weights, params, output }]);
            }
            None => {
                self.multiply_values(linear, (input, by), floats);
                let length = target.rows() * target.cols();
                let values = room(&mut floats.read, length);
                self.activate(&floats.result[..length], values);
                self.compute.quantize(values, target, target_by);
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

    /// An f32 layer on the values of codes: the result is in `floats.result`.
    fn multiply_values(&self, linear: &Linear, (input, by): (&Codes, Quantizer), floats: &mut FloatBuffers) {
        let Linear::Floats { values, bias } = linear else { return };
        let FloatBuffers { read, result, .. } = floats;
        let read = room(read, input.rows() * input.cols());
        self.compute.dequantize(input, by, read);
        self.multiply(values, bias, read, room(result, input.rows() * bias.len()));
    }

    /// The activation between the feed-forward matrices, in f32.
    pub(super) fn activate(&self, before: &[f32], after: &mut [f32]) {
        match self.model.config().activation {
            Activation::Gelu => self.compute.gelu(before, after),
        }
    }

    /// `out = read · Wᵀ + b`.
    pub(super) fn multiply(&self, values: &Floats, bias: &[f32], read: &[f32], out: &mut [f32]) {
        super::floats::multiply(&self.compute, &values.get(&self.model), bias, read, out);
    }
}
