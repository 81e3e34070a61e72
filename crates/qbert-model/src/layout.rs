//! Which tensors a BERT has, in which order, and where each lies in one flat array of f32.
//!
//! Weights, gradients and optimizer state share one layout: a parameter is a span of a flat array, an encoder
//! layer is one contiguous span. That makes an optimizer step one loop, a Hessian block one slice (§3.2 of the
//! paper works on "all parameters of a layer"), and a checkpoint one copy. Names are those of `transformers`.

use std::collections::BTreeMap;
use std::ops::Range;

use qbert_quant::{Embedding, Matrix, Site};

use crate::config::{Config, Head};

/// One tensor: its name, its shape and its place in the flat array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// Canonical name, without the `bert.` prefix: `encoder.layer.0.attention.self.query.weight`.
    pub name: String,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Where it lies in the flat array.
    pub span: Range<usize>,
    /// Whether weight decay applies: to matrices and embeddings, not to biases and `LayerNorm`.
    pub decays: bool,
    /// Whether it belongs to the pooler or the head, which a checkpoint of another kind lacks.
    pub on_top: bool,
}

/// The ordered parameters of one model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    parameters: Vec<Parameter>,
    by_name: BTreeMap<String, usize>,
    layers: Vec<Range<usize>>,
    head: Head,
}

impl Layout {
    /// The parameters of `config` with `head`; `outputs` is the number of labels (2 for question answering,
    /// 0 for the bare encoder). The pooler is part of sequence classifiers, and of bare encoders that have one.
    pub fn new(config: &Config, head: Head, outputs: usize, pooler: bool) -> Self {
        let hidden = config.hidden_size;
        let mut builder = Builder::default();
        builder.matrix("embeddings.word_embeddings.weight", config.vocab_size, hidden);
        builder.matrix("embeddings.position_embeddings.weight", config.max_positions, hidden);
        builder.matrix("embeddings.token_type_embeddings.weight", config.type_vocab_size, hidden);
        builder.layer_norm("embeddings.LayerNorm", hidden);
        let mut layers = Vec::with_capacity(config.layers);
        for layer in 0..config.layers {
            let start = builder.end;
            let name = |part: &str| format!("encoder.layer.{layer}.{part}");
            builder.attention_inputs(layer, hidden);
            builder.linear(&matrix_prefix(layer, Matrix::AttentionOutput), hidden, hidden);
            builder.layer_norm(&name("attention.output.LayerNorm"), hidden);
            builder.linear(&matrix_prefix(layer, Matrix::Intermediate), config.intermediate_size, hidden);
            builder.linear(&matrix_prefix(layer, Matrix::Output), hidden, config.intermediate_size);
            builder.layer_norm(&name("output.LayerNorm"), hidden);
            layers.push(start..builder.end);
        }
        builder.on_top = true;
        if pooler || head == Head::SequenceClassification {
            builder.linear("pooler.dense", hidden, hidden);
        }
        match head {
            Head::None => {}
            Head::SequenceClassification | Head::TokenClassification => builder.linear("classifier", outputs, hidden),
            Head::QuestionAnswering => builder.linear("qa_outputs", outputs, hidden),
        }
        let parameters = builder.parameters;
        let by_name = parameters.iter().enumerate().map(|(i, p)| (p.name.clone(), i)).collect();
        Self { parameters, by_name, layers, head }
    }

    /// All parameters, in the order of the flat array.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// The parameter of this canonical name.
    pub fn get(&self, name: &str) -> Option<&Parameter> {
        self.by_name.get(name).map(|&i| &self.parameters[i])
    }

    /// Number of values in all parameters together.
    pub fn len(&self) -> usize {
        self.parameters.last().map_or(0, |p| p.span.end)
    }

    /// Whether there are no parameters; never true of a BERT.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The spans of the encoder layers: all parameters of a layer, biases and `LayerNorm` included.
    pub fn layers(&self) -> &[Range<usize>] {
        &self.layers
    }

    /// The head this layout has.
    pub fn head(&self) -> Head {
        self.head
    }

    /// The weight matrix of a quantization site.
    pub fn site(&self, site: Site) -> Option<&Parameter> {
        self.get(&site_tensor(site))
    }

    /// The name `transformers` gives a parameter: with `bert.` before it where a head's class wraps the encoder.
    pub fn file_name(&self, parameter: &Parameter) -> String {
        let of_head = parameter.name.starts_with("classifier.") || parameter.name.starts_with("qa_outputs.");
        if self.head == Head::None || of_head { parameter.name.clone() } else { format!("bert.{}", parameter.name) }
    }
}

/// Canonical tensor name of the weights of a quantization site.
pub fn site_tensor(site: Site) -> String {
    match site {
        Site::Embedding(Embedding::Word) => "embeddings.word_embeddings.weight".to_owned(),
        Site::Embedding(Embedding::Position) => "embeddings.position_embeddings.weight".to_owned(),
        Site::Embedding(Embedding::Type) => "embeddings.token_type_embeddings.weight".to_owned(),
        Site::Layer(layer, matrix) => format!("{}.weight", matrix_prefix(layer, matrix)),
    }
}

/// Output and input neurons of an encoder matrix.
pub fn matrix_shape(config: &Config, matrix: Matrix) -> (usize, usize) {
    let (hidden, wide) = (config.hidden_size, config.intermediate_size);
    match matrix {
        Matrix::Intermediate => (wide, hidden),
        Matrix::Output => (hidden, wide),
        _ => (hidden, hidden),
    }
}

fn matrix_prefix(layer: usize, matrix: Matrix) -> String {
    let part = match matrix {
        Matrix::Query => "attention.self.query",
        Matrix::Key => "attention.self.key",
        Matrix::Value => "attention.self.value",
        Matrix::AttentionOutput => "attention.output.dense",
        Matrix::Intermediate => "intermediate.dense",
        Matrix::Output => "output.dense",
    };
    format!("encoder.layer.{layer}.{part}")
}

#[derive(Default)]
struct Builder {
    parameters: Vec<Parameter>,
    end: usize,
    on_top: bool,
}

impl Builder {
    fn push(&mut self, name: String, shape: Vec<usize>, decays: bool) {
        let start = self.end;
        self.end += shape.iter().product::<usize>();
        self.parameters.push(Parameter { name, shape, span: start..self.end, decays, on_top: self.on_top });
    }

    fn matrix(&mut self, name: &str, rows: usize, cols: usize) {
        self.push(name.to_owned(), vec![rows, cols], true);
    }

    fn linear(&mut self, prefix: &str, rows: usize, cols: usize) {
        self.matrix(&format!("{prefix}.weight"), rows, cols);
        self.push(format!("{prefix}.bias"), vec![rows], false);
    }

    /// Query, key and value: the three matrices first, then the three biases, so that together they are one matrix
    /// of 3·hidden rows and one bias, and the engine computes them in one product.
    fn attention_inputs(&mut self, layer: usize, hidden: usize) {
        let inputs = [Matrix::Query, Matrix::Key, Matrix::Value].map(|matrix| matrix_prefix(layer, matrix));
        for prefix in &inputs {
            self.matrix(&format!("{prefix}.weight"), hidden, hidden);
        }
        for prefix in &inputs {
            self.push(format!("{prefix}.bias"), vec![hidden], false);
        }
    }

    fn layer_norm(&mut self, prefix: &str, width: usize) {
        self.push(format!("{prefix}.weight"), vec![width], false);
        self.push(format!("{prefix}.bias"), vec![width], false);
    }
}
