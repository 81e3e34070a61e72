//! Where each weight lies in the flat array: looked up once, so that a training step looks nothing up.

use std::ops::Range;

use qbert_model::{Config, Module, ParameterLayout, Role};
use qbert_quant::{Embedding, Matrix};

use crate::error::{Error, Result};

/// A linear layer's place: weight `[outputs, inputs]` and bias `[outputs]`.
#[derive(Debug, Clone)]
pub struct LinearSpan {
    /// Place of the weight.
    pub weight: Range<usize>,
    /// Place of the bias; empty where there is none.
    pub bias: Range<usize>,
    /// Rows of the weight.
    pub outputs: usize,
}

/// A LayerNorm's place.
#[derive(Debug, Clone)]
pub struct NormSpan {
    /// Place of γ.
    pub gamma: Range<usize>,
    /// Place of β; empty where there is none.
    pub beta: Range<usize>,
}

/// One encoder layer.
#[derive(Debug, Clone)]
pub struct LayerSpans {
    /// Query, key and value as one matrix of `3H` rows.
    pub attention_inputs: LinearSpan,
    /// The projection after attention.
    pub attention_output: LinearSpan,
    /// The norm of the attention; `None` where there is none.
    pub attention_norm: Option<NormSpan>,
    /// First feed-forward matrix.
    pub intermediate: LinearSpan,
    /// Second feed-forward matrix.
    pub output: LinearSpan,
    /// The norm of the feed-forward network.
    pub output_norm: NormSpan,
}

impl LinearSpan {
    fn counted_from(&self, start: usize) -> Self {
        let Self { weight, bias, outputs } = self;
        Self { weight: counted_from(weight, start), bias: counted_from(bias, start), outputs: *outputs }
    }
}

impl NormSpan {
    fn counted_from(&self, start: usize) -> Self {
        Self { gamma: counted_from(&self.gamma, start), beta: counted_from(&self.beta, start) }
    }
}

impl LayerSpans {
    /// The same places in an array that begins at element `start` of the whole: a layer's own parameters.
    pub(super) fn counted_from(&self, start: usize) -> Self {
        Self {
            attention_inputs: self.attention_inputs.counted_from(start),
            attention_output: self.attention_output.counted_from(start),
            attention_norm: self.attention_norm.as_ref().map(|norm| norm.counted_from(start)),
            intermediate: self.intermediate.counted_from(start),
            output: self.output.counted_from(start),
            output_norm: self.output_norm.counted_from(start),
        }
    }
}

fn counted_from(span: &Range<usize>, start: usize) -> Range<usize> {
    span.start - start..span.end - start
}

/// The whole model.
#[derive(Debug, Clone)]
pub struct Spans {
    /// Word, position and type embedding; empty for a table that the model does not have.
    pub embeddings: [Range<usize>; 3],
    /// The embedding's LayerNorm.
    pub embedding_norm: NormSpan,
    /// The layer from the embeddings' width to the encoder's, where the model has one.
    pub projection: Option<LinearSpan>,
    /// The table of the relative bias, where the model has one.
    pub relative_bias: Option<Range<usize>>,
    /// The encoder layers as they are computed. Those that share weights have the same places.
    pub layers: Vec<LayerSpans>,
    /// The norm after the last layer, where the model has one.
    pub final_norm: Option<NormSpan>,
    /// The pooler, where the model has one.
    pub pooler: Option<LinearSpan>,
    /// The norm after its activation, where it has one.
    pub pooler_norm: Option<NormSpan>,
    /// The head, where the model has one.
    pub head: Option<LinearSpan>,
}

impl Spans {
    /// Finds every part of the model in its layout.
    pub fn new(config: &Config, layout: &ParameterLayout) -> Result<Self> {
        let places = Places { layout };
        let optional = |module: Module| match layout.role(module.weight()) {
            Some(_) => places.linear(module).map(Some),
            None => Ok(None),
        };
        let optional_norm = |module: Module| match layout.role(module.weight()) {
            Some(_) => places.norm(module).map(Some),
            None => Ok(None),
        };
        Ok(Self {
            embeddings: Embedding::ALL.map(|table| {
                let parameter = layout.role(Module::table(table).weight());
                parameter.map_or(0..0, |parameter| parameter.span.clone())
            }),
            embedding_norm: places.norm(Module::EmbeddingNorm)?,
            projection: optional(Module::EmbeddingProjection)?,
            relative_bias: layout.role(Module::RelativeBias.weight()).map(|parameter| parameter.span.clone()),
            layers: (0..config.layers).map(|layer| places.layer(config.weights_of(layer))).collect::<Result<_>>()?,
            final_norm: optional_norm(Module::FinalNorm)?,
            pooler: optional(Module::Pooler)?,
            pooler_norm: optional_norm(Module::PoolerNorm)?,
            head: optional(Module::Head)?,
        })
    }

    /// Every linear layer once, though computed layers may share weights.
    pub(crate) fn linears(&self) -> impl Iterator<Item = &LinearSpan> {
        let first_layer = |index: usize| {
            let start = |layer: &LayerSpans| layer.attention_inputs.weight.start;
            self.layers[..index].iter().all(|layer| start(layer) != start(&self.layers[index]))
        };
        let of_layers = (0..self.layers.len()).filter(move |&index| first_layer(index)).flat_map(|index| {
            let LayerSpans { attention_inputs, attention_output, intermediate, output, .. } = &self.layers[index];
            [attention_inputs, attention_output, intermediate, output]
        });
        of_layers.chain(&self.projection).chain(&self.pooler).chain(&self.head)
    }
}

/// Looks roles up in a layout.
struct Places<'a> {
    layout: &'a ParameterLayout,
}

impl Places<'_> {
    fn of(&self, role: Role) -> Result<Range<usize>> {
        let parameter = self.layout.role(role).ok_or_else(|| Error::NoParameter { name: role.to_string() })?;
        Ok(parameter.span.clone())
    }

    /// The place of a bias. One that the model does not have is empty, behind the weight.
    fn bias(&self, module: Module, weight: &Range<usize>) -> Range<usize> {
        self.layout.role(module.bias()).map_or(weight.end..weight.end, |parameter| parameter.span.clone())
    }

    fn linear(&self, module: Module) -> Result<LinearSpan> {
        let weight = self.of(module.weight())?;
        let outputs = self.layout.role(module.weight()).map_or(0, |parameter| parameter.shape[0]);
        Ok(LinearSpan { bias: self.bias(module, &weight), weight, outputs })
    }

    fn norm(&self, module: Module) -> Result<NormSpan> {
        let gamma = self.of(module.weight())?;
        Ok(NormSpan { beta: self.bias(module, &gamma), gamma })
    }

    fn layer(&self, layer: usize) -> Result<LayerSpans> {
        let linear = |matrix: Matrix| self.linear(Module::matrix(layer, matrix));
        // The layout puts query, key and value next to each other, weights first; one span covers all three.
        let (first, last) = (linear(Matrix::Query)?, linear(Matrix::Value)?);
        let weight = first.weight.start..last.weight.end;
        let bias = if first.bias.is_empty() { weight.end..weight.end } else { first.bias.start..last.bias.end };
        let attention_inputs = LinearSpan { weight, bias, outputs: 3 * first.outputs };
        debug_assert_eq!(attention_inputs.weight.len(), 3 * first.weight.len());
        debug_assert_eq!(attention_inputs.bias.len(), 3 * first.bias.len());
        Ok(LayerSpans {
            attention_inputs,
            attention_output: linear(Matrix::AttentionOutput)?,
            attention_norm: match self.layout.role(Module::AttentionNorm(layer).weight()) {
                Some(_) => Some(self.norm(Module::AttentionNorm(layer))?),
                None => None,
            },
            intermediate: linear(Matrix::Intermediate)?,
            output: linear(Matrix::Output)?,
            output_norm: self.norm(Module::OutputNorm(layer))?,
        })
    }
}
