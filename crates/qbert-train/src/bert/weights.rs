//! Where each weight lies in the flat array: the layout's names resolved once, so that a step looks nothing up.

use std::ops::Range;

use qbert_model::{Config, Head, Layout};

use crate::error::{Error, Result};

/// A linear layer's place: weight `[outputs, inputs]` and bias `[outputs]`.
#[derive(Debug, Clone)]
pub struct LinearSpan {
    /// Place of the weight.
    pub weight: Range<usize>,
    /// Place of the bias.
    pub bias: Range<usize>,
}

/// A LayerNorm's place.
#[derive(Debug, Clone)]
pub struct NormSpan {
    /// Place of γ.
    pub gamma: Range<usize>,
    /// Place of β.
    pub beta: Range<usize>,
}

/// One encoder layer.
#[derive(Debug, Clone)]
pub struct LayerSpans {
    /// Query, key and value as one matrix of `3H` rows.
    pub attention_inputs: LinearSpan,
    /// The projection after attention.
    pub attention_output: LinearSpan,
    /// LayerNorm after attention.
    pub attention_norm: NormSpan,
    /// First feed-forward matrix.
    pub intermediate: LinearSpan,
    /// Second feed-forward matrix.
    pub output: LinearSpan,
    /// LayerNorm after the feed-forward network.
    pub output_norm: NormSpan,
}

impl LinearSpan {
    fn counted_from(&self, start: usize) -> Self {
        Self { weight: counted_from(&self.weight, start), bias: counted_from(&self.bias, start) }
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
            attention_norm: self.attention_norm.counted_from(start),
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
    /// Word, position and type embedding.
    pub embeddings: [Range<usize>; 3],
    /// The embedding's LayerNorm.
    pub embedding_norm: NormSpan,
    /// The encoder layers.
    pub layers: Vec<LayerSpans>,
    /// The pooler, where the model has one.
    pub pooler: Option<LinearSpan>,
    /// The head, where the model has one.
    pub head: Option<LinearSpan>,
}

impl Spans {
    /// Resolves the names of `layout`.
    pub fn new(config: &Config, layout: &Layout) -> Result<Self> {
        let names = Names { layout };
        let layers = (0..config.layers).map(|layer| names.layer(layer)).collect::<Result<_>>()?;
        let head = match layout.head() {
            Head::None => None,
            Head::QuestionAnswering => Some(names.linear("qa_outputs")?),
            _ => Some(names.linear("classifier")?),
        };
        let pooler = layout.get("pooler.dense.weight").is_some();
        Ok(Self {
            embeddings: [
                names.span("embeddings.word_embeddings.weight")?,
                names.span("embeddings.position_embeddings.weight")?,
                names.span("embeddings.token_type_embeddings.weight")?,
            ],
            embedding_norm: names.norm("embeddings.LayerNorm")?,
            layers,
            pooler: pooler.then(|| names.linear("pooler.dense")).transpose()?,
            head,
        })
    }
}

struct Names<'a> {
    layout: &'a Layout,
}

impl Names<'_> {
    fn span(&self, name: &str) -> Result<Range<usize>> {
        let parameter = self.layout.get(name).ok_or_else(|| Error::NoParameter { name: name.to_owned() })?;
        Ok(parameter.span.clone())
    }

    fn linear(&self, prefix: &str) -> Result<LinearSpan> {
        let (weight, bias) = (self.span(&format!("{prefix}.weight"))?, self.span(&format!("{prefix}.bias"))?);
        Ok(LinearSpan { weight, bias })
    }

    fn norm(&self, prefix: &str) -> Result<NormSpan> {
        let (gamma, beta) = (self.span(&format!("{prefix}.weight"))?, self.span(&format!("{prefix}.bias"))?);
        Ok(NormSpan { gamma, beta })
    }

    fn layer(&self, layer: usize) -> Result<LayerSpans> {
        let name = |part: &str| format!("encoder.layer.{layer}.{part}");
        // The layout puts query, key and value next to each other, weights first; one span covers all three.
        let first = self.linear(&name("attention.self.query"))?;
        let last = self.linear(&name("attention.self.value"))?;
        let attention_inputs =
            LinearSpan { weight: first.weight.start..last.weight.end, bias: first.bias.start..last.bias.end };
        debug_assert_eq!(attention_inputs.weight.len(), 3 * first.weight.len());
        debug_assert_eq!(attention_inputs.bias.len(), 3 * first.bias.len());
        Ok(LayerSpans {
            attention_inputs,
            attention_output: self.linear(&name("attention.output.dense"))?,
            attention_norm: self.norm(&name("attention.output.LayerNorm"))?,
            intermediate: self.linear(&name("intermediate.dense"))?,
            output: self.linear(&name("output.dense"))?,
            output_norm: self.norm(&name("output.LayerNorm"))?,
        })
    }
}
