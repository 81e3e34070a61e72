//! Which tensors a model has, in which order, and where each lies in one flat array of f32.
//!
//! Weights, gradients and optimizer state share one layout: a parameter is a span of a flat array, and an encoder
//! layer is one contiguous span. An optimizer step is then one loop, a Hessian block one slice (§3.2 of the paper works
//! on "all parameters of a layer"), and a checkpoint one copy. Parameters are found by [`Role`]; their names come from
//! the model's [`Family`] and serve files and messages only.

use std::collections::BTreeMap;
use std::ops::Range;

use qbert_quant::{Matrix, Site};

use crate::config::Config;
use crate::family::{Family, HeadClass, RelativeBias};
use crate::head::Head;
use crate::role::{Module, Role};

/// One tensor: what it is for, its name, its shape and its place in the flat array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// What it is for.
    pub role: Role,
    /// Canonical name: the family's, as in a file of the bare encoder.
    pub name: String,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Where it lies in the flat array.
    pub span: Range<usize>,
}

/// A tensor of a file, which one or several parameters make up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileTensor {
    /// Its name in the file.
    pub name: String,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Where it lies in the flat array.
    pub span: Range<usize>,
}

/// The ordered parameters of one model.
#[derive(Debug, Clone, PartialEq)]
pub struct ParameterLayout {
    parameters: Vec<Parameter>,
    by_name: BTreeMap<String, usize>,
    by_role: BTreeMap<Role, usize>,
    layers: Vec<Range<usize>>,
    family: &'static Family,
    head: Head,
}

impl ParameterLayout {
    /// The parameters of `config` with `head`; `outputs` is the number of labels (2 for question answering,
    /// 0 for the bare encoder). Heads that read the pooler always have one, bare encoders if `pooler` says so.
    pub fn new(config: &Config, head: Head, outputs: usize, pooler: bool) -> Self {
        let hidden = config.hidden_size;
        let class = config.family.class(head);
        let mut builder = Builder { config, head, parameters: Vec::new(), end: 0 };
        builder.embeddings();
        let mut layers = Vec::with_capacity(config.distinct_layers());
        for layer in 0..config.distinct_layers() {
            let start = builder.end;
            builder.layer(layer);
            layers.push(start..builder.end);
        }
        if config.has_final_norm() {
            builder.norm(Module::FinalNorm, hidden);
        }
        if let Some(described) = class.pooler.filter(|_| pooler || class.reads_pooler()) {
            builder.linear(Module::Pooler, hidden, hidden, config.biases.pooler);
            if described.norm.is_some() {
                builder.norm(Module::PoolerNorm, hidden);
            }
        }
        if class.output.is_some() {
            builder.linear(Module::Head, outputs, hidden, true);
        }
        let parameters = builder.parameters;
        let by_name = parameters.iter().enumerate().map(|(index, p)| (p.name.clone(), index)).collect();
        let by_role = parameters.iter().enumerate().map(|(index, p)| (p.role, index)).collect();
        Self { parameters, by_name, by_role, layers, family: config.family, head }
    }

    /// All parameters, in the order of the flat array.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// The parameter of this canonical name: for files. Code that computes asks for a [role](Self::role).
    pub fn get(&self, name: &str) -> Option<&Parameter> {
        self.by_name.get(name).map(|&index| &self.parameters[index])
    }

    /// The parameter of this role; `None` where the model has none.
    pub fn role(&self, role: Role) -> Option<&Parameter> {
        self.by_role.get(&role).map(|&index| &self.parameters[index])
    }

    /// The weights of a quantization site.
    pub fn site(&self, site: Site) -> Option<&Parameter> {
        self.role(Module::Site(site).weight())
    }

    /// Number of values in all parameters together.
    pub fn len(&self) -> usize {
        self.parameters.last().map_or(0, |p| p.span.end)
    }

    /// Whether there are no parameters; never true of a model.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The spans of the encoder layers that have weights of their own: all parameters of a layer, biases and norms
    /// included.
    pub fn layers(&self) -> &[Range<usize>] {
        &self.layers
    }

    /// The head.
    pub fn head(&self) -> Head {
        self.head
    }

    /// How the family computes the head.
    pub fn head_class(&self) -> &'static HeadClass {
        self.family.class(self.head)
    }

    /// The tensors of a file of `transformers`, with their places: one per parameter, but one for query, key and value
    /// together where the family has it so.
    pub fn file_tensors(&self) -> Vec<FileTensor> {
        let mut tensors: Vec<FileTensor> = Vec::with_capacity(self.parameters.len());
        for parameter in &self.parameters {
            let (name, own) = (self.file_name(parameter), &parameter.span);
            let name = self.family.fused_name(&name).unwrap_or(name);
            match tensors.last_mut().filter(|last| last.name == name && last.span.end == own.start) {
                Some(last) => {
                    last.shape[0] += parameter.shape[0];
                    last.span.end = own.end;
                }
                None => tensors.push(FileTensor { name, shape: parameter.shape.clone(), span: own.clone() }),
            }
        }
        tensors
    }

    /// The name that `transformers` gives a parameter in a model with this head.
    pub fn file_name(&self, parameter: &Parameter) -> String {
        self.family.file_name(self.head, parameter.role, &parameter.name)
    }
}

struct Builder<'a> {
    config: &'a Config,
    head: Head,
    parameters: Vec<Parameter>,
    end: usize,
}

impl Builder<'_> {
    fn push(&mut self, role: Role, shape: Vec<usize>) {
        let start = self.end;
        self.end += shape.iter().product::<usize>();
        let name = self.config.tensor_name(self.head, role);
        self.parameters.push(Parameter { role, name, shape, span: start..self.end });
    }

    fn linear(&mut self, module: Module, rows: usize, cols: usize, has_bias: bool) {
        self.push(module.weight(), vec![rows, cols]);
        if has_bias {
            self.push(module.bias(), vec![rows]);
        }
    }

    fn norm(&mut self, module: Module, width: usize) {
        self.push(module.weight(), vec![width]);
        if self.config.biases.norms {
            self.push(module.bias(), vec![width]);
        }
    }

    /// Tables, norm, projection, and the relative bias, which belongs to no layer.
    fn embeddings(&mut self) {
        let config = self.config;
        for (table, rows) in config.tables() {
            self.push(Module::table(table).weight(), vec![rows, config.embedding_size]);
        }
        self.norm(Module::EmbeddingNorm, config.embedding_size);
        if config.has_projection() {
            self.linear(Module::EmbeddingProjection, config.hidden_size, config.embedding_size, true);
        }
        match config.family.relative_bias {
            RelativeBias::None => {}
            RelativeBias::Buckets { count, .. } => self.push(Module::RelativeBias.weight(), vec![count, config.heads]),
        }
    }

    fn layer(&mut self, layer: usize) {
        let config = self.config;
        let (hidden, wide, biases) = (config.hidden_size, config.intermediate_size, config.biases);
        self.attention_inputs(layer, hidden);
        self.linear(Module::matrix(layer, Matrix::AttentionOutput), hidden, hidden, biases.attention);
        if config.has_attention_norm(layer) {
            self.norm(Module::AttentionNorm(layer), hidden);
        }
        let first = config.intermediate_outputs();
        self.linear(Module::matrix(layer, Matrix::Intermediate), first, hidden, biases.feed_forward);
        self.linear(Module::matrix(layer, Matrix::Output), hidden, wide, biases.feed_forward);
        self.norm(Module::OutputNorm(layer), hidden);
    }

    /// Query, key and value: the three matrices first, then the three biases, so that together they are one matrix
    /// of 3·hidden rows and one bias, and training computes them in one product.
    fn attention_inputs(&mut self, layer: usize, hidden: usize) {
        let inputs = [Matrix::Query, Matrix::Key, Matrix::Value].map(|matrix| Module::matrix(layer, matrix));
        for module in inputs {
            self.push(module.weight(), vec![hidden, hidden]);
        }
        if self.config.biases.attention {
            for module in inputs {
                self.push(module.bias(), vec![hidden]);
            }
        }
    }
}
